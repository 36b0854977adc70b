"""Pool of workers that return the steps they make, through shared memory where they run on this machine."""

import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rlx.collector.rollout.steps import Steps
from rlx.collector.worker.pool import WorkerPool
from rlx.collector.worker.shared_steps import Description, MemoryLayout, Remainder, SharedSteps, Weights
from rlx.collector.worker.step_worker import Collect, Describe, Detach, ShareMemory, StepTask, StepWorker, WorkerConfig
from rlx.engine.actor import Actor, Actors
from rlx.errors import CollectError


class StepResult(NamedTuple):
    """The steps of one task.

    Args:
        worker: its number.
        task: which; of another session than it was submitted with if the worker has been replaced.
        steps: valid until the worker is given as many more tasks as there are slots.
    """

    worker: int
    task: StepTask
    steps: Steps


class StepPool(WorkerPool[Collect]):
    """Pool of ``StepWorker``.

    Args:
        actors: what starts their processes.
        configs: the config of each.
        length_of: returns how many steps of each of its environments, at most, a worker will be asked for.
        slots: tasks of a worker that may be unanswered at once.
        weights: of the policy.
        new_session: returns the number of a new session for a replacement.

    Attributes:
        descriptions: of each worker's environment.
        lost_episodes: that ran in workers that died.

    Raises:
        CollectError: a worker's environment or policy cannot be created.
        WorkerLostError: a worker died again and again.
        DiskFullError: no space is left for shared memory.
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
        self._submit(worker, self._collect(worker, task, slot))

    def next(self) -> StepResult:
        """Wait for the steps of the first worker that has finished a task.

        Raises:
            CollectError: its environment or policy failed.
            WorkerLostError: it died again and again.
        """
        worker, call, value = self._next_answer()
        if isinstance(value, Remainder):
            memory = self._memories[worker]
            if memory is None:
                raise RuntimeError("steps in shared memory of a worker that shares none")
            value = memory.get(call.slot, value)
        return StepResult(worker, call.task, value)

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

    def detach(self) -> None:
        """Make workers of this process continue with copies of the policy."""
        for actor in self._actors:
            actor.call(Detach()).result()

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
        description: Description = self._actors[worker].call(Describe()).result()
        self._described[worker] = description
        if self._processes.shares_memory:
            with self._publishing:
                self._memories[worker] = self._shared(worker, description)

    def _write_off(self, worker: int) -> str:
        lost = self._described[worker].num_envs
        self.lost_episodes += lost
        self._memories[worker] = self._sent_weights[worker] = None
        return f"and its unfinished episodes are lost ({lost})"

    def _tasks_after_death(self, worker: int, unanswered: Sequence[Collect]) -> Sequence[Collect]:
        first, *others = unanswered
        renewed = replace(first, task=replace(first.task, session=self._new_session()))
        return [self._collect(worker, call.task, call.slot) for call in (renewed, *others)]

    def _shared(self, worker: int, description: Description) -> SharedSteps:
        length = self._length_of(worker, description)
        layout = MemoryLayout(description, length, self._slots, len(self._weights.packed))
        memory = SharedSteps(layout)
        try:
            memory.put_weights(self._weights)
            self._actors[worker].call(ShareMemory(memory.path, layout)).result()
        finally:
            memory.unlink()
        return memory

    def _collect(self, worker: int, task: StepTask, slot: int) -> Collect:
        """Return the message of a task; with the weights if they are new to the worker and not in shared memory."""
        weights = self._weights  # read once: another thread may publish meanwhile
        is_new = self._memories[worker] is None and self._sent_weights[worker] is not weights
        self._sent_weights[worker] = weights
        return Collect(task, slot, weights if is_new else None)
