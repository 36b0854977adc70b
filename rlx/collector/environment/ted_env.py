"""Environments that are stepped by hand, as TorchRL's are: steps go in and out as TED TensorDicts."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlx.collector.environment.space import Space
from rlx.collector.environment.vector import Environment

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from rlx.collector.environment.ted_stepper import TedStepper


class TedEnv(ABC):
    """A description of an environment, which is created at its first step; collectors create their own.

    All TensorDicts have the shape ``batch_size``: [n] for n copies, [] for one without that dimension.

    Example:
        >>> from rlx.collector import GymEnv
        >>> env = GymEnv("CartPole-v1")
        >>> env.set_seed(0)
        795726461
        >>> steps = env.rollout(3)
        >>> steps.shape, sorted(steps["next"].keys())
        (torch.Size([3]), ['done', 'observation', 'reward', 'terminated', 'truncated'])
        >>> env.close()
    """

    def __init__(self) -> None:
        self._opened: TedStepper | None = None

    @abstractmethod
    def open(self) -> Environment:
        """Return the environment, recreated."""

    @property
    def batch_size(self) -> "tuple[int, ...]":
        """(n,) for n copies; () for one that has no dimension of copies."""
        return self._stepper.batch

    @property
    def action_space(self) -> Space:
        """gymnasium's space of the actions of one copy."""
        return self._stepper.environment.action_space

    @property
    def observation_space(self) -> Space:
        """gymnasium's space of the observations of one copy."""
        return self._stepper.environment.observation_space

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed every copy, each with a number that follows from the one before; return the next number.

        The episodes are those of TorchRL's ``GymEnv`` with the same number.

        Args:
            seed: of the first copy.
            static_seed: whether all copies have the same.
        """
        return self._stepper.set_seed(seed, is_static=static_seed)

    def reset(self, tensordict: "TensorDictBase | None" = None) -> "TensorDictBase":
        """Return first observations, and flags that are all False.

        Args:
            tensordict: the steps so far; only the copies that its ``_reset`` [n] or [n, 1] names are reset. Without
                ``_reset`` all are.

        Raises:
            CollectError: the environment failed.
        """
        return self._stepper.reset(tensordict)

    def step(self, tensordict: "TensorDictBase") -> "TensorDictBase":
        """Step with ``action``, write the results under ``next``, the reward as float32; return the same TensorDict.

        Raises:
            CollectError: the environment failed, the action does not fit its space, or an episode has ended and was not
                reset.
        """
        return self._stepper.step(tensordict)

    def step_mdp(self, tensordict: "TensorDictBase") -> "TensorDictBase":
        """Return the root of the step after this one: the values under ``next``, without the reward, over the other
        values of the root."""
        return self._stepper.step_mdp(tensordict)

    def step_and_maybe_reset(self, tensordict: "TensorDictBase") -> "tuple[TensorDictBase, TensorDictBase]":
        """Return ``step``, and the root of the next one, of a new episode where one has ended."""
        return self._stepper.step_and_maybe_reset(tensordict)

    def rand_action(self, tensordict: "TensorDictBase | None" = None) -> "TensorDictBase":
        """Write random actions."""
        return self._stepper.rand_action(tensordict)

    def rollout(
        self,
        max_steps: int,
        policy: "Callable[..., Any] | None" = None,
        *,
        auto_reset: bool = True,
        break_when_any_done: bool = True,
        tensordict: "TensorDictBase | None" = None,
        set_truncated: bool = False,
    ) -> "TensorDictBase":
        """Return steps [*batch_size, T], T at most ``max_steps``, the last dimension named "time".

        Args:
            max_steps: an upper limit; at least 1.
            policy: a module or function of a TensorDict that writes ``action``; a torch module without ``in_keys`` is
                given the observation and gives the action. Random actions by default.
            auto_reset: whether it begins with new episodes; otherwise ``tensordict`` is where it continues.
            break_when_any_done: whether to stop where an episode ends; otherwise a new one begins.
            tensordict: the root of the first step, where it is not reset.
            set_truncated: whether the last steps are flagged truncated.

        Raises:
            CollectError: the environment or the policy failed, or the two do not fit.
        """
        return self._stepper.rollout(
            max_steps,
            policy,
            start=None if auto_reset else tensordict,
            auto_reset=auto_reset,
            stops_at_end=break_when_any_done,
            set_truncated=set_truncated,
        )

    def close(self) -> None:
        """Close the environment, if it was created; the next step creates another."""
        if self._opened is not None:
            self._opened.environment.close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def _stepper(self) -> "TedStepper":
        if self._opened is None:
            from rlx.collector.environment.ted_stepper import TedStepper  # noqa: PLC0415  (torch takes seconds)

            self._opened = TedStepper(self.open())
        return self._opened
