"""Worker pool: starts worker processes, feeds them tasks, and replaces those that die, by one rule."""

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from rlx.engine.actor import Actor, ActorDiedError
from rlx.errors import CollectError, WorkerLostError

logger = logging.getLogger(__name__)
MAX_DEATHS = 3
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Call(Generic[T]):
    """A task that was sent to a worker, and its answer to come."""

    task: T
    answer: "Future[Any]"


class Answer(NamedTuple, Generic[T]):
    """The answer of a worker to one of its tasks."""

    worker: int
    task: T
    value: Any


class WorkerPool(ABC, Generic[T]):
    """Workers in actors, numbered from 0; each answers its tasks in the order in which they were submitted.

    A worker dies if its process ends, calls ``sys.exit``, or hangs for longer than the actors' step timeout. Then a
    warning says so and a replacement takes over. A worker that dies ``MAX_DEATHS`` times without progress ends the run.
    Only results that are kept count as progress.

    Args:
        count: number of workers.

    Raises:
        CollectError: a worker's environment or policy cannot be created.
        WorkerLostError: a worker died again and again.
    """

    def __init__(self, count: int) -> None:
        self._deaths = Counter[int]()
        self._done: SimpleQueue[tuple[int, _Call[T]]] = SimpleQueue()
        self._calls: list[deque[_Call[T]]] = [deque() for _ in range(count)]
        # All processes start before the first one is waited for.
        self._actors = [self._start(worker) for worker in range(count)]
        for worker in range(count):
            self._wait_until_ready(worker)

    @abstractmethod
    def _start(self, worker: int) -> Actor[Any, Any]:
        """Start the process of a worker, the first one or a replacement; does not wait for it."""

    def _prepare(self, worker: int) -> None:
        """Prepare a worker whose process was started for its first task; raises ActorDiedError if it dies."""

    @abstractmethod
    def _write_off(self, worker: int) -> str:
        """Take back what was lost with a worker; return it in words for the warning."""

    @abstractmethod
    def _tasks_after_death(self, worker: int, unanswered: Sequence[T]) -> Sequence[T]:
        """Return the tasks for a replacement, given those that the dead worker left unanswered."""

    def made_progress(self, worker: int) -> None:
        """Reset the count of a worker's deaths: its results up to now are kept even if it dies."""
        self._deaths[worker] = 0

    def unanswered(self, worker: int) -> int:
        """Return how many tasks of a worker have no answer yet."""
        return len(self._calls[worker])

    def _submit(self, worker: int, task: T) -> None:
        """Add a task to those of a worker."""
        call = _Call(task, self._actors[worker].call(task))
        self._calls[worker].append(call)
        call.answer.add_done_callback(lambda _: self._done.put((worker, call)))

    def _next_answer(self) -> Answer[T]:
        """Wait for the next answer of any worker.

        Raises:
            CollectError: its environment or policy failed.
            WorkerLostError: it died again and again.
        """
        while True:
            worker, call = self._done.get()
            calls = self._calls[worker]
            if not calls or calls[0] is not call:
                continue  # of a process that was replaced: its tasks were submitted again
            try:
                value = call.answer.result()
            except ActorDiedError as death:
                self._replace(worker, death)
                continue
            calls.popleft()
            return Answer(worker, call.task, value)

    def _answers_to(self, tasks: Mapping[int, T]) -> dict[int, Any]:
        """Return the answers, by worker, of workers that have nothing else to do to one task each."""
        for worker, task in tasks.items():
            self._submit(worker, task)
        answers = dict[int, Any]()
        while len(answers) < len(tasks):
            answer = self._next_answer()
            answers[answer.worker] = answer.value
        return {worker: answers[worker] for worker in tasks}

    def _last_answers(self, workers: Sequence[int], task: T) -> list[tuple[int, Any]]:
        """Return all answers that workers still give, the last one to this task; none of those that died or failed."""
        for worker in workers:
            self._submit(worker, task)
        answers = []
        for worker in workers:
            for call in self._calls[worker]:
                error = call.answer.exception()
                if error is None:
                    answers.append((worker, call.answer.result()))
                elif call.task is task and not isinstance(error, ActorDiedError | CollectError):
                    raise error
        return answers

    def _replace(self, worker: int, death: ActorDiedError) -> None:
        unanswered = [call.task for call in self._calls[worker]]
        self._calls[worker].clear()
        self._count_death(worker, death, self._write_off(worker))
        self._actors[worker] = self._start(worker)
        self._wait_until_ready(worker)
        for task in self._tasks_after_death(worker, unanswered):
            self._submit(worker, task)

    def _wait_until_ready(self, worker: int) -> None:
        while True:
            try:
                self._prepare(worker)
            except ActorDiedError as death:
                self._count_death(worker, death, "before its first step")
                self._actors[worker] = self._start(worker)
            else:
                return

    def _count_death(self, worker: int, death: ActorDiedError, lost: str) -> None:
        self._deaths[worker] += 1
        if self._deaths[worker] >= MAX_DEATHS:
            raise WorkerLostError(
                f"worker {worker} died {self._deaths[worker]} times without progress, the last time so: {death}",
                hint="its environment or policy ends the process or hangs; or memory is short: use fewer workers",
            ) from death
        logger.warning("worker %d died (%s): another takes its place, %s", worker, death, lost)
