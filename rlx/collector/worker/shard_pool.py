"""Work units for the workers of a collection, and replacement of workers that die."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from rlx.collector.rollout.layout import Layout
from rlx.collector.worker.deaths import Deaths
from rlx.collector.worker.shard_worker import Lease, Look, Made
from rlx.engine.actor import Actor, ActorDiedError
from rlx.errors import CollectError
from rlx.manifest import ShardRecord
from rlx.store.writer import ShardFormat

CollectActor = Actor[Look | ShardFormat | Lease | None, Any]
# Of every environment: enough that asking costs nothing, and soon done when Ctrl-C is pressed.
_LEASE_STEPS = 512


@dataclass(slots=True)
class Pot:
    """The remaining budget of the workers that share it: steps, or episodes where these are counted."""

    steps: int = 0
    episodes: int | None = None


class Run(Protocol):
    """The run that the workers collect for."""

    def start(self, worker: int, episodes: int) -> CollectActor:
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
class _Place:
    """One of the workers: who works there, and what it made that is not listed yet."""

    number: int
    pot: Pot
    actor: CollectActor
    shards: int = 0
    listed_episodes: int = 0
    steps: int = 0
    episodes: int = 0
    is_done: bool = False
    lease: Lease = field(default_factory=lambda: Lease("", 0))


class Workers:
    """Worker pool that collects until its budgets are spent.

    Args:
        run: the run to collect for.
        pots: the budget of each worker; some may share one.
        num_envs: environments of each worker.
    """

    def __init__(self, run: Run, pots: Sequence[Pot], num_envs: int) -> None:
        self._run = run
        self._num_envs = num_envs
        self._deaths = Deaths()
        self._places = [_Place(number, pot, run.start(number, 0)) for number, pot in enumerate(pots)]
        self._answers: SimpleQueue[tuple[_Place, Future[Made]]] = SimpleQueue()

    def collect(self) -> None:
        """Collect everything.

        Where an environment or a policy fails, or Ctrl-C is pressed, the episodes that have ended are listed first.

        Raises:
            CollectError: an environment or a policy failed.
            WorkerLostError: a worker dies again and again.
            DiskFullError: no space is left.
        """
        try:
            for place in self._places:
                self._reserve(place)
            self._agree()
            for place in self._places:
                self._call(place)
            while not all(place.is_done for place in self._places):
                self._take(*self._answers.get())
        except (CollectError, KeyboardInterrupt):
            self._list_what_has_ended()
            raise

    def _agree(self) -> None:
        """Have all workers look what their first steps hold, so that all write the same fields."""
        looking = [place for place in self._places if place.lease.steps and place.lease.episodes != 0]
        layouts = self._answered([(place, Look(place.lease.steps)) for place in looking])
        shards = self._run.decide(layouts)
        self._answered([(place, shards) for place in self._places])

    def _answered(self, tasks: Sequence[tuple[_Place, Look | ShardFormat]]) -> list[Any]:
        """Return the answers of workers that have no work unit yet; a worker that dies is replaced."""
        answers = []
        for place, task, answer in [(place, task, place.actor.call(task)) for place, task in tasks]:
            while True:
                try:
                    answers.append(answer.result())
                    break
                except ActorDiedError as exc:
                    self._restart(place, exc)
                    answer = place.actor.call(task)
        return answers

    def _ask(self, place: _Place) -> None:
        self._reserve(place)
        self._call(place)

    def _reserve(self, place: _Place) -> None:
        place.lease = lease = self._lease(place)
        if lease.episodes is None:
            place.pot.steps -= lease.steps
        elif place.pot.episodes is not None:
            place.pot.episodes -= lease.episodes

    def _call(self, place: _Place) -> None:
        place.actor.call(place.lease).add_done_callback(lambda done: self._answers.put((place, done)))

    def _lease(self, place: _Place) -> Lease:
        """Return a work unit small enough to leave work for the others; the last worker gets the rest."""
        pot, n = place.pot, self._num_envs
        most = _LEASE_STEPS * n
        name = self._run.shard(place.number, place.shards)
        sharers = 1 + sum(other.pot is pot and other is not place and not other.lease.is_last for other in self._places)
        if pot.episodes is not None:
            if sharers == 1 or pot.episodes == 0:
                return Lease(name, most, pot.episodes, is_last=True)
            return Lease(name, most, max(1, pot.episodes // (2 * sharers)))
        if sharers == 1:
            steps = min(most, pot.steps)
            return Lease(name, steps, is_last=steps == pot.steps)
        if pot.steps < n:
            return Lease(name, 0, is_last=True)
        return Lease(name, max(n, min(most, pot.steps // (2 * sharers)) // n * n))

    def _take(self, place: _Place, answer: "Future[Made]") -> None:
        try:
            made = answer.result()
        except ActorDiedError as exc:
            self._replace(place, exc)
            return
        place.steps += made.steps
        place.episodes += made.episodes
        self._return(place, made.steps, made.episodes)
        self._run.advance(made.steps, made.episodes)
        if made.record is not None:
            self._list(place, made.record)
            self._deaths.made_progress(place.number)
        place.is_done = made.is_last
        if not place.is_done:
            self._ask(place)

    def _return(self, place: _Place, steps: int, episodes: int) -> None:
        """Return the unused part of a worker's unit to its budget."""
        if place.lease.episodes is None:
            place.pot.steps += place.lease.steps - steps
        elif place.pot.episodes is not None:
            place.pot.episodes += place.lease.episodes - episodes

    def _list(self, place: _Place, record: ShardRecord) -> None:
        self._run.commit(place.number, record)
        place.shards += 1
        place.listed_episodes += record.trajectories
        place.steps -= record.steps
        place.episodes -= record.trajectories

    def _replace(self, place: _Place, death: ActorDiedError) -> None:
        """Start a replacement of a worker that died, for everything that was not listed."""
        self._run.advance(-place.steps, -place.episodes)
        self._restart(place, death)
        self._return(place, -place.steps, -place.episodes)
        place.steps = place.episodes = 0
        place.lease = Lease("", 0)
        self._ask(place)

    def _restart(self, place: _Place, death: ActorDiedError) -> None:
        lost = f"and the {place.steps} steps that it had made and that are in no finished shard are collected again"
        self._deaths.add(place.number, death, lost)
        place.actor = self._run.start(place.number, place.listed_episodes)

    def _list_what_has_ended(self) -> None:
        lasts = [(place, place.actor.call(None)) for place in self._places if not place.is_done]
        for _, last in lasts:
            # Whoever has died, or failed even in this, has nothing to list.
            with suppress(ActorDiedError, CollectError):
                last.result()
        answers = []
        with suppress(Empty):
            while True:
                answers.append(self._answers.get_nowait())
        for place, answer in (*answers, *lasts):
            if answer.exception() is None and (record := answer.result().record) is not None:
                self._list(place, record)
