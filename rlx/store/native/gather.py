"""Rows of many files, gathered by one call: every index is compared with the real size of its file first."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.store.native.library import INT64, POINTER, address, at, columns, library, place_of, room_of
from rlx.store.native.libzstd import Digested

Numbers = NDArray[np.int64]
_INT64 = np.dtype(np.int64)


class FileTable(ctypes.Structure):
    """Files of rows of equal size, by number: ``struct files`` of ``native.h``.

    Files are added while others read; sizes are those of their memory, whatever anybody claims.

    Args:
        count: how many files there can be; none is here yet.
        row_bytes: bytes of a row that is not compressed.
    """

    _fields_ = (
        ("_count", INT64),
        *((name, POINTER) for name in ("_data", "_size", "_rows", "_dictionary")),
        ("row_bytes", INT64),
    )

    def __init__(self, count: int, row_bytes: int) -> None:
        self._columns = np.zeros((4, count), np.int64)
        super().__init__(count, *map(address, self._columns), row_bytes)
        self._held: list[tuple[memoryview, Digested | None] | None] = [None] * count  # as addresses keep nothing alive
        self.place = ctypes.addressof(self)

    def add(self, number: int, file: memoryview, rows: int | None = None, dictionary: Digested | None = None) -> None:
        """Add a file of raw rows; or of ``rows`` compressed ones, with their index at its end."""
        content = np.frombuffer(file, np.uint8)
        if rows is None:
            rows = content.size // self.row_bytes
        self._held[number] = file, dictionary
        place = 0 if dictionary is None else dictionary.place
        self._columns[[0, 1, 3], number] = address(content), content.size, place
        self._columns[2, number] = rows  # from now on others read it

    def without(self, numbers: Sequence[int]) -> FileTable:
        """Return a table in which these files are closed; this one keeps them."""
        table = FileTable(len(self._held), self.row_bytes)
        table._columns[:], table._held = self._columns, self._held.copy()
        table._columns[:, numbers] = 0
        for number in numbers:
            table._held[number] = None
        return table


def gather(files: FileTable, file: Numbers, row: Numbers, out: NDArray[Any], run: int = 1) -> None:
    """Copy runs of consecutive raw rows to ``out``; only where ``gather_kernel`` is.

    Args:
        file: [n] the file of each run.
        row: [n] the first of its rows.
        out: [run * n, ...] of ``row_bytes`` each: the first rows of all runs, then the second ones.
        run: rows of each.

    Raises:
        IndexError: a file or row is out of range.
    """
    compiled = gather_kernel()
    assert compiled is not None
    room, count = out.nbytes, len(row)
    if not room:
        return
    try:
        if file.dtype != _INT64 or row.dtype != _INT64 or file.shape != row.shape:
            file, row = columns(count, file, row)
        # Three microseconds less than by ``address`` and ``room``, of the eight that this takes.
        status = compiled(files.place, count, run, place_of(at(file)), place_of(at(row)), place_of(at(out)), room)
    except TypeError:  # read-only, or with gaps
        file, row = columns(count, file, row)
        status = compiled(files.place, count, run, address(file), address(row), room_of(out), room)
    if status:
        raise IndexError("rows are outside of their files")


@lru_cache(maxsize=1)
def gather_kernel() -> Any | None:
    """Return the compiled function; None without ``library``."""
    if (compiled := library()) is None:
        return None
    function = compiled.rlx_gather
    function.argtypes, function.restype = [POINTER, INT64, INT64, *[POINTER] * 3, INT64], INT64
    return function
