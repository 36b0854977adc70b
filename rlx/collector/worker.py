"""A worker: one environment, one policy and the loop that steps them, as it is ordered to; in whatever process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlx.collector.even_rollout import EvenRollout
from rlx.collector.opening import EnvSource, open_environment
from rlx.collector.policy import RandomPolicy
from rlx.collector.policy_file import as_policy
from rlx.collector.rollout import Rollout, Steps
from rlx.collector.session import seeds_of


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a worker is made of.

    Args:
        create_env_fn: its environment.
        policy: what chooses; random where not given.
        device: where the policy runs, if it is a module.
        seed: of environments and random actions.
        max_frames_per_traj: where a trajectory is truncated, if it lasts so long.
        exploration_type: name of an ``InteractionType`` of tensordict.
        threads: that torch may use; as many as it likes where not given.
    """

    create_env_fn: EnvSource
    policy: Any
    device: str | None
    seed: int
    max_frames_per_traj: int | None
    exploration_type: str
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to do next.

    Args:
        number: of the round that it belongs to: 1 or more, increasing.
        length: steps of every environment.
        is_random: whether actions are random.
        session: number of the session that begins, with new episodes and seeds; none where episodes go on.
        first_env: number of the worker's first environment, where others have the numbers before it.
    """

    number: int
    length: int
    is_random: bool = False
    session: int | None = None
    first_env: int = 0


class Worker:
    """Steps one environment; see ``Equipment`` and ``Order``.

    Raises:
        CollectError: the environment or the policy cannot be had.
    """

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._rollout: EvenRollout | None = None
        self.environment = open_environment(equipment.create_env_fn)
        try:
            self.policy = None if equipment.policy is None else as_policy(equipment.policy, equipment.device)
        except BaseException:
            self.environment.close()
            raise
        if equipment.threads is not None and _has_torch():
            import torch  # noqa: PLC0415  (it is imported already)

            torch.set_num_threads(equipment.threads)

    def collect(
        self,
        order: Order,
        version: int,
        into: Steps | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Steps:
        """The next steps; the order says how many.

        Args:
            order: the first one begins a session.
            version: of the policy.
            into: arrays that they are written into.
            should_stop: asked before every step whether to leave it at what there is.

        Raises:
            CollectError: the environment failed, or the policy's actions do not fit.
        """
        if order.session is not None:
            self._begin(order.session, order.first_env)
        if self._rollout is None:
            raise ValueError("the first order begins no session")
        policy = self._random if order.is_random or self.policy is None else self.policy
        with _exploring(self._equipment.exploration_type):
            return self._rollout.run(policy, version, order.length, into, should_stop)

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()

    def _begin(self, session: int, first: int) -> None:
        n, seed = self.environment.num_envs, self._equipment.seed
        seeds, random_seeds = (seeds_of(seed, session, n, purpose, first) for purpose in (0, 1))
        self._random = RandomPolicy(self.environment.action_space, random_seeds)
        if self._rollout is None:
            self._rollout = EvenRollout(Rollout(self.environment, seeds, self._equipment.max_frames_per_traj))
        else:
            self._rollout.restart(seeds)


@contextmanager
def _exploring(exploration_type: str) -> Iterator[None]:
    if not _has_torch():  # then no policy can ask how to explore, and torch takes seconds
        yield
        return
    from tensordict.nn import InteractionType, set_interaction_type  # noqa: PLC0415  (torch takes seconds)

    with set_interaction_type(InteractionType[exploration_type]):
        yield


def _has_torch() -> bool:
    return "torch" in sys.modules
