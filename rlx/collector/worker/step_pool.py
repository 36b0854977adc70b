"""Workers that return the steps they make, through shared memory where they run on this machine, and their pool."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlx.collector.environment.gym_env import EnvSource, open_environment
from rlx.collector.environment.space import RandomPolicy
from rlx.collector.environment.state import HiddenStateError, restore_state, save_state
from rlx.collector.policy.protocol import FunctionPolicy, Policy, RandomActions
from rlx.collector.policy.spec import as_policy, exploring, has_torch
from rlx.collector.rollout.infos import InfoKeys, Infos
from rlx.collector.rollout.loop import EvenRollout, Rollout
from rlx.collector.rollout.steps import Steps
from rlx.collector.worker.pool import WorkerPool
from rlx.collector.worker.shared_steps import Description, MemoryLayout, Remainder, SharedSteps, Weights
from rlx.engine.actor import Actor, Actors
from rlx.errors import CollectError
from rlx.numbers import check_whole
from rlx.seeding import env_seeds, generator_state, set_generator_state


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """A factory of a worker's policy, called where the policy runs."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The config of a worker.

    Args:
        policy: the policy, or a ``PolicyFactory``; random actions if not given.
        device: where the policy runs, if it is a module.
        exploration_type: name of an ``InteractionType`` of tensordict.
        threads: that torch may use; torch decides if not given.
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
    autoreset: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_whole("seed", self.seed, 0, error=CollectError))
        if self.threads is not None:
            object.__setattr__(self, "threads", check_whole("num_threads", self.threads, error=CollectError))


@dataclass(frozen=True, slots=True)
class StepTask:
    """The next steps that a worker is to make; its result is all of them, or those outside the shared memory.

    Args:
        number: of the round that it belongs to: 1 or more, increasing.
        session: number of the session that begins, with new episodes and seeds; none where episodes continue.
        first_env: number of the worker's first environment, where others have the numbers before it.
        seed: of the session; that of the config if not given.
        slot: of the shared memory, where the steps go.
        weights: if they are new and memory is not shared.
    """

    number: int
    length: int
    is_random: bool = False
    session: int | None = None
    first_env: int = 0
    seed: int | None = None
    slot: int = 0
    weights: Weights | None = None


