"""A worker: one environment, one policy and the loop that steps them, as it is ordered to; in whatever process."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rlx.collector.environment.opening import EnvSource, open_environment
from rlx.collector.policy.exploration import exploring
from rlx.collector.policy.protocol import FunctionPolicy, Policy, RandomActions, RandomPolicy
from rlx.collector.policy.spec import as_policy, has_torch
from rlx.collector.rollout.even import EvenRollout
from rlx.collector.rollout.infos import InfoKeys, Infos
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import Steps
from rlx.collector.worker.session import seeds_of


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """A factory of a worker's policy, called where the policy runs."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Equipment:
    """The config of a worker.

    Args:
        create_env_fn: its environment.
        policy: what chooses, or a ``PolicyFactory``; random where not given.
        device: where the policy runs, if it is a module.
        seed: of environments and random actions.
        max_frames_per_traj: where a trajectory is truncated, if it lasts so long.
        exploration_type: name of an ``InteractionType`` of tensordict.
        threads: that torch may use; as many as it likes where not given.
        drop: names of what the policy writes that is not kept.
        info_keys: entries of ``info`` that are kept.
    """

    create_env_fn: EnvSource
    policy: Any
    device: str | None
    seed: int
    max_frames_per_traj: int | None
    exploration_type: str
    threads: int | None = None
    drop: Sequence[str] = ()
    info_keys: InfoKeys = ()


@dataclass(frozen=True, slots=True)
class Order:
    """A task of a worker: the next steps to make.

    Args:
        number: of the round that it belongs to: 1 or more, increasing.
        length: steps of every environment.
        is_random: whether actions are random.
        session: number of the session that begins, with new episodes and seeds; none where episodes go on.
        first_env: number of the worker's first environment, where others have the numbers before it.
        seed: of the session; that of the equipment if not given.
    """

    number: int
    length: int
    is_random: bool = False
    session: int | None = None
    first_env: int = 0
    seed: int | None = None


class Worker:
    """Worker that steps one environment; see ``Equipment`` and ``Order``.

    Raises:
        CollectError: the environment or the policy cannot be had.
    """

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._rollout: EvenRollout | None = None
        self.environment = open_environment(equipment.create_env_fn)
        try:
            self.policy = None if equipment.policy is None else self._made(equipment)
        except BaseException:
            self.environment.close()
            raise
        if equipment.threads is not None and has_torch():
            import torch  # noqa: PLC0415  (it is imported already)

            torch.set_num_threads(equipment.threads)

    def collect(
        self,
        order: Order,
        version: int,
        into: Steps | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Steps:
        """Return the next steps; the order says how many.

        Args:
            order: the first one begins a session.
            version: of the policy.
            into: arrays that they are written into.
            should_stop: asked before every step whether to leave it at what there is.

        Raises:
            CollectError: the environment failed, or the policy's actions do not fit.
        """
        if order.session is not None:
            self._begin(order.session, order.first_env, self._equipment.seed if order.seed is None else order.seed)
        if self._rollout is None:
            raise ValueError("the first order begins no session")
        policy: Policy = self.policy or FunctionPolicy(self._random)
        if order.is_random and self.policy is not None:
            policy = RandomActions(self.policy, self._random)
        with exploring(self._equipment.exploration_type):
            return self._rollout.run(policy, version, order.length, into, should_stop)

    def detach(self) -> None:
        """Continue with a private copy of the policy."""
        self.policy = deepcopy(self.policy)

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()

    def _made(self, equipment: Equipment) -> Policy:
        policy = equipment.policy.make() if isinstance(equipment.policy, PolicyFactory) else equipment.policy
        return as_policy(policy, self.environment.action_space, equipment.device)

    def _begin(self, session: int, first: int, seed: int) -> None:
        n = self.environment.num_envs
        seeds, random_seeds = (seeds_of(seed, session, n, purpose, first) for purpose in (0, 1))
        self._random = RandomPolicy(self.environment.action_space, random_seeds)
        if self._rollout is None:
            here = self._equipment
            infos = Infos(n, here.info_keys) if here.info_keys else None
            self._rollout = EvenRollout(Rollout(self.environment, seeds, here.max_frames_per_traj, here.drop, infos))
        else:
            self._rollout.restart(seeds)
