"""Worker of a collection: steps its environments, and writes episodes into its own shards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Self

import numpy as np

from rlx.block import Block
from rlx.collector.environment.gym_env import EnvSource, open_environment
from rlx.collector.environment.space import schema_of
from rlx.collector.environment.vector import VectorEnvironment
from rlx.collector.policy.spec import PolicySpec, exploring, load_object
from rlx.collector.rollout.episodes import REWARDS, Ended, Episodes, StepLayout, first_of, join, layout_of, rewards_as
from rlx.collector.rollout.infos import InfoKeys, Infos
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import IS_INIT, Steps
from rlx.errors import CollectError
from rlx.files.lock import check_seen
from rlx.manifest import ShardRecord
from rlx.numbers import check_real, check_whole
from rlx.schema import Schema
from rlx.seeding import env_seeds, seeded
from rlx.store.dictionary import REFERENCE_ROWS
from rlx.store.journal import Journal
from rlx.store.layout import partial_directory
from rlx.store.writer import ShardFormat, train_dictionaries, write_shard

MakeBlock = Callable[[], Block]
# Few, so that steps made faster than they are written do not fill the memory.
_WAITING_BLOCKS = 8
_LOOK_S = 0.1


class _AbandonedError(Exception):
    """The shard is not to be written after all."""


class ShardThread:
    """Writer of one shard at a time; the dictionaries are made from the first rows of the first.

    Leaving the context abandons a shard that is not finished.

    Args:
        shards: how they are written.
        directory: returns a shard's directory by its name; a finished shard is not listed yet.
    """

    def __init__(self, shards: ShardFormat, directory: Callable[[str], Path]) -> None:
        self._format = shards
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "shard writer")
        self._blocks: Queue[MakeBlock | _AbandonedError | None] = Queue(_WAITING_BLOCKS)
        self._shard: Future[ShardRecord] | None = None
        self._is_left = False

    @property
    def is_open(self) -> bool:
        """Whether a shard has been begun."""
        return self._shard is not None

    def append(self, name: str, make: MakeBlock) -> None:
        """Add a block to the open shard, or begin one of this name; the thread makes the block."""
        if self._shard is None:
            self._shard = self._thread.submit(self._write, name)
        self._put(self._shard, make)

    def finish(self) -> ShardRecord:
        """Return the open shard, whole in its directory."""
        if self._shard is None:
            raise ValueError("no shard is open")
        self._put(self._shard, None)
        record = self._shard.result()
        self._shard = None
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Ctrl-C may have come as the thread began: it runs then, and its shard is unknown.
        self._is_left = True
        if self._shard is not None:
            self._put(self._shard, _AbandonedError(), wants_error=False)
        self._thread.shutdown()

    def _put(
        self, shard: Future[ShardRecord], item: MakeBlock | _AbandonedError | None, *, wants_error: bool = True
    ) -> None:
        # Producers that wait for the queue must learn that its consumer has ended.
        while not shard.done():
            try:
                self._blocks.put(item, timeout=_LOOK_S)
            except Full:
                continue
            return
        if wants_error:
            shard.result()

    def _write(self, name: str) -> ShardRecord:
        blocks = self._taken()
        head: list[Block] = []
        if self._format.coded() and not self._format.dictionaries:
            head = _first_rows(blocks)
            self._format = replace(self._format, dictionaries=train_dictionaries(head, self._format))
        return write_shard(self._directory(name), name, self._format, chain(head, blocks))

    def _taken(self) -> Iterator[Block]:
        while (item := self._next()) is not None:
            if isinstance(item, _AbandonedError):
                raise item
            yield item()

    def _next(self) -> MakeBlock | _AbandonedError | None:
        while True:
            try:
                return self._blocks.get(timeout=_LOOK_S)
            except Empty:
                if self._is_left:
                    return _AbandonedError()


def _first_rows(blocks: Iterator[Block]) -> list[Block]:
    head: list[Block] = []
    rows = 0
    for block in blocks:
        head.append(block)
        rows += block.steps
        if rows >= REFERENCE_ROWS:
            break
    return head


# More than any machine runs, so that mistyped numbers are refused at once.
_MAX_ENVS, _MAX_WORKERS = 2**16, 2**12
# Long enough that a step costs little more than the environment takes; short enough that memory stays small.
CHUNK_STEPS = 64
# A finished episode is in the journal within 0.1 s: it waits half of that for its part of a chunk to end, and half for
# the next record. One that ended since then is lost with a process that ends suddenly: to keep each at once would
# double the work of short ones.
_KEPT_EVERY_S = 0.05
# Of the worker that replaces another: few at first, as the steps of a chunk are lost with its process, too.
CAREFUL_STEPS = 4
# Episodes are written together: a block costs as much as tens of steps, and the thread that writes many small ones
# takes the interpreter's lock from the one that collects.
_BLOCK_BYTES = 8 << 20
_BLOCK_STEPS_OF_TEXT = 512  # whose bytes are not known


class Session:
    """Source of the episodes of some environments, in the order in which they end.

    Equal seeds give equal episodes if environment and policy are deterministic.

    Args:
        number: of the session: a resumed run must not repeat itself.
        first_env: number of the first environment, where others have the numbers before it.
        chunk_steps: steps of each environment at first; twice as many every time, up to ``CHUNK_STEPS``.

    Attributes:
        is_awaited: whether parts are to end soon though no episode has ended, as earlier ones wait to be kept.
    """

    is_awaited = False

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: PolicySpec,
        seed: int,
        number: int = 0,
        first_env: int = 0,
        *,
        drop: Sequence[str] = (),
        info_keys: InfoKeys = (),
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        n = environment.num_envs
        self._chunk_steps = chunk_steps
        self._environment = environment
        self._num_envs = n
        self._policy = policy.policy(environment, env_seeds(seed, number, n, 1, first_env))
        self._exploration = "DETERMINISTIC" if policy.deterministic else "RANDOM"
        # A policy's draws from global generators follow from the seed; random actions have generators of their own.
        self._is_seeded = not policy.is_random
        self._chunks = np.random.SeedSequence(seed, spawn_key=(number, 2, first_env))
        self._infos = Infos(n, info_keys)
        seeds = env_seeds(seed, number, n, 0, first_env)
        # Rewards as the environment gives them: how they are stored is decided when some have been seen.
        self._rollout = Rollout(environment, seeds, drop=drop, infos=self._infos, reward="float64", fails_late=True)
        self._episodes = Episodes(n)
        self._looked: Steps | None = None
        self._due = 0.0  # when the next episode that ends is kept at once

    @property
    def can_pause(self) -> bool:
        """Whether parts can end before their chunk."""
        return self._rollout.can_pause

    @property
    def running_steps(self) -> int:
        """Steps of episodes that have not ended."""
        return self._episodes.running_steps

    def run(self, most_steps: int, *, is_last: bool) -> Iterator[tuple[list[Ended], int]]:
        """Step for one work unit; yield the episodes that ended, and the number of steps.

        It is done in parts, so that whoever keeps the episodes has them soon after they end. Equal seeds give the same
        work unit, but other parts.

        Args:
            most_steps: an upper limit, and at least the number of environments unless they are the last steps.
            is_last: whether this session may end with them: steps of some environments may then be left out to meet the
                limit exactly.
        """
        looked, self._looked = self._looked, None
        for steps in self._parts(most_steps, self._is_due) if looked is None else [looked]:
            del steps.step[IS_INIT]  # follows from where episodes begin
            ended = self._episodes.add(steps, most_steps if is_last else None)
            made = min(most_steps, int(steps.counts.sum()))
            most_steps -= made
            yield ended, made
            self._due = time.perf_counter() + _KEPT_EVERY_S

    def look(self, most_steps: int) -> StepLayout:
        """Return the layout of up to ``most_steps`` first steps, which are kept for the next ``run``."""
        with contextlib.closing(self._parts(most_steps, None)) as parts:
            self._looked = next(parts)  # all, or those before a failure
        return layout_of(self._looked, self._environment, self._infos.seen)

    def _is_due(self) -> bool:
        wanted = self.is_awaited or self._rollout.has_ended
        return wanted and self._rollout.can_pause and time.perf_counter() >= self._due

    def _parts(self, most_steps: int, should_stop: Callable[[], bool] | None) -> Generator[Steps]:
        """Yield the steps of a chunk, whose parts end where ``should_stop`` says."""
        length = min(self._chunk_steps, max(1, most_steps // self._num_envs))
        self._chunk_steps = min(CHUNK_STEPS, 2 * self._chunk_steps)
        made = np.zeros(self._num_envs, np.int64)
        with contextlib.ExitStack() as stack:
            if self._is_seeded:
                (chunk,) = self._chunks.spawn(1)
                stack.enter_context(seeded(int(chunk.generate_state(1)[0])))
                stack.enter_context(exploring(self._exploration))
            while made.max() < length:
                steps = self._rollout.run(self._policy, length - int(made.max()), should_stop=should_stop)
                made += steps.counts
                yield steps

    def cut(self) -> list[Ended]:
        """Return the running episodes, flagged truncated."""
        return self._episodes.cut()


@dataclass(frozen=True, slots=True)
class Budget:
    """The amount to collect: an exact number of steps, or of episodes."""

    steps: int | None = None
    episodes: int | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """The arguments of a collection; see ``rlx.collect``.

    Args:
        budget: the amount to collect, over all sessions.
        shard_steps: a shard ends when its finished and running episodes have this many steps.
        reward: dtype of rewards; if not given, float64 where float32 would change one of the first steps', else
            float32, and a later reward that does not fit is an error.
    """

    environment: EnvSource = "ALE/Pong-v5"
    budget: Budget = Budget(steps=10_000)
    num_envs: int = 4
    policy: PolicySpec = PolicySpec()  # noqa: RUF009  (it is frozen)
    seed: int = 0
    shard_steps: int = 100_000
    resume: bool = False
    workers: int = 1
    is_sync: bool = True
    drop: Sequence[str] = ()
    info_keys: InfoKeys = ()
    reward: str | None = None
    step_timeout: float | None = None
    autoreset: str | None = None

    def __post_init__(self) -> None:
        if (self.budget.steps is None) == (self.budget.episodes is None):
            raise CollectError("expected a number of steps or of episodes, and not both")
        for name, number in (("steps", self.budget.steps), ("episodes", self.budget.episodes)):
            if number is not None:
                check_whole(name, number, error=CollectError)
        check_whole("envs", self.num_envs, 1, _MAX_ENVS, error=CollectError)
        check_whole("workers", self.workers, 1, _MAX_WORKERS, error=CollectError)
        check_whole("shard_steps", self.shard_steps, error=CollectError)
        check_whole("seed", self.seed, 0, error=CollectError)
        if self.step_timeout is not None:
            check_real("step_timeout", self.step_timeout, above=0, error=CollectError)
        if self.reward not in (None, *REWARDS):
            raise CollectError(f"rewards of dtype {self.reward!r}: expected {' or '.join(REWARDS)}")


@dataclass(frozen=True, slots=True)
class ShardWorkerConfig:
    """A task by which a worker begins; its result is None.

    Args:
        journal: directory for the journals of its shards, from which their finished episodes are written if its process
            ends; None where it works in the process of the writer.
        chunk_steps: see ``Session``.
        episodes: numbers of its episodes: the first, and how far the next is.
        format: how they are written; given as a task of its own, after a ``FindLayout``, if it is not known yet.
    """

    session: int
    worker: int
    episodes: tuple[int, int]
    dataset: Path
    writer: int
    format: ShardFormat | None
    journal: Path | None = None
    chunk_steps: int = CHUNK_STEPS


@dataclass(frozen=True, slots=True)
class Describe:
    """A task whose result is the description of the worker's environment."""