class StepWorker:
    """Worker that steps one environment and returns the steps."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._rollout: EvenRollout | None = None
        self._random: Any = None
        self._memory: SharedSteps | None = None
        self._edition = 0
        self._version = 0
        self._environment = open_environment(config.create_env_fn, autoreset=config.autoreset)
        try:
            self._policy = None if config.policy is None else self._make_policy(config)
        except BaseException:
            self._environment.close()
            raise
        if config.threads is not None and has_torch():
            import torch  # it is imported already

            torch.set_num_threads(config.threads)

    def __call__(self, task: StepTask | Callable[[StepWorker], Any]) -> Any:
        """Make steps, or call a method of the worker."""
        if not isinstance(task, StepTask):
            return task(self)
        if self._memory is not None:
            return self._collect_into(self._memory, task)
        if task.weights is not None:
            self._use(task.weights)
        return self._collect(task)

    def describe(self) -> Description:
        """Return what the environment is like."""
        env = self._environment
        return Description(env.num_envs, env.is_batched, env.observation_space, env.action_space)

    def share(self, layout: MemoryLayout, path: Path) -> None:
        """Send steps and receive weights through the memory in a file from now on."""
        self._memory = SharedSteps(layout, path)

    def detach(self) -> None:
        """Copy the policy: its weights come with tasks from now on."""
        self._policy = deepcopy(self._policy)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def state(self, trust: bool) -> dict[str, Any]:
        """Return the state of rollout, environment and generators; raise HiddenStateError if it cannot be read."""
        live = (
            None if self._rollout is None else save_state([self._rollout, self._random], trust=trust, values=(Steps,))
        )
        return {"live": live, "version": self._version, "generators": generator_state()}

    def load_state(self, state: Mapping[str, Any], first_env: int, trust: bool) -> None:
        """Continue from a state of ``state``; raise HiddenStateError if it does not fit."""
        if state["live"] is None:
            return
        self._begin(0, first_env, self._config.seed)
        self._rollout, self._random = restore_state(
            [self._rollout, self._random], state["live"], trust=trust, values=(Steps,)
        )
        self._version = state["version"]
        set_generator_state(state["generators"])

    def _collect_into(self, memory: SharedSteps, task: StepTask) -> Remainder:
        if memory.edition != self._edition:
            self._edition, weights = memory.get_weights()
            self._use(weights)
        steps = memory.steps(task.slot, task.length)
        self._collect(task, steps, lambda: memory.is_stopped(task.number))
        return memory.put(task.slot, steps)

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
            steps = self._rollout.run(policy, self._version, task.length, into, should_stop)
        steps.remarks.update(self._environment.intake.drain())
        return steps

    def _use(self, weights: Weights) -> None:
        self._version = weights.version
        module: Any = getattr(self._policy, "module", None)
        if len(weights.packed) and module is not None:
            from rlx.collector.policy.module import unpack_weights  # torch takes seconds

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


class StepPool(WorkerPool[StepTask]):
    """Pool of ``StepWorker``.

    Args:
        length_of: returns how many steps of each of its environments, at most, a worker will be asked for.
        new_session: returns the number of a new session for a replacement.
    """

    def __init__(
        self,
        actors: Actors,
        configs: Sequence[WorkerConfig],
        length_of: Callable[[int, Description], int],
        *,
        slots: int,
        weights: Weights,
        new_session: Callable[[], int],
    ) -> None:
        self._processes = actors
        self._configs = configs
        self._length_of = length_of
        self._slots = slots
        self._weights = weights
        self._new_session = new_session
        self._publishing = threading.Lock()  # weights may come from another thread than tasks
        self._memories: list[SharedSteps | None] = [None for _ in configs]
        self._sent_weights: list[Weights | None] = [None for _ in configs]
        self._submitted = [0 for _ in configs]
        self._described: dict[int, Description] = {}
        self.lost_episodes = 0
        super().__init__(len(configs))
        self.descriptions = [self._described[worker] for worker in range(len(configs))]

    def submit(self, worker: int, task: StepTask) -> None:
        """Submit a task to a worker."""
        if self.unanswered(worker) == self._slots:
            raise ValueError(f"worker {worker} has {self._slots} unanswered tasks")
        slot, self._submitted[worker] = self._submitted[worker] % self._slots, self._submitted[worker] + 1
        self._submit(worker, self._with_weights(worker, replace(task, slot=slot)))

    def next(self) -> tuple[int, StepTask, Steps]:
        """Wait for the first worker that has finished a task; return its number, the task and its steps.

        The task is of another session than it was submitted with if the worker has been replaced. Steps are valid until
        the worker is given as many more tasks as there are slots.
        """
        worker, task, value = self._next_answer()
        if isinstance(value, Remainder):
            memory = self._memories[worker]
            if memory is None:
                raise RuntimeError("steps in shared memory of a worker that shares none")
            value = memory.get(task.slot, value)
        return worker, task, value

    def stop(self, number: int) -> None:
        """Have workers that share memory stop, before their next step, the tasks of rounds up to this one."""
        for memory in self._memories:
            if memory is not None:
                memory.stop(number)

    def publish(self, weights: Weights) -> None:
        """Give workers new weights, in use from their next task."""
        with self._publishing:
            self._weights = weights
            for memory in self._memories:
                if memory is not None:
                    memory.put_weights(weights)

    @property
    def weights(self) -> Weights:
        """The last published weights."""
        return self._weights

    def state(self, trust: bool) -> list[dict[str, Any]]:
        """Return the state of every worker; raise HiddenStateError if one cannot be read, or has pending tasks."""
        save = partial(StepWorker.state, trust=trust)
        return [self._idle(worker).call(save).result() for worker in range(len(self._actors))]

    def load_state(self, states: Sequence[Mapping[str, Any]], first_envs: Sequence[int], trust: bool) -> None:
        """Restore the states of workers; raise HiddenStateError if one cannot be restored."""
        if len(states) != len(self._actors):
            raise HiddenStateError(f"there were {len(states)} workers, and now are {len(self._actors)}")
        for worker, (state, first) in enumerate(zip(states, first_envs, strict=True)):
            load = partial(StepWorker.load_state, state=state, first_env=first, trust=trust)
            self._idle(worker).call(load).result()

    def _idle(self, worker: int) -> Actor[Any, Any]:
        if self.unanswered(worker):
            raise HiddenStateError("workers collect ahead of the learner")
        return self._actors[worker]

    def detach(self) -> None:
        """Make workers of this process continue with copies of the policy."""
        for actor in self._actors:
            actor.call(StepWorker.detach).result()

    def _start(self, worker: int) -> Actor[Any, Any]:
        config = self._configs[worker]
        try:
            return self._processes.start(StepWorker, config)
        except (pickle.PicklingError, TypeError, AttributeError) as exc:
            raise CollectError(
                f"worker {worker}: environment {config.create_env_fn!r} or its policy cannot be sent: {exc}",
                hint="give a function that makes the environment",
            ) from exc

    def _prepare(self, worker: int) -> None:
        description: Description = self._actors[worker].call(StepWorker.describe).result()
        self._described[worker] = description
        if self._processes.shares_memory:
            with self._publishing:
                self._memories[worker] = self._shared(worker, description)

    def _write_off(self, worker: int) -> str:
        lost = self._described[worker].num_envs
        self.lost_episodes += lost
        self._memories[worker] = self._sent_weights[worker] = None
        return f"and its unfinished episodes are lost ({lost})"

    def _tasks_after_death(self, worker: int, unanswered: Sequence[StepTask]) -> Sequence[StepTask]:
        first, *others = unanswered
        tasks = (replace(first, session=self._new_session()), *others)
        return [self._with_weights(worker, task) for task in tasks]

    def _shared(self, worker: int, description: Description) -> SharedSteps:
        length = self._length_of(worker, description)
        layout = MemoryLayout(description, length, self._slots, len(self._weights.packed))
        memory = SharedSteps(layout)
        try:
            memory.put_weights(self._weights)
            self._actors[worker].call(partial(StepWorker.share, layout=layout, path=memory.path)).result()
        finally:
            memory.unlink()
        return memory

    def _with_weights(self, worker: int, task: StepTask) -> StepTask:
        """Return a task with the weights if they are new to the worker and not in shared memory."""
        weights = self._weights  # read once: another thread may publish meanwhile
        is_new = self._memories[worker] is None and self._sent_weights[worker] is not weights
        self._sent_weights[worker] = weights
        return replace(task, weights=weights if is_new else None)
