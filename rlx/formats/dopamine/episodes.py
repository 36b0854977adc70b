"""The trajectories of a Dopamine shard, from the spans of its plan and the observations; and their blocks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.fields import RowType
from rlx.formats.common.npy import NpyStream, gzipped, read_npy
from rlx.formats.dopamine import ACTION, OBSERVATION, REWARD, SMALL_DTYPES, file_name
from rlx.formats.dopamine.plan import Plan, Span


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
