"""The DQN Replay Dataset and other logs of Dopamine's replay buffer: ``<Game>/<run>/replay_logs/``.

A shard holds the episodes that start in the file of its number, and continues in the next files for the rest
of the last one. So no trajectory crosses a shard, and every shard is a function of the files alone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.fields import NOT_A_ROW_PER_STEP, NOT_OF_STEPS, ExtraFields, RowType, expecting, not_taken_note
from rlx.formats.common.npy import NpyStream, gzipped, read_npy
from rlx.formats.common.provenance import noted_fields, read_notes_beside
from rlx.formats.common.source import MAX_BLOCK_STEPS
from rlx.formats.dopamine import (
    ACTION,
    ADD_COUNT,
    EPISODE_ENDS,
    FOLDER,
    LAYOUT,
    OBSERVATION,
    REWARD,
    SMALL_ARRAYS,
    SMALL_DTYPES,
    STORE,
    array_name,
    file_name,
)
from rlx.formats.dopamine.plan import Plan, Span, find_arrays, make_plan
from rlx.schema import Role, Schema


class RowReader:
    """Reader of rows of a run; fast if each call starts after the one before.

    A file is inflated again only to go back in it: Dopamine puts the oldest row into the last slot. Every file that was
    used is read to its end, to verify its checksum, by ``finish`` at the latest.

    Args:
        observation: dtype and shape of one observation; other files raise CorruptShardError.
        extras: the same for every extra column, by the name of its array.
    """

    def __init__(
        self, folder: Path, plan: Plan, observation: RowType, extras: Mapping[str, RowType] = MappingProxyType({})
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._kinds = {OBSERVATION: observation, **extras}
        self._streams: dict[str, _Opened] = {}
        self._columns: dict[tuple[int, str], NDArray[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._streams.values():
            opened.stream.close()

    def finish(self) -> None:
        """Read the rest of the last file of every array, so that its checksum is verified."""
        for opened in self._streams.values():
            opened.finish()

    def read_rows(self, name: str, start: int, out: NDArray[Any]) -> None:
        """Fill ``out`` [n, ...] with the rows of the observations, or of an extra column, from ``start`` on."""
        for file, slot, part in self._pieces(start, start + len(out)):
            stream = self._open(name, file, slot)
            stream.skip_to(slot)
            stream.read_into(out[part])

    def read_column(self, name: str, start: int, out: NDArray[Any]) -> None:
        """Fill ``out`` [n] with a small array's rows from ``start`` on."""
        for file, slot, part in self._pieces(start, start + len(out)):
            column = self._column(file, name)
            out[part] = column[slot : slot + part.stop - part.start]

    def empty(self, name: str, count: int) -> NDArray[Any]:
        """Return an uninitialised array for rows of the observations, or of an extra column."""
        dtype, shape = self._kinds[name]
        return np.empty((count, *shape), dtype)

    def is_blank(self, row: int) -> bool:
        """Return whether observation, action and reward of a row are zero."""
        action, reward = np.empty(1, np.int32), np.empty(1, np.float32)
        self.read_column(ACTION, row, action)
        self.read_column(REWARD, row, reward)
        return not (action.any() or reward.any() or self._observations(row, 1).any())

    def check_blank(self, start: int, stop: int) -> None:
        """Raise CorruptShardError unless the observations of the padding rows [start, stop) are all zero."""
        if self._observations(start, stop - start).any():
            path = self._path(self._plan.file_of(start), OBSERVATION)
            slot = start % self._plan.capacity
            raise CorruptShardError(f"{path}: expected zero padding from slot {slot} on, found an observation")

    def _observations(self, start: int, count: int) -> NDArray[Any]:
        out = self.empty(OBSERVATION, count)
        self.read_rows(OBSERVATION, start, out)
        return out

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, slice]]:
        """Yield file, first slot and slice of [start, stop) of every contiguous piece of these rows."""
        row = start
        while row < stop:
            file = self._plan.file_of(row)
            slot = row % self._plan.capacity
            end = min(stop, int(self._plan.add_counts[file]), row + self._plan.capacity - slot)
            yield file, slot, slice(row - start, end - start)
            row = end

    def _open(self, name: str, file: int, slot: int) -> NpyStream:
        before = self._streams.get(name)
        if before is not None and file == before.file and slot >= before.stream.row:
            return before.stream
        if before is not None:
            before.finish()
            before.stream.close()
        stream = gzipped(self._path(file, name))
        # A verified file need not be read to its end again.
        self._streams[name] = _Opened(stream, file, is_verified=before is not None and file == before.file)
        dtype, shape = self._kinds[name]
        expected = (self._plan.capacity, *shape)
        if stream.dtype != dtype or stream.shape != expected:
            found = f"{stream.dtype}{list(stream.shape)}"
            raise stream.corrupt(f"{dtype}{list(expected)}", found)
        return stream

    def _column(self, file: int, name: str) -> NDArray[Any]:
        if (file, name) not in self._columns:
            # An episode may span many files of a small ring, but reads them in order.
            self._columns = {key: column for key, column in self._columns.items() if key[0] == file}
            path = self._path(file, name)
            column = read_npy(path)
            dtype = SMALL_DTYPES[name]
            if column.dtype != dtype or column.shape != (self._plan.capacity,):
                expected, found = f"{dtype}[{self._plan.capacity}]", f"{column.dtype}{list(column.shape)}"
                raise CorruptShardError(f"{path}: expected {expected}, found {found}")
            self._columns[file, name] = column
        return self._columns[file, name]

    def _path(self, file: int, array: str) -> Path:
        return self._folder / file_name(array, int(self._plan.suffixes[file]))


