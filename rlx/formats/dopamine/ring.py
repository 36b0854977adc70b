"""The files that Dopamine's replay buffer logs: what the ring of rows held each time its last slot came next."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from isal import igzip
from numpy.typing import DTypeLike, NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.dopamine.layout import (
    ADD_COUNT,
    INVALID_RANGE,
    OBSERVATION,
    SMALL_ARRAYS,
    SMALL_DTYPES,
    TERMINAL,
    file_name,
)
from rlx.formats.dopamine.npy_stream import read_npy

_SUFFIXED = re.compile(r"(.+)_ckpt\.(\d{1,9})\.gz")
_MAX_ADD_COUNT = 1 << 48
# One step ahead is learned from, and what the agent sees is a stack of four observations.
HORIZON, STACK = 1, 4
_COMPRESSION_LEVEL = 1
_PIECE_BYTES = 2**18
Columns = Mapping[str, tuple[DTypeLike, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class RingFile:
    """The small arrays of one suffix; [C] each."""

    suffix: int
    add_count: int
    padding: int
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    terminal: NDArray[np.uint8]

    @property
    def capacity(self) -> int:
        """Rows of the ring."""
        return len(self.terminal)

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return slots of the rows [start, stop) of the run."""
        return np.arange(start, stop) % self.capacity


def find_suffixes(folder: Path) -> list[int]:
    """Return suffixes of which a folder holds any array, ascending; raises SourceNotFoundError if it holds none."""
    suffixes = {suffix for array, suffix in _arrays(folder) if array in (*SMALL_ARRAYS, OBSERVATION)}
    if not suffixes:
        raise SourceNotFoundError(f"{folder} has no file named like {file_name(ADD_COUNT, 0)}")
    return sorted(suffixes)


def find_arrays(folder: Path, suffix: int) -> list[str]:
    """Return names of all arrays of a suffix that a folder holds, in order."""
    return sorted(array for array, found in _arrays(folder) if found == suffix)


