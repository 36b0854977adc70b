"""The compiled functions over a tree of priorities (``priority_tree.c``): each writes or draws rows by one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.store.native.library import INT64, POINTER, address, library, room_of

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Sums = NDArray[np.float64]
_WIDTH = 32
_MOST_LEVELS = 8


class _Tree(ctypes.Structure):
    """``struct tree`` of ``priority_tree.c``."""

    _fields_ = (
        ("capacity", INT64),
        ("levels", INT64),
        *((name, POINTER) for name in ("priority", "weight")),
        *((name, POINTER * _MOST_LEVELS) for name in ("sum", "least", "most")),
    )


class _Written(ctypes.Structure):
    """``struct written`` of ``priority_tree.c``."""

    _fields_ = (("known", INT64), ("most", ctypes.c_float))


class CompiledTree:
    """What ``PriorityTree`` does with numpy, in the arrays of one.

    Args:
        functions: the compiled ones.
        capacity: number of rows.
        priority, weight: [32 times the lowest nodes] of each row.
        sums, leasts, mosts: of the nodes of each level, 32 times those of the level above; ``mosts`` may be empty.
    """

    def __init__(
        self,
        functions: tuple[Any, Any],
        capacity: int,
        priority: Floats,
        weight: Floats,
        sums: Sequence[Sums],
        leasts: Sequence[Floats],
        mosts: Sequence[Floats],
    ) -> None:
        self._write, self._draw = functions
        self._arrays = priority, weight, tuple(sums), tuple(leasts), tuple(mosts)  # whose addresses the tree has
        self.capacity, counts = capacity, [capacity]  # of rows, and of nodes by level
        while len(counts) == 1 or counts[-1] > 1:
            counts.append(-(-counts[-1] // _WIDTH))
        lengths = [*(count * _WIDTH for count in counts[1:]), 1]
        if len(sums) > _MOST_LEVELS:
            raise ValueError(f"a tree of {capacity:,} rows has {len(sums)} levels: expected at most {_MOST_LEVELS}")
        _check((priority, *leasts), np.float32, lengths)
        _check((weight,), np.float32, lengths[:1])
        _check(sums, np.float64, lengths[1:])
        _check(mosts, np.float32, lengths[1:] if mosts else [])
        places = [(POINTER * _MOST_LEVELS)(*map(room_of, arrays)) for arrays in (sums, leasts, mosts)]
        self._tree = _Tree(capacity, len(sums), room_of(priority), room_of(weight), *places)
        self._written = _Written()
        self._place, self._written_place = ctypes.addressof(self._tree), ctypes.addressof(self._written)

    def write(self, rows: Rows, priority: Floats, weight: Floats, only_known: bool) -> tuple[int, np.float32]:
        """Set rows; return how many more are not empty, and the largest priority that was set.

        Raises:
            IndexError: a row is out of range; nothing is written.
        """
        step = int(priority.ndim or weight.ndim)
        if step:
            priority, weight = (_column(values, rows) for values in (priority, weight))
        if rows.dtype != np.int64 or priority.dtype != np.float32 or weight.dtype != np.float32:
            raise ValueError("expected rows of int64, and float32")
        places = address(rows), address(priority), address(weight)
        if self._write(self._place, len(rows), *places, step, only_known, self._written_place):
            raise IndexError(f"rows {rows.min()} to {rows.max()}: expected 0 to {self.capacity - 1}")
        return self._written.known, np.float32(self._written.most)

    def draw(self, uniform: NDArray[np.float64]) -> tuple[Rows, Floats]:
        """Return [n] rows, drawn in proportion to their weights, and [n] their weights; one must have a weight.

        Args:
            uniform: [n] random numbers of [0, 1), which are overwritten.
        """
        if uniform.dtype != np.float64:
            raise ValueError("expected float64")
        rows, weight = np.empty(len(uniform), np.int64), np.empty(len(uniform), np.float32)
        self._draw(self._place, len(uniform), room_of(uniform), room_of(rows), room_of(weight))
        return rows, weight


def _check(arrays: Sequence[NDArray[Any]], dtype: type, lengths: Sequence[int]) -> None:
    expected = [(np.dtype(dtype), (length,)) for length in lengths]
    if (found := [(array.dtype, array.shape) for array in arrays]) != expected:
        raise ValueError(f"expected arrays of {expected}, found {found}")


def _column(values: Floats, rows: Rows) -> Floats:
    """Return [n] values, one for each row, without a gap."""
    return np.ascontiguousarray(values if values.shape == rows.shape else np.broadcast_to(values, rows.shape))


@lru_cache(maxsize=1)
def tree_kernel() -> tuple[Any, Any] | None:
    """Return the compiled functions; None without ``library``."""
    if (compiled := library()) is None:
        return None
    write, draw = compiled.rlx_tree_write, compiled.rlx_tree_draw
    write.argtypes, write.restype = [POINTER, INT64, *[POINTER] * 3, INT64, INT64, POINTER], INT64
    draw.argtypes, draw.restype = [POINTER, INT64, *[POINTER] * 3], None
    return write, draw
