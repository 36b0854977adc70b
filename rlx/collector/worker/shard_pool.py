"""Pool of workers that write shards: divides a budget of steps or episodes into work units."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlx.collector.rollout.episodes import Layout
from rlx.collector.worker.pool import WorkerPool
from rlx.collector.worker.shard_worker import FindLayout, UnitResult, WorkUnit
from rlx.engine.actor import Actor
from rlx.errors import CollectError
from rlx.manifest import ShardRecord
from rlx.store.writer import ShardFormat

ShardTask = FindLayout | ShardFormat | WorkUnit | None
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

    def start(self, worker: int, episodes: int) -> ShardActor:
        """Start a worker, new or as a replacement; ``episodes`` is the number of its episodes already listed."""

    def decide(self, layouts: Sequence[Layout]) -> ShardFormat:
        """Return how shards of steps like these are written."""

    def shard(self, worker: int, number: int) -> str:
        """Return name of a worker's shard; they are numbered from 0 for each."""

    def commit(self, worker: int, record: ShardRecord) -> None:
        """List a shard."""

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
        run: the run to collect for.
        budgets: the budget of each worker; some may share one.
        num_envs: environments of each worker.
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

        Raises:
            CollectError: an environment or a policy failed.
            WorkerLostError: a worker dies again and again.
            DiskFullError: no space is left.
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
        """Find out what the first steps of all workers hold, so that all write the same fields."""
        probing = [state for state in self._states if state.unit.steps and state.unit.episodes != 0]
        layouts = self._answers_to({state.number: FindLayout(state.unit.steps) for state in probing})
        shards = self._run.decide(list(layouts.values()))
        self._answers_to({state.number: shards for state in self._states})
        self._has_format = True

    def _start(self, worker: int) -> ShardActor:
        return self._run.start(worker, self._states[worker].listed_episodes)

    def _write_off(self, worker: int) -> str:
        state = self._states[worker]
        steps, episodes = state.steps, state.episodes
        state.steps = state.episodes = 0
        if self._has_format:
            self._run.advance(-steps, -episodes)
            self._return(state, -steps, -episodes)
            state.unit = WorkUnit("", 0)
        return f"and the {steps} steps that it had made and that are in no finished shard are collected again"

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
        if result.record is not None:
            self._list(state, result.record)
            self.made_progress(state.number)
        state.is_done = result.is_last
        if not state.is_done:
            self._reserve(state)
            self._submit(state.number, state.unit)

    def _return(self, state: _State, steps: int, episodes: int) -> None:
        """Return the unused part of a worker's unit to its budget."""
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