@dataclass(slots=True)
class _Opened:
    stream: NpyStream
    file: int
    is_verified: bool

    def finish(self) -> None:
        if not self.is_verified:
            self.stream.finish()
            self.is_verified = True


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Rows [start, stop) of one episode, the number of zero rows after them, and whether the last row is terminal.

    If it is not, the outcome of the last row is unknown: the episode was truncated, a lap is lost, or the files end.
    The recording is cut there.
    """

    episode: int
    start: int
    stop: int
    padding: int
    from_reset: bool
    is_terminal: bool

    @property
    def steps(self) -> int:
        """Steps: one per row, but a last row that is not terminal has only the final observation."""
        return self.stop - self.start - (not self.is_terminal)


def trajectories(plan: Plan, position: int, rows: RowReader, dropped: Counter[str]) -> list[Trajectory]:
    """Return the trajectories, of at least one step each, of the spans that start in a file.

    Args:
        position: of the file in the plan.
        rows: of the run.
        dropped: receives how many rows of these spans are padding, and how many have no next row.
    """
    found = []
    counts: Counter[str] = Counter()
    for span in plan.spans(position):
        for one in _episodes(plan, span, rows, counts):
            counts["padding"] += one.padding
            counts["cut"] += not one.is_terminal
            if one.steps:
                found.append(one)
    dropped.update(+counts)
    return found


def _episodes(plan: Plan, span: Span, rows: RowReader, dropped: Counter[str]) -> Iterator[Trajectory]:
    lead = _leading_padding(plan, span, rows)
    dropped["padding"] += lead
    number, start, from_reset = span.number, span.start + lead, lead > 0 or not span.after_gap
    for stop in _truncations(plan, start, span.stop, rows):
        yield Trajectory(number, start, stop, plan.padding, from_reset, is_terminal=False)
        number, start, from_reset = number + 1, stop + plan.padding, True
    if start < span.stop:
        yield Trajectory(number, start, span.stop, span.end - span.stop, from_reset, span.is_terminal)


def _leading_padding(plan: Plan, span: Span, rows: RowReader) -> int:
    """Return how many zero rows a span starts with: all at the start of the run, the remaining ones after a gap."""
    limit = span.stop - span.is_terminal
    if span.start == 0:
        lead = min(plan.padding, limit)
        rows.check_blank(0, lead)
        return lead
    lead = 0
    while span.after_gap and lead < plan.padding and span.start + lead < limit and rows.is_blank(span.start + lead):
        lead += 1
    return lead


def _truncations(plan: Plan, start: int, stop: int, rows: RowReader) -> Iterator[int]:
    """Yield the first padding row after each episode that ended without a terminal row in [start, stop)."""
    if not plan.padding:
        return
    streak, earliest = 0, start + 1  # an episode has at least one row
    previous = -1
    for row in _candidates(plan, start, stop):
        is_next = row == previous + 1
        previous = row
        if row < earliest or not rows.is_blank(row):
            streak = 0
            continue
        streak = streak + 1 if is_next else 1
        if streak == plan.padding:
            yield row + 1 - plan.padding
            streak, earliest = 0, row + 2


def _candidates(plan: Plan, start: int, stop: int) -> list[int]:
    """Return the rows in [start, stop) that may be padding by the small arrays: runs of zeros that are long enough."""
    zeros = plan.zeros[slice(*np.searchsorted(plan.zeros, [start, stop]))]
    last = plan.padding - 1
    first = zeros[: len(zeros) - last]
    runs = first[zeros[last:] == first + last]
    candidates: list[int] = np.unique(runs[:, None] + np.arange(plan.padding)).tolist()
    return candidates


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Steps [first, first + steps) of a trajectory, which go into one block."""

    trajectory: Trajectory
    first: int
    steps: int

    @property
    def is_end(self) -> bool:
        """Whether it is the end of the trajectory."""
        return self.first + self.steps == self.trajectory.steps


