"""Pools of worker processes: one rule starts and replaces workers; ``ShardPool`` has them write shards."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from rlx.collector.rollout.episodes import StepLayout
from rlx.collector.worker.shard_worker import Describe, FindLayout, ShardWorkerConfig, UnitResult, WorkUnit
from rlx.engine.actor import Actor, ActorDiedError
from rlx.errors import CollectError, WorkerLostError
from rlx.manifest import ShardRecord
from rlx.store.writer import ShardFormat
from rlx.wording import plural

logger = logging.getLogger(__name__)
MAX_DEATHS = 3
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Call(Generic[T]):
    """A task that was sent to a worker, and its answer to come."""

    task: T
    answer: Future[Any]


class WorkerPool(ABC, Generic[T]):
    """Workers in actors, numbered from 0; each answers its tasks in the order in which they were submitted.

    A worker dies if its process ends, calls ``sys.exit``, or hangs for longer than the actors' step timeout. Then a
    warning says so and a replacement takes over. A worker that dies ``MAX_DEATHS`` times without progress ends the run.
    Only results that are kept count as progress.
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
        """Subtract the losses of a dead worker; return them in words for the warning."""

    @abstractmethod
    def _tasks_after_death(self, worker: int, unanswered: Sequence[T]) -> Sequence[T]:
        """Return the tasks for a replacement, given those that the dead worker left unanswered."""

    def made_progress(self, worker: int) -> None:
        """Reset the count of a worker's deaths: its results up to now are kept even if it dies."""
        self._deaths[worker] = 0

    def unanswered(self, worker: int) -> int:
        """Return the number of unanswered tasks of a worker."""
        return len(self._calls[worker])

    def _submit(self, worker: int, task: T) -> None:
        call = _Call(task, self._actors[worker].call(task))
        self._calls[worker].append(call)
        call.answer.add_done_callback(lambda _: self._done.put((worker, call)))

    def _next_answer(self) -> tuple[int, T, Any]:
        """Wait for the next answer; return the worker, its task and the answer."""
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
            return worker, call.task, value

    def _answers_to(self, tasks: Mapping[int, T]) -> dict[int, Any]:
        """Return the results, by worker, of one task for each idle worker."""
        for worker, task in tasks.items():
            self._submit(worker, task)
        answers = dict[int, Any]()
        while len(answers) < len(tasks):
            worker, _, value = self._next_answer()
            answers[worker] = value
        return {worker: answers[worker] for worker in tasks}

    def _last_answers(self, workers: Sequence[int], task: T) -> list[tuple[int, Any]]:
        """Return the remaining results of workers up to this task; none of dead or failed ones."""
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
        logger.warning("worker %d died (%s) and is replaced, %s", worker, death, lost)


ShardTask = Describe | ShardWorkerConfig | FindLayout | ShardFormat | WorkUnit | None
ShardActor = Actor[ShardTask, Any]
# Of every environment: enough that asking costs nothing, and soon done when Ctrl-C is pressed.
_UNIT_STEPS = 512


@dataclass(slots=True)
class RemainingBudget:
    """The remaining budget of the workers that share it: steps, or episodes where these are counted."""

    steps: int = 0
    episodes: int | None = None


class Run(Protocol):
    """The run that the workers collect for."""

    def start(self, worker: int) -> ShardActor:
        """Start the process of a worker, new or as a replacement."""

    def config(self, worker: int, episodes: int) -> ShardWorkerConfig:
        """Return how a started worker begins; ``episodes`` is the number of its episodes already listed."""

    def recover(self, worker: int, name: str) -> ShardRecord | None:
        """Write the shard that a dead worker had begun, of its finished episodes; None if it had none."""

    def decide(self, layouts: Sequence[StepLayout]) -> ShardFormat:
        """Return how shards of steps like these are written."""

    def shard(self, worker: int, number: int) -> str:
        """Return name of a worker's shard; they are numbered from 0 for each."""

    def commit(self, worker: int, record: ShardRecord) -> None:
        """List a shard."""

    def remark(self, remarks: Mapping[str, int]) -> None:
        """Add remarks on what environments gave, with their numbers of steps."""

    def advance(self, steps: int, episodes: int) -> None:
        """Report collected steps and episodes; negative numbers of those that were lost."""


@dataclass(slots=True)
class _State:
    """The state of a worker: its shards, the steps and episodes that are in no listed shard, and its work unit."""

    number: int
    budget: RemainingBudget
    shards: int = 0
    listed_episodes: int = 0
    steps: int = 0
    episodes: int = 0
    is_done: bool = False
    unit: WorkUnit = field(default_factory=lambda: WorkUnit("", 0))


