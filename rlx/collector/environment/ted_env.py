"""Environments that are stepped manually with TED TensorDicts, as TorchRL's are.

torch is imported by the first step: it takes seconds, and collecting a dataset does without.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.intake import ActionCheck, At, Inspection, Remarks, cast
from rlx.collector.environment.space import Arrays, RandomPolicy, Space, flatten
from rlx.collector.environment.vector import VectorEnvironment
from rlx.errors import CollectError
from rlx.numbers import check_whole

if TYPE_CHECKING:
    from tensordict import TensorDictBase

FLAGS = ("done", "terminated", "truncated")


class _Stand:
    """A created environment, and where it stands; it resets by itself where an episode ends, which ``TedEnv`` hides."""

    def __init__(self, environment: VectorEnvironment) -> None:
        n = environment.num_envs
        self.environment = environment
        self.batch = (n,) if environment.is_batched else ()
        self.fit_actions = ActionCheck(environment.action_space, n)
        self.remarks = Remarks()
        self._inspect = Inspection(environment.intake, environment.observation_space)
        self.seed(_seeds(int(np.random.SeedSequence().generate_state(1)[0]), n))
        self.is_fresh = np.ones(n, bool)  # begun by the environment itself, and not given out yet
        self.has_ended = np.zeros(n, bool)

    def seed(self, seeds: list[int]) -> None:
        self.random = RandomPolicy(self.environment.action_space, seeds)
        self.now = self.flat(self.environment.reset(seeds))

    def flat(self, observation: Any) -> Arrays:
        flat = flatten(self.environment.observation_space, "observation", observation)
        return {name: np.array(rows) for name, rows in flat.items()}

    def say(self, given: Arrays) -> None:
        """Log what is odd in what is given out, and count it."""
        self._inspect(given)
        self.remarks.add(self.environment.intake.drain())

    def ted(self, fields: Arrays, columns: Mapping[str, NDArray[Any]] | None = None) -> "TensorDictBase":
        """Return fields [n, ...], and columns [n] with a dimension of one, as a TensorDict; copies."""
        import torch
        from tensordict import TensorDict

        made = TensorDict({}, self.batch)
        for name, rows in fields.items():
            tensor = torch.from_numpy(rows.copy())
            made[tuple(name.split("/"))] = tensor if self.batch else tensor[0]
        for name, rows in (columns or {}).items():
            made[name] = torch.from_numpy(np.ascontiguousarray(rows)).reshape(*self.batch, 1).clone()
        return made


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
        self._opened: _Stand | None = None

    @abstractmethod
    def open(self) -> VectorEnvironment:
        """Return the environment, recreated."""

    @property
    def batch_size(self) -> "tuple[int, ...]":
        """(n,) for n copies; () for one that has no dimension of copies."""
        return self._stand.batch

    @property
    def action_space(self) -> Space:
        """gymnasium's space of the actions of one copy."""
        return self._stand.environment.action_space

    @property
    def observation_space(self) -> Space:
        """gymnasium's space of the observations of one copy."""
        return self._stand.environment.observation_space

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed every copy, each with a number derived from the previous one; return the next number.

        The episodes are those of TorchRL's ``GymEnv`` with the same number.

        Args:
            seed: seed of the first copy.
            static_seed: whether all copies have the same.
        """
        stand = self._stand
        n = stand.environment.num_envs
        seeds = [seed] * n if static_seed else _seeds(seed, n)
        stand.seed(seeds)
        # As with TorchRL, seeding is a reset, and the first episode begins with another.
        stand.is_fresh[:] = stand.has_ended[:] = False
        return seed if static_seed else _next_seed(seeds[-1])

    def reset(self, tensordict: "TensorDictBase | None" = None) -> "TensorDictBase":
        """Return first observations, and flags that are all False.

        Args:
            tensordict: the steps so far; only the copies that its ``_reset`` [n] or [n, 1] names are reset. Without
                ``_reset`` all are.

        Raises:
            CollectError: the environment failed.
        """
        stand = self._stand
        which = np.ones(stand.environment.num_envs, bool)
        if tensordict is not None and (asked := tensordict.get("_reset", None)) is not None:
            which = asked.cpu().numpy().reshape(-1)
        if (due := which & ~stand.is_fresh).any():
            stand.now = stand.flat(stand.environment.reset_some(due))
        stand.is_fresh[which] = stand.has_ended[which] = False
        stand.say({name: rows[which] for name, rows in stand.now.items()})
        began = stand.ted(stand.now, dict.fromkeys(FLAGS, np.zeros(len(which), bool)))
        return began if tensordict is None else tensordict.exclude("_reset", *FLAGS).update(began)

    def step(self, tensordict: "TensorDictBase") -> "TensorDictBase":
        """Step with ``action``, write the results under ``next``, the reward as float32; return the same TensorDict.

        The action and the values under ``next`` become copies, as the policy and the environment may write into theirs.

        Raises:
            CollectError: the environment failed, the action does not fit its space, or an episode has ended and was not
                reset.
        """
        stand = self._stand
        environment = stand.environment
        if stand.has_ended.any():
            copy = int(np.flatnonzero(stand.has_ended)[0])
            raise CollectError(f"the episode of copy {copy} of {environment.name} has ended: reset it first")
        stand.is_fresh[:] = False
        if (action := tensordict.get("action", None)) is None:
            raise CollectError("expected 'action' in the TensorDict", hint="env.rand_action(tensordict) writes one")
        actions, _ = stand.fit_actions(_tree(action if stand.batch else action.unsqueeze(0), environment.action_space))
        outcome = environment.step(actions)
        stand.now = stand.flat(outcome.observation)
        following = {name: rows.copy() for name, rows in stand.now.items()}
        for env, observation in outcome.final_observation.items():
            for name, row in flatten(environment.observation_space, "observation", observation).items():
                following[name][env] = row
        ended = outcome.terminated | outcome.truncated
        stand.has_ended = ended.copy()
        stand.is_fresh = ended.copy() if outcome.recorded is None else np.zeros_like(ended)
        reward = cast(outcome.reward, np.dtype(np.float32))
        environment.intake.check("reward", outcome.reward, reward, At(environment.steps))
        stand.say({**following, "reward": reward.values})
        columns: Arrays = {"reward": reward.values, "terminated": outcome.terminated}
        made = stand.ted(following, {**columns, "truncated": outcome.truncated, "done": ended})
        preset = tensordict.get("next", None)  # a policy's state
        tensordict.set("action", action.clone())
        return tensordict.set("next", made if preset is None else preset.clone().update(made))

    def step_mdp(self, tensordict: "TensorDictBase") -> "TensorDictBase":
        """Return the root of the step after this one: the values under ``next``, without the reward, over the other
        values of the root; copies."""
        return tensordict.exclude("next").copy().update(tensordict["next"].exclude("reward").clone())

    def step_and_maybe_reset(self, tensordict: "TensorDictBase") -> "tuple[TensorDictBase, TensorDictBase]":
        """Return ``step``, and the root of the next one, of a new episode where one has ended."""
        steps = self.step(tensordict)
        root = self.step_mdp(steps)
        if self._stand.has_ended.any():
            root = self.reset(root.set("_reset", steps["next", "done"].clone()))
        return steps, root

    def rand_action(self, tensordict: "TensorDictBase | None" = None) -> "TensorDictBase":
        """Write random actions."""
        stand = self._stand
        found = stand.ted(flatten(stand.environment.action_space, "action", stand.random(None)))
        return found if tensordict is None else tensordict.update(found)

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
        from tensordict import LazyStackedTensorDict

        check_whole("max_steps", max_steps, error=CollectError)
        if not auto_reset and tensordict is None:
            raise CollectError("auto_reset=False: expected the tensordict where the rollout continues")
        stand = self._stand
        if auto_reset or tensordict is None:
            root = self.reset()
        elif stand.has_ended.any():
            root = self.reset(tensordict.copy().update(stand.ted({}, {"_reset": stand.has_ended})))
        else:
            root = tensordict
        made: list[TensorDictBase] = []
        while len(made) < max_steps:
            stepped = self.step(self._acted(policy, root))
            made.append(stepped)
            if break_when_any_done and stand.has_ended.any():
                break
            root = self.step_mdp(stepped)
            if stand.has_ended.any() and len(made) < max_steps:
                root = self.reset(root.set("_reset", stepped["next", "done"].clone()))
        # Lazy where a key is not in every step, as a state that the policy reads from the second step on.
        steps = LazyStackedTensorDict.maybe_dense_stack(made, len(stand.batch))
        steps.names = [*(None for _ in stand.batch), "time"]
        if set_truncated:
            for name in ("truncated", "done"):
                steps["next", name][..., -1, :] = True
        return steps

    def _acted(self, policy: "Callable[..., Any] | None", root: "TensorDictBase") -> "TensorDictBase":
        """Return a copy of the root with what a policy writes, though not into the tensors that it is given."""
        root, given = root.copy(), root.clone()
        if policy is None:
            return self.rand_action(root)
        from tensordict import TensorDictBase, is_leaf_nontensor
        from torch.nn import Module

        if isinstance(policy, Module) and not hasattr(policy, "in_keys"):
            return root.set("action", policy(given["observation"]))
        before = given.copy()
        found = policy(given)
        if not isinstance(found, TensorDictBase) or "action" not in found:
            wrong = "no action" if isinstance(found, TensorDictBase) else f"a {type(found).__name__}"
            raise CollectError(f"policy gave {wrong}: expected the TensorDict with 'action'")
        for path in found.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
            if (value := found.get(path)) is not before.get(path, None):
                root.set(path, value.clone())
        return root

    def close(self) -> None:
        """Close the environment, if it was created; the next step creates another."""
        if self._opened is not None:
            self._opened.environment.close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def _stand(self) -> _Stand:
        if self._opened is None:
            self._opened = _Stand(self.open())
        return self._opened


def _tree(action: Any, space: Any) -> Any:
    if isinstance(parts := getattr(space, "spaces", None), Mapping):
        return {key: _tree(action[key], part) for key, part in parts.items()}
    if isinstance(parts, tuple):
        return tuple(_tree(action[str(number)], part) for number, part in enumerate(parts))
    return action.detach().cpu().numpy()


def _seeds(seed: int, count: int) -> list[int]:
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(_next_seed(seeds[-1]))
    return seeds


def _next_seed(seed: int) -> int:
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % (2**32 - 1)
