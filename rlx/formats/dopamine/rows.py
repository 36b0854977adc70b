"""Rows of a Dopamine run by their number in the run, whichever file and slot they lie in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.extra_fields import RowType
from rlx.formats.dopamine.layout import ACTION, OBSERVATION, REWARD, SMALL_DTYPES, file_name
from rlx.formats.dopamine.npy_stream import NpyStream, read_npy
from rlx.formats.dopamine.plan import Plan


class Rows:
    """Reader of rows of a run; fast where each call starts after the one before.

    A file is inflated from its start again only to go back in it: Dopamine puts the first new row into the
        last slot.
    Every file of observations or extra columns that was read from is read to its end, checksum included, before
        ``finish`` returns.

    Args:
        folder: where the files lie.
        plan: of the run.
        observation: dtype and shape of one observation; a file of another kind is refused.
        extras: the same of every extra column, by the name of its array.
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

    def read_observations(self, start: int, out: NDArray[Any]) -> None:
        """Fill ``out`` [n, ...] with the observations of the rows from ``start`` on."""
        self.read_rows(OBSERVATION, start, out)

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
        """Return an empty array for rows of the observations, or of an extra column."""
        dtype, shape = self._kinds[name]
        return np.empty((count, *shape), dtype)

    def is_blank(self, row: int) -> bool:
        """Return whether a row has a zero observation, action and reward."""
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
        self.read_observations(start, out)
        return out

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, slice]]:
        """Yield file, first slot and place in the answer of every contiguous piece of the rows [start, stop)."""
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
        stream = NpyStream(self._path(file, name))
        # A verified file need not be read to its end again.
        self._streams[name] = _Opened(stream, file, is_verified=before is not None and file == before.file)
        dtype, shape = self._kinds[name]
        expected = (self._plan.capacity, *shape)
        if stream.dtype != dtype or stream.shape != expected:
            found = f"{stream.dtype}{list(stream.shape)}"
            raise CorruptShardError(f"{stream.path}: expected {dtype}{list(expected)}, found {found}")
        return stream

    def _column(self, file: int, name: str) -> NDArray[Any]:
        if (file, name) not in self._columns:
            # An episode may lie in many files of a small ring, but is read from the first to the last.
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
    """A stream of the file at a position in the plan."""

    stream: NpyStream
    file: int
    is_verified: bool

    def finish(self) -> None:
        if not self.is_verified:
            self.stream.finish()
            self.is_verified = True