def pack(trajectories: Iterable[Trajectory], limit: int) -> Iterator[list[BlockPart]]:
    """Yield the parts of each block: every block but the last has ``limit`` steps.

    Example:
        >>> one, two = (Trajectory(n, 0, 3, 0, True, is_terminal=True) for n in (1, 2))
        >>> blocks = pack([one, two], limit=4)
        >>> [[(part.trajectory.episode, part.first, part.steps) for part in block] for block in blocks]
        [[(1, 0, 3), (2, 0, 1)], [(2, 1, 2)]]
    """
    block: list[BlockPart] = []
    room = limit
    for trajectory in trajectories:
        first = 0
        while first < trajectory.steps:
            steps = min(room, trajectory.steps - first)
            block.append(BlockPart(trajectory, first, steps))
            first, room = first + steps, room - steps
            if not room:
                yield block
                block, room = [], limit
    if block:
        yield block


def read_block(parts: Sequence[BlockPart], rows: RowReader, extras: Mapping[str, str] = MappingProxyType({})) -> Block:
    """Return the block of these parts; raises CorruptShardError for damaged files, and padding that is not zero.

    Args:
        extras: name of the array of every extra field.
    """
    steps = sum(part.steps for part in parts)
    observation = rows.empty(OBSERVATION, steps + sum(part.is_end for part in parts))
    more = {name: rows.empty(array, steps) for name, array in extras.items()}
    # The files have int32; see "dtypes" in docs/format.md.
    action, reward = np.empty(steps, np.int64), np.empty(steps, np.float32)
    terminated, truncated = np.zeros(steps, np.bool_), np.zeros(steps, np.bool_)
    step = frame = 0
    for part in parts:
        one, row = part.trajectory, part.trajectory.start + part.first
        after, frames = step + part.steps, part.steps + part.is_end
        recorded = frames - (part.is_end and one.is_terminal)
        rows.read_rows(OBSERVATION, row, observation[frame : frame + recorded])
        observation[frame + recorded : frame + frames] = 0
        rows.read_column(ACTION, row, action[step:after])
        rows.read_column(REWARD, row, reward[step:after])
        for name, array in extras.items():
            rows.read_rows(array, row, more[name][step:after])
        if part.is_end:
            rows.check_blank(one.stop, one.stop + one.padding)
            terminated[after - 1], truncated[after - 1] = one.is_terminal, not one.is_terminal
        step, frame = after, frame + frames
    return Block(
        {
            "observation": observation,
            "action": action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            **more,
        },
        np.array([part.steps for part in parts], np.int64),
        np.array([part.trajectory.episode for part in parts], np.int64),
        np.array([part.trajectory.from_reset for part in parts], np.bool_),
        np.array([not part.trajectory.is_terminal for part in parts], np.bool_),
        is_open=not parts[-1].is_end,
        cut=np.array([part.is_end and not part.trajectory.is_terminal for part in parts], np.bool_),
    )