def _arrays(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield name and suffix of every array in a folder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _SUFFIXED.fullmatch(path.name):
            yield match[1], int(match[2])


def load_ring_file(folder: Path, suffix: int) -> RingFile:
    """Return the small arrays of one suffix, checked against each other; raises as ``make_plan`` does."""
    paths = {name: folder / file_name(name, suffix) for name in SMALL_ARRAYS}
    arrays = {name: read_npy(path) for name, path in paths.items()}
    rows = len(arrays[TERMINAL]) if arrays[TERMINAL].ndim else 0
    # The terminals come first, for they say how many rows to expect.
    for name, dtype in reversed([*SMALL_DTYPES.items()]):
        array = arrays[name]
        if array.dtype != dtype or array.shape != (rows,) or not rows:
            raise CorruptShardError(
                f"{paths[name]}: expected {dtype}[{rows or 'C'}], found {array.dtype}{list(array.shape)}"
            )
    add_count = _add_count(paths[ADD_COUNT], arrays[ADD_COUNT])
    padding = _padding(paths[INVALID_RANGE], arrays[INVALID_RANGE], add_count, rows)
    action, reward, terminal = (arrays[name] for name in SMALL_DTYPES)
    return RingFile(suffix, add_count, padding, action, reward, terminal)


def _add_count(path: Path, array: NDArray[Any]) -> int:
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= int(array) < _MAX_ADD_COUNT:
        raise CorruptShardError(
            f"{path}: expected one number of rows, found {array.dtype}{list(array.shape)} {array!r:.40}"
        )
    return int(array)


def _padding(path: Path, array: NDArray[Any], add_count: int, capacity: int) -> int:
    """Return zero rows before an episode: the range runs from n rows before the cursor, the horizon, to a stack after
    it."""
    if array.ndim == 1 and array.dtype.kind in "iu" and 2 <= len(array) <= 1000:
        horizon = (add_count - int(array[0])) % capacity
        if np.array_equal(array, (add_count - horizon + np.arange(len(array))) % capacity) and horizon < len(array):
            return len(array) - horizon - 1
    raise CorruptShardError(f"{path}: expected consecutive slots around {add_count % capacity}, found {array!r:.80}")


class RingLog:
    """Writer of rows, from the first on, into the files of one suffix after the other.

    A file holds the current content of the ring, each row in slot ``row % capacity``. It is written when all slots but
    the last are new; so the last one shows a row of the lap before, and the row that belongs there is the oldest in the
    next file. When the context ends without an error, the remaining rows are logged over the ring's rows of the lap
    before; as in Dopamine, ``add_count`` then gives only the position of the cursor.

    Args:
        folder: where to; it is there.
        capacity: rows of the ring, at least 2.
        columns: dtype and shape of a row of every column, by its name in the files.
    """

    def __init__(self, folder: Path, capacity: int, columns: Columns) -> None:
        self._folder = folder
        self._capacity = capacity
        self._columns = columns
        self._rows = 0
        self._suffix = 0
        self._files: dict[str, IO[bytes]] = {}
        self._open_files = ExitStack()
        self._last_slot = {name: bytes(self._row_bytes(name)) for name in columns}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._open_files:
            cursor = self._rows % self._capacity
            if kind is None and cursor != self._capacity - 1:
                for name, file in self._opened().items():
                    for piece in self._older(name, cursor):
                        file.write(piece)
                self._log(cursor)

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add the next rows [n, ...] of every column."""
        count, done, last = len(next(iter(rows.values()))), 0, self._capacity - 1
        while done < count:
            slot = self._rows % self._capacity
            stop = min(count, done + max(1, last - slot))
            for name, column in rows.items():
                values = column[done:stop].astype(self._columns[name][0], copy=False).tobytes()
                if slot == last:
                    self._last_slot[name] = values
                else:
                    self._opened()[name].write(values)
            self._rows += stop - done
            done = stop
            if self._rows % self._capacity == last:
                self._log(self._rows)

    def _log(self, add_count: int) -> None:
        for name, file in self._opened().items():
            file.write(self._last_slot[name])
        self._open_files.close()
        self._files = {}
        around = (self._rows - HORIZON + np.arange(STACK + HORIZON)) % self._capacity
        for name, array in ((ADD_COUNT, np.array(add_count)), (INVALID_RANGE, around)):
            with self._path(name).open("xb") as raw, _gzipped(raw) as file:
                np.save(file, array)
        self._suffix += 1

    def _opened(self) -> Mapping[str, IO[bytes]]:
        if not self._files:
            for name in self._columns:
                raw = self._open_files.enter_context(self._path(name).open("xb"))
                self._files[name] = self._open_files.enter_context(_gzipped(raw))
                self._files[name].write(self._header(name))
        return self._files

    def _older(self, name: str, cursor: int) -> Iterator[bytes]:
        """Yield the content of the slots from the cursor to the last but one, from the lap before; zeros in the first
        lap."""
        left = (self._capacity - 1 - cursor) * self._row_bytes(name)
        if not self._suffix:
            while left:
                yield bytes(min(left, _PIECE_BYTES))
                left -= min(left, _PIECE_BYTES)
            return
        with igzip.open(self._path(name, self._suffix - 1)) as before:  # type: ignore[no-untyped-call]
            before.seek(len(self._header(name)) + cursor * self._row_bytes(name))
            while left:
                piece = before.read(min(left, _PIECE_BYTES))
                left -= len(piece)
                yield piece

    def _header(self, name: str) -> bytes:
        dtype, shape = self._columns[name]
        file = io.BytesIO()
        described = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (self._capacity, *shape)}
        np.lib.format.write_array_header_1_0(file, described)
        return file.getvalue()

    def _row_bytes(self, name: str) -> int:
        dtype, shape = self._columns[name]
        return np.dtype(dtype).itemsize * int(np.prod(shape))

    def _path(self, name: str, suffix: int | None = None) -> Path:
        return self._folder / file_name(name, self._suffix if suffix is None else suffix)


def _gzipped(raw: IO[bytes]) -> IO[bytes]:
    # No name and no time in the header, so that the same rows give the same bytes.
    return igzip.IGzipFile("", "wb", _COMPRESSION_LEVEL, raw, 0)  # type: ignore[no-untyped-call,return-value]