class ShardPool(WorkerPool[ShardTask]):
    """Pool of ``ShardWorker`` that collects until its budgets are spent.

    Args:
        budgets: the budget of each worker; some may share one.
    """

    def __init__(self, run: Run, budgets: Sequence[RemainingBudget], num_envs: int) -> None:
        self._run = run
        self._num_envs = num_envs
        self._states = [_State(number, budget) for number, budget in enumerate(budgets)]
        self._has_format = False
        super().__init__(len(budgets))

    def collect(self) -> None:
        """Collect everything.

        If an environment or a policy fails, or Ctrl-C is pressed, the episodes that have ended are listed first.
        """
        try:
            for state in self._states:
                self._reserve(state)
            self._agree_on_format()
            for state in self._states:
                self._submit(state.number, state.unit)
            while not all(state.is_done for state in self._states):
                worker, _, result = self._next_answer()
                self._take(self._states[worker], result)
        except (CollectError, KeyboardInterrupt):
            self._list_finished_episodes()
            raise

    def _agree_on_format(self) -> None:
        probing = [state for state in self._states if state.unit.steps and state.unit.episodes != 0]
        layouts = self._answers_to({state.number: FindLayout(state.unit.steps) for state in probing})
        shards = self._run.decide(list(layouts.values()))
        self._answers_to({state.number: shards for state in self._states})
        self._has_format = True

    def _start(self, worker: int) -> ShardActor:
        return self._run.start(worker)

    def _prepare(self, worker: int) -> None:
        self._actors[worker].call(self._run.config(worker, self._states[worker].listed_episodes)).result()

    def _write_off(self, worker: int) -> str:
        state = self._states[worker]
        lost = "and its unfinished episodes are collected again"
        if (record := self._run.recover(worker, self._run.shard(worker, state.shards))) is not None:
            self._list(state, record)
            self.made_progress(worker)
            lost = f"with {plural(record.trajectories, 'finished episode')} of it kept, {lost}"
        steps, episodes = state.steps, state.episodes
        state.steps = state.episodes = 0
        if self._has_format:
            self._run.advance(-steps, -episodes)
            self._return(state, -steps, -episodes)
            state.unit = WorkUnit("", 0)
        return lost

    def _tasks_after_death(self, worker: int, unanswered: Sequence[ShardTask]) -> Sequence[ShardTask]:
        if not self._has_format:
            return unanswered
        self._reserve(self._states[worker])
        return [self._states[worker].unit]

    def _reserve(self, state: _State) -> None:
        state.unit = unit = self._next_unit(state)
        if unit.episodes is None:
            state.budget.steps -= unit.steps
        elif state.budget.episodes is not None:
            state.budget.episodes -= unit.episodes

    def _next_unit(self, state: _State) -> WorkUnit:
        """Return a work unit small enough to leave work for the others; the last worker gets the rest."""
        budget, n = state.budget, self._num_envs
        most = _UNIT_STEPS * n
        name = self._run.shard(state.number, state.shards)
        others = [other for other in self._states if other.budget is budget and other is not state]
        sharers = 1 + sum(not other.unit.is_last for other in others)
        if budget.episodes is not None:
            if sharers == 1 or budget.episodes == 0:
                return WorkUnit(name, most, budget.episodes, is_last=True)
            return WorkUnit(name, most, max(1, budget.episodes // (2 * sharers)))
        if sharers == 1:
            steps = min(most, budget.steps)
            return WorkUnit(name, steps, is_last=steps == budget.steps)
        if budget.steps < n:
            return WorkUnit(name, 0, is_last=True)
        return WorkUnit(name, max(n, min(most, budget.steps // (2 * sharers)) // n * n))

    def _take(self, state: _State, result: UnitResult) -> None:
        state.steps += result.steps
        state.episodes += result.episodes
        self._return(state, result.steps, result.episodes)
        self._run.advance(result.steps, result.episodes)
        self._run.remark(result.remarks)
        if result.record is not None:
            self._list(state, result.record)
            self.made_progress(state.number)
        state.is_done = result.is_last
        if not state.is_done:
            self._reserve(state)
            self._submit(state.number, state.unit)

    def _return(self, state: _State, steps: int, episodes: int) -> None:
        if state.unit.episodes is None:
            state.budget.steps += state.unit.steps - steps
        elif state.budget.episodes is not None:
            state.budget.episodes += state.unit.episodes - episodes

    def _list(self, state: _State, record: ShardRecord) -> None:
        self._run.commit(state.number, record)
        state.shards += 1
        state.listed_episodes += record.trajectories
        state.steps -= record.steps
        state.episodes -= record.trajectories

    def _list_finished_episodes(self) -> None:
        working = [state.number for state in self._states if not state.is_done]
        for worker, answer in self._last_answers(working, None):
            if isinstance(answer, UnitResult) and answer.record is not None:
                self._list(self._states[worker], answer.record)