# 200 iterations of at least 250,000 steps fill a ring of a million 50 times; the buffer at the end makes 51.
PUBLIC_SUFFIXES = range(51)
_ATARI = ("uint8", (84, 84))
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Dopamine:
    """A run logged by Dopamine. Its small arrays are read when first needed, and pickled with it.

    Args:
        root: local directory to which the names in ``files`` are relative.
        folder: directory of the files below it: ``Pong/1/replay_logs``.
        id: name of the run: ``Pong/1``.

    Every method raises SourceNotFoundError if the run or one of its small arrays is missing, and
    CorruptShardError if one is damaged or contradicts another.
    """

    root: Path
    folder: str
    id: str

    @property
    def schema(self) -> Schema:
        """Observations as in their first local file, else uint8[84, 84]; int64 actions; rewards; extra columns."""
        plain = Schema.of(observation=self._observation, action=("int64", ()))
        return Schema({**plain.fields, **self._extras.fields})

    @property
    def notes(self) -> Mapping[str, Any]:
        """Notes on what the steps do not show."""
        notes: dict[str, Any] = {
            "rewards": "clipped to [-1, 1]" if self._plan.is_clipped else "as logged",
            **read_notes_beside((self.root / self.folder).parent),
            "truncation": "recorded" if self._plan.can_truncate else "unrecorded",
            "final_observation": "missing where terminated: stored as zeros and flagged",
        }
        if missing := self._plan.missing():
            notes["missing_source_files"] = missing
        if gaps := self._plan.gaps():
            notes["steps_lost_before_shards"] = gaps
        return notes | not_taken_note(self._extras.not_taken)

    def shards(self) -> Sequence[int]:
        """Return the suffixes of the files, ascending."""
        return [int(suffix) for suffix in self._plan.suffixes]

    def files(self, shard: int) -> Sequence[str]:
        """Return the files of the shard's suffix, and of those in which its last episode continues."""
        position = self._plan.position(shard)
        spans = self._plan.spans(position)
        last = self._plan.file_of(spans[-1].end - 1) if spans else position
        arrays = (*SMALL_ARRAYS, OBSERVATION, *self._extras.keys.values()) if spans else SMALL_ARRAYS
        suffixes = self._plan.suffixes[position : last + 1].tolist()
        return [f"{self.folder}/{file_name(array, suffix)}" for suffix in suffixes for array in arrays]

    def planned(self, shard: int) -> tuple[int, int]:
        """Return how many episodes start in the shard's file, and their steps, as far as the small arrays tell."""
        spans = self._plan.spans(self._plan.position(shard))
        lead = self._plan.padding if spans and not spans[0].start else 0
        return len(spans), sum(span.stop - span.start for span in spans) - lead

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes that start in the shard's file; see ``Source.blocks``.

        ``dropped`` counts ``padding``, zero rows before an episode; ``cut``, last rows of episodes whose next row is
        missing; ``stale``, slots that an earlier file has too; and ``uninitialised``, slots never written. Over all
        shards, these and the steps add up to the slots of all files.
        """
        position = self._plan.position(shard)
        dropped.update(+Counter(self._plan.nothing_new(position)))
        extras = self._extras
        kinds = {extras.keys[name]: (field.dtype, field.shape) for name, field in extras.fields.items()}
        with expecting(LAYOUT), RowReader(self.root / self.folder, self._plan, self._observation, kinds) as rows:
            episodes = trajectories(self._plan, position, rows, dropped)
            for parts in pack(episodes, MAX_BLOCK_STEPS):
                yield read_block(parts, rows, extras.keys)
            rows.finish()

    @cached_property
    @expecting(LAYOUT)
    def _plan(self) -> Plan:
        return make_plan(self.root / self.folder)

    @cached_property
    def _observation(self) -> tuple[str, tuple[int, ...]]:
        for suffix in self._plan.suffixes.tolist():
            path = self.root / self.folder / file_name(OBSERVATION, suffix)
            if path.is_file():
                try:
                    with gzipped(path) as stream:
                        return stream.kind
                except CorruptShardError:
                    continue  # reported by the shard that reads it
        return _ATARI

    @cached_property
    @expecting(LAYOUT)
    def _extras(self) -> ExtraFields:
        """Return Dopamine's extra storage types, as in the first file of each, and why other arrays are left out."""
        folder, first = self.root / self.folder, int(self._plan.suffixes[0])
        found = ExtraFields(["observation", "action", "reward", "terminated", "truncated"])
        # Further observations lost their last row in this format, and have one row per step.
        noted = {
            (array_name(name), one.dtype, one.shape): (name, Role.STEP if one.role == Role.OBSERVATION else one.role)
            for name, one in noted_fields(read_notes_beside(folder.parent)).items()
        }
        for array in find_arrays(folder, first):
            if array in (*SMALL_ARRAYS, OBSERVATION, EPISODE_ENDS):
                continue
            if not array.startswith(STORE):
                found.leave(array, NOT_OF_STEPS)
                continue
            try:
                with gzipped(folder / file_name(array, first)) as stream:
                    kind, shape = stream.dtype.name, stream.shape
            except CorruptShardError as exc:
                found.leave(array, f"not an array of numbers: {exc}")
                continue
            if shape[:1] != (self._plan.capacity,):
                found.leave(array, NOT_A_ROW_PER_STEP)
                continue
            name, role = noted.get((array, kind, shape[1:]), (array.removeprefix(STORE), Role.STEP))
            found.add(array, name, (kind, shape[1:]), role)
        return found


