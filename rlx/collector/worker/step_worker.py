"""The function of a worker that returns steps: one environment, one policy and the loop that steps them."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.collector.environment.actions import RandomPolicy
from rlx.collector.environment.opening import EnvSource, open_environment
from rlx.collector.policy.protocol import FunctionPolicy, Policy, RandomActions
from rlx.collector.policy.spec import as_policy, exploring, has_torch
from rlx.collector.rollout.even import EvenRollout
from rlx.collector.rollout.infos import InfoKeys, Infos
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import Steps
from rlx.collector.worker.shared_steps import Description, MemoryLayout, Remainder, SharedSteps, Weights
from rlx.seeding import env_seeds


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """A factory of a worker's policy, called where the policy runs."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The config of a worker.

    Args:
        create_env_fn: its environment.
        policy: the policy, or a ``PolicyFactory``; random actions if not given.
        device: where the policy runs, if it is a module.
        seed: of environments and random actions.
        max_frames_per_traj: where a trajectory is truncated, if it lasts so long.
        exploration_type: name of an ``InteractionType`` of tensordict.
        threads: that torch may use; torch decides if not given.
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
class StepTask:
    """The next steps that a worker is to make.

    Args:
        number: of the round that it belongs to: 1 or more, increasing.
        length: steps of every environment.
        is_random: whether actions are random.
        session: number of the session that begins, with new episodes and seeds; none where episodes continue.
        first_env: number of the worker's first environment, where others have the numbers before it.
        seed: of the session; that of the config if not given.
    """

    number: int
    length: int
    is_random: bool = False
    session: int | None = None
    first_env: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Describe:
    """The answer is a Description."""


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """From now on steps and weights go through the memory in a file."""

    path: Path
    layout: MemoryLayout


@dataclass(frozen=True, slots=True)
class Detach:
    """From now on the policy is a copy, whose weights come with tasks."""


@dataclass(frozen=True, slots=True)
class Collect:
    """A task; the answer is steps: all of them, or those that are not in the shared memory.

    Args:
        task: which.
        slot: of the shared memory, where the steps go.
        weights: if they are new and memory is not shared.
    """

    task: StepTask
    slot: int
    weights: Weights | None


class StepWorker:
    """Worker that steps one environment and returns the steps.

    Raises:
        CollectError: the environment or the policy cannot be created.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._rollout: EvenRollout | None = None
        self._memory: SharedSteps | None = None
        self._edition = 0
        self._version = 0
        self._environment = open_environment(config.create_env_fn)
        try:
            self._policy = None if config.policy is None else self._make_policy(config)
        except BaseException:
            self._environment.close()
            raise
        if config.threads is not None and has_torch():
            import torch  # noqa: PLC0415  (it is imported already)

            torch.set_num_threads(config.threads)

    def __call__(self, message: Describe | ShareMemory | Detach | Collect) -> Description | Steps | Remainder | None:
        """Do what the message says.

        Raises:
            CollectError: the environment failed, or the policy's actions do not fit.
        """
        if isinstance(message, Describe):
            env = self._environment
            return Description(env.name, env.num_envs, env.is_batched, env.observation_space, env.action_space)
        if isinstance(message, Detach):
            self._policy = deepcopy(self._policy)
            return None
        if isinstance(message, ShareMemory):
            self._memory = SharedSteps(message.layout, message.path)
            return None
        if self._memory is not None:
            return self._collect_into(self._memory, message)
        if message.weights is not None:
            self._use(message.weights)
        return self._collect(message.task)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _collect_into(self, memory: SharedSteps, message: Collect) -> Remainder:
        if memory.edition != self._edition:
            self._edition, weights = memory.get_weights()
            self._use(weights)
        task = message.task
        steps = memory.steps(message.slot, task.length)
        self._collect(task, steps, lambda: memory.is_stopped(task.number))
        return memory.put(message.slot, steps)

    def _collect(
        self, task: StepTask, into: Steps | None = None, should_stop: Callable[[], bool] | None = None
    ) -> Steps:
        """Return the next steps, in the arrays of ``into`` if it is given; the first task begins a session."""
        if task.session is not None:
            self._begin(task.session, task.first_env, self._config.seed if task.seed is None else task.seed)
        if self._rollout is None:
            raise ValueError("the first task begins no session")
        policy: Policy = self._policy or FunctionPolicy(self._random)
        if task.is_random and self._policy is not None:
            policy = RandomActions(self._policy, self._random)
        with exploring(self._config.exploration_type):
            return self._rollout.run(policy, self._version, task.length, into, should_stop)

    def _use(self, weights: Weights) -> None:
        self._version = weights.version
        module: Any = getattr(self._policy, "module", None)
        if len(weights.packed) and module is not None:
            from rlx.collector.policy.module import unpack_weights  # noqa: PLC0415  (torch takes seconds)

            unpack_weights(module, weights.packed)

    def _make_policy(self, config: WorkerConfig) -> Policy:
        policy = config.policy.make() if isinstance(config.policy, PolicyFactory) else config.policy
        return as_policy(policy, self._environment.action_space, config.device)

    def _begin(self, session: int, first_env: int, seed: int) -> None:
        n = self._environment.num_envs
        seeds, random_seeds = (env_seeds(seed, session, n, purpose, first_env) for purpose in (0, 1))
        self._random = RandomPolicy(self._environment.action_space, random_seeds)
        if self._rollout is None:
            config = self._config
            infos = Infos(n, config.info_keys) if config.info_keys else None
            rollout = Rollout(self._environment, seeds, config.max_frames_per_traj, config.drop, infos)
            self._rollout = EvenRollout(rollout)
        else:
            self._rollout.restart(seeds)