@dataclass(frozen=True, slots=True)
class EnvironmentDescription:
    """The description of an environment in a manifest; see ``VectorEnvironment``."""

    name: str
    num_envs: int
    settings: Mapping[str, Any]
    spec: Mapping[str, Any]
    schema: Schema


@dataclass(frozen=True, slots=True)
class FindLayout:
    """A task whose result is the layout of the first steps, which are kept for the first work unit."""

    steps: int


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A work unit: the amount that a worker may collect before it asks again.

    Args:
        shard: name of its shard, unless one is open.
        steps: an upper limit.
        episodes: an upper limit, where episodes are counted.
        is_last: whether its shard ends after it; if steps are counted, including the running episodes.
    """

    shard: str
    steps: int
    episodes: int | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The result of a work unit.

    Args:
        record: the shard, if it ended.
        is_last: whether the worker has finished.
        remarks: number of steps by remark on what the environment gave, since the last result.
    """

    steps: int
    episodes: int
    record: ShardRecord | None
    is_last: bool
    remarks: Mapping[str, int] = field(default_factory=dict)


class ShardWorker:
    """Worker that opens an environment, is told how to begin, and processes work units; before its first it may
    determine the layout of steps.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._home = Path.cwd()
        self._shards: ShardThread | None = None
        self._journal: Journal | None = None
        self._environment = opened(collection)

    def _begin(self, config: ShardWorkerConfig) -> None:
        self._config, here = config, self._collection
        check_seen(config.dataset)
        first_env = config.worker * self._environment.num_envs
        with contextlib.chdir(self._home):  # which the environment may have changed, and a policy's file is relative to
            self._session = Session(
                *(self._environment, here.policy, here.seed, config.session, first_env),
                drop=here.drop,
                info_keys=here.info_keys,
                chunk_steps=config.chunk_steps,
            )
        if config.format is not None:
            self._write(config.format)
        self._next_episode, self._stride = config.episodes
        self._waiting: list[Ended] = []  # beyond the work unit's limit
        self._unwritten: list[Ended] = []
        self._not_kept, self._kept_at = 0, 0.0  # the last of these that the journal lacks; when it got some
        self._unwritten_steps = 0
        self._shard_steps = 0  # those of unwritten episodes among them

    def __call__(
        self, task: Describe | ShardWorkerConfig | FindLayout | ShardFormat | WorkUnit | None
    ) -> EnvironmentDescription | StepLayout | UnitResult | None:
        """Describe the environment, begin, determine the layout of steps, receive the format of shards, or collect
        until a work unit is spent or the shard full.

        Args:
            task: the task; None ends the shard early, with the episodes that have ended.
        """
        if isinstance(task, Describe):
            env = self._environment
            schema = schema_of(env.observation_space, env.action_space)
            return EnvironmentDescription(env.name, env.num_envs, env.settings, env.spec, schema)
        if isinstance(task, ShardWorkerConfig):
            self._begin(task)
            return None
        if isinstance(task, FindLayout):
            return self._session.look(task.steps)
        if isinstance(task, ShardFormat):
            if self._shards is None:  # one that took the place of another knows
                self._write(task)
            return None
        if self._shards is None:
            return UnitResult(0, 0, None, is_last=True)
        return self._collect(task, self._shards)

    def _write(self, shards: ShardFormat) -> None:
        self._schema = shards.schema
        has_text = any(field.is_text for field in self._schema.fields.values())
        self._block_steps = _BLOCK_STEPS_OF_TEXT if has_text else max(1, _BLOCK_BYTES // self._schema.row_bytes)
        config = self._config
        self._shards = ShardThread(shards, lambda name: partial_directory(config.dataset, name, config.writer))
        self._shards.__enter__()

    def _collect(self, unit: WorkUnit | None, shards: ShardThread) -> UnitResult:
        if unit is None:
            return UnitResult(0, 0, self._finish(shards) if self._shard_steps else None, is_last=True)
        steps, episodes = 0, self._append(unit, shards, [], 0)
        try:
            while not self._is_full() and not self._is_spent(unit, steps, episodes):
                is_last = unit.is_last and unit.episodes is None
                for ended, made in self._session.run(unit.steps - steps, is_last=is_last):
                    steps += made
                    episodes += self._append(unit, shards, ended, episodes)
        except BaseException:
            self._keep()
            raise
        is_last = unit.is_last and self._has_all(unit, steps, episodes)
        if is_last and unit.episodes is None:
            episodes += self._append(unit, shards, self._session.cut(), episodes)
        self._keep()
        ends = self._is_full() or (is_last and self._shard_steps > 0)
        record = self._finish(shards) if ends else None
        return UnitResult(steps, episodes, record, is_last, self._environment.intake.drain())

    def close(self) -> None:
        """Close the environment, and drop an open shard."""
        if self._shards is not None:
            self._shards.__exit__(None, None, None)
        if self._journal is not None:
            self._journal.close()
        self._environment.close()

    def _is_full(self) -> bool:
        steps = self._shard_steps + self._session.running_steps
        return self._shard_steps > 0 and steps >= self._collection.shard_steps

    def _is_spent(self, unit: WorkUnit, steps: int, episodes: int) -> bool:
        # Only the last work unit may be less than a step of every environment: it leaves some steps out.
        least = 1 if unit.is_last and unit.episodes is None else self._environment.num_envs
        return self._has_all(unit, steps, episodes) or unit.steps - steps < least

    def _has_all(self, unit: WorkUnit, steps: int, episodes: int) -> bool:
        return steps >= unit.steps if unit.episodes is None else episodes >= unit.episodes

    def _append(self, unit: WorkUnit, shards: ShardThread, ended: Sequence[Ended], before: int) -> int:
        """Write episodes into the shard up to the limit of the work unit; the others wait for the next one."""
        self._waiting += ended
        ready, self._waiting = self._waiting, []
        if unit.episodes is not None:
            ready, self._waiting = first_of(ready, unit.episodes - before)
        dtype = self._schema["reward"].numpy_dtype
        rounds = self._collection.reward == "float32"
        for one in ready:
            one.next["reward"] = rewards_as(dtype, one.next["reward"], rounds=rounds)
        self._unwritten += ready
        self._shard = unit.shard
        steps = sum(one.steps for one in ready)
        self._unwritten_steps, self._shard_steps = self._unwritten_steps + steps, self._shard_steps + steps
        if self._config.journal is not None:
            self._not_kept += len(ready)
        if not self._session.can_pause or time.perf_counter() >= self._kept_at + _KEPT_EVERY_S:
            self._keep()
        self._session.is_awaited = self._not_kept > 0
        if self._unwritten_steps >= self._block_steps:
            self._flush(shards)
        return sum(len(one.lengths) for one in ready)

    def _keep(self) -> None:
        """Add the episodes that it lacks to the shard's journal."""
        if not self._not_kept or self._config.journal is None:
            return
        if self._journal is None:
            self._journal = Journal(self._config.journal / self._shard)
        kept = len(self._unwritten) - self._not_kept
        first = self._next_episode + sum(len(one.lengths) for one in self._unwritten[:kept]) * self._stride
        self._journal.append(join(self._unwritten[kept:], self._schema, first, self._stride))
        self._not_kept, self._kept_at = 0, time.perf_counter()

    def _flush(self, shards: ShardThread) -> None:
        self._keep()
        ended, self._unwritten, self._unwritten_steps = self._unwritten, [], 0
        shards.append(self._shard, partial(join, ended, self._schema, self._next_episode, self._stride))
        self._next_episode += sum(len(one.lengths) for one in ended) * self._stride

    def _finish(self, shards: ShardThread) -> ShardRecord:
        if self._unwritten:
            self._flush(shards)
        self._shard_steps = 0
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        return shards.finish()


def opened(collection: Collection) -> VectorEnvironment:
    """Return the environment of a collection; for ``module:name``, the result of that object."""
    source = collection.environment
    if isinstance(source, str) and ":" in source:
        source = load_object(source)
    return open_environment(source, collection.num_envs, collection.autoreset)