@dataclass(frozen=True, slots=True)
class DopamineLayout:
    """How the DQN Replay Dataset names the files of one run.

    Args:
        run: 1 to 5.
        prefix: of the path, such as ``dqn/``.
    """

    game: str
    run: int
    prefix: str = ""

    def index_files(self) -> Sequence[str]:
        """Return the small arrays of every suffix; of the pickle among them, only its existence matters."""
        arrays = (*SMALL_ARRAYS, EPISODE_ENDS)
        return [f"{self._folder}/{file_name(array, suffix)}" for suffix in PUBLIC_SUFFIXES for array in arrays]

    def source(self, root: Path) -> Dopamine:
        """Return the run below a local directory."""
        return Dopamine(root, self._folder, f"{self.game}/{self.run}")

    @property
    def _folder(self) -> str:
        return f"{self.prefix}{self.game}/{self.run}/{FOLDER}"


def find_runs(directory: Path) -> list[Dopamine]:
    """Return the runs in a directory, by name.

    Args:
        directory: ``replay_logs``, or a directory one to four levels above: of a run, a game, all games, or ``dqn``.
    """
    directory = directory.absolute()
    patterns = ["/".join([*"*" * depth, FOLDER]) for depth in range(4)]
    folders = [directory, *(folder for pattern in patterns for folder in sorted(directory.glob(pattern)))]
    return [
        Dopamine(directory, folder.relative_to(directory).as_posix(), _id_of(folder))
        for folder in folders
        if folder.is_dir() and any(folder.glob(file_name(ADD_COUNT, "*")))
    ]


def _id_of(folder: Path) -> str:
    words = folder.parts[-3:-1] if folder.name == FOLDER else folder.parts[-1:]
    return "/".join(word for word in words if _WORD.fullmatch(word)) or "run"
