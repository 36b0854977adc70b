"""Rows of a Dopamine run by their number in the run, whichever file and slot they lie in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.source.dopamine_plan import Plan
from rlx.source.dopamine_ring import OBSERVATION, SMALL_DTYPES, file_name
from rlx.source.npy_stream import NpyStream, read_npy


class Rows:
    """Reads rows of a run; fast where each call starts behind the one before.

    A file is inflated from its start again only to go back in it: Dopamine puts the first new row into the
        last slot.
    Every observation file that was read from is read to its end, checksum included, before ``finish``
    returns.

    Args:
        folder: where the files lie.
        plan: of the run.
        observation: dtype and shape of one observation; a file of another kind is refused.
    """

    def __init__(self, folder: Path, plan: Plan, observation: tuple[str, tuple[int, ...]]) -> None:
        self._folder = folder
        self._plan = plan
        self._dtype, self._shape = observation
        self._stream: NpyStream | None = None
        self._file = -1  # position of the open stream's file in the plan
        self._is_verified = False
        self._columns: dict[tuple[int, str], NDArray[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def finish(self) -> None:
        """Reads what is left of the last observation file, so that its checksum is verified."""
        if self._stream is not None and not self._is_verified:
            self._stream.finish()
            self._is_verified = True

    def read_observations(self, start: int, out: NDArray[Any]) -> None:
        """Fills ``out`` [n, ...] with the observations of the rows from ``start`` on."""
        for file, slot, part in self._pieces(start, start + len(out)):
            stream = self._open(file, slot)
            stream.skip_to(slot)
            stream.read_into(out[part])

    def read_column(self, name: str, start: int, out: NDArray[Any]) -> None:
        """Fills ``out`` [n] with a small array's rows from ``start`` on."""
        for file, slot, part in self._pieces(start, start + len(out)):
            column = self._column(file, name)
            out[part] = column[slot : slot + part.stop - part.start]

    def empty_observations(self, count: int) -> NDArray[Any]:
        """Room for so many observations."""
        return np.empty((count, *self._shape), self._dtype)

    def is_blank(self, row: int) -> bool:
        """Whether a row has a zero observation, action and reward."""
        action, reward = np.empty(1, np.int32), np.empty(1, np.float32)
        self.read_column("$store$_action", row, action)
        self.read_column("$store$_reward", row, reward)
        return not (action.any() or reward.any() or self._observations(row, 1).any())

    def check_blank(self, start: int, stop: int) -> None:
        """Raises CorruptShardError unless the observations of the padding rows [start, stop) are all zero."""
        if self._observations(start, stop - start).any():
            path = self._path(self._plan.file_of(start), OBSERVATION)
            slot = start % self._plan.capacity
            raise CorruptShardError(f"{path}: expected zero padding from slot {slot} on, found an observation")

    def _observations(self, start: int, count: int) -> NDArray[Any]:
        out = self.empty_observations(count)
        self.read_observations(start, out)
        return out

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, slice]]:
        """File, first slot and place in the answer of every contiguous piece of the rows [start, stop)."""
        row = start
        while row < stop:
            file = self._plan.file_of(row)
            slot = row % self._plan.capacity
            end = min(stop, int(self._plan.add_counts[file]), row + self._plan.capacity - slot)
            yield file, slot, slice(row - start, end - start)
            row = end

    def _open(self, file: int, slot: int) -> NpyStream:
        stream = self._stream
        if stream is not None and file == self._file and slot >= stream.row:
            return stream
        self.finish()
        if stream is not None:
            stream.close()
        # What was verified once need not be read to its end again.
        self._is_verified = self._is_verified and file == self._file
        self._stream = stream = NpyStream(self._path(file, OBSERVATION))
        self._file = file
        expected = (self._plan.capacity, *self._shape)
        if stream.dtype != self._dtype or stream.shape != expected:
            found = f"{stream.dtype}{list(stream.shape)}"
            raise CorruptShardError(f"{stream.path}: expected {self._dtype}{list(expected)}, found {found}")
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
