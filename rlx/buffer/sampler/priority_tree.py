"""A tree over the priorities of rows: their sum, least and largest, drawn from in proportion to their weights.

The compiled kernel (``priority_tree.c``) writes and draws in one call each; without it, numpy gives the same bits.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows
from rlx.numbers import check_whole
from rlx.store.kernel import address, library

Floats = NDArray[np.float32]
_SHIFT = 5
_WIDTH = 1 << _SHIFT
_GROUP = 8  # of children that are looked at together
_MOST_LEVELS = 12
_ONE = np.uint32(1)
_AT_ONCE = 1 << 13  # nodes whose rows are weighed at once
_LINE_BYTES = 64
_HUGE_BYTES = 16 << 20


class PriorityTree:
    """Priorities and weights of ``capacity`` rows, and what sampling asks of all of them.

    A row has two float32: its priority, 0 while it is empty, and its weight, 0 while it is never drawn. Every 32 rows,
    and every 32 nodes, have a node with the sum of weights (float64) and the least priority (float32): 8.4 bytes per
    row in all, and memory is taken only where rows are written. A node is computed from its children at every write, so
    the tree is a function of its rows, after any number of writes.

    Args:
        capacity: number of rows.
        keeps_most: whether nodes have the largest priority too.

    Attributes:
        known: number of rows that are not empty.
        priority: [at least capacity] priority of each row; read only.
        weight: [at least capacity] weight of each row; read only.
    """

    def __init__(self, capacity: int, *, keeps_most: bool = False) -> None:
        check_whole("capacity", capacity)
        self.capacity = capacity
        self._keeps_most = keeps_most
        self.clear()

    def clear(self) -> None:
        """Make all rows empty."""
        counts = [-(-self.capacity // _WIDTH)]  # of nodes, by level
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // _WIDTH))
        rows, *inner = (count * _WIDTH for count in counts)
        levels = [*inner, 1]
        self.known = 0
        self.priority, self.weight = _zeros(rows, np.float32), _zeros(rows, np.float32)
        self._sums = [_zeros(width, np.float64) for width in levels]
        self._leasts = [_zeros(width, np.float32) for width in levels]
        self._mosts = [_zeros(width, np.float32) for width in levels] if self._keeps_most else []
        self._kernel = tree_kernel()
        self._struct, self._written = _Tree.of(self), _Written()

    def __getstate__(self) -> tuple[Any, ...]:
        parts = list(self._known_nodes())
        return self.capacity, self._keeps_most, self.known, [(n, self._rows_of(n), self._weights_of(n)) for n in parts]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.capacity, self._keeps_most, known, parts = state
        self.clear()
        self.known = known
        for nodes, priorities, weights in parts:
            _by_node(self.priority)[nodes], _by_node(self.weight)[nodes] = priorities, weights
            self._refresh(nodes)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums[-1][0])

    @property
    def least(self) -> np.float32:
        """Least priority; 0 if all rows are empty."""
        return self._leasts[-1][0]  # type: ignore[no-any-return]

    @property
    def most(self) -> np.float32:
        """Largest priority; 0 if all rows are empty. Only with ``keeps_most``."""
        return self._mosts[-1][0]  # type: ignore[no-any-return]

    def write(
        self, rows: Rows, priority: Floats | np.float32, weight: Floats | np.float32, *, only_known: bool = False
    ) -> np.float32:
        """Set rows, and return the largest priority that was set, or 0; of a repeated row, the last values count.

        Args:
            rows: [n] rows; -1 is passed over.
            priority: [n], or one for all; above 0, or 0 to make rows empty.
            weight: [n], or one for all.
            only_known: pass over empty rows, and leave rows that are never drawn so; priorities are above 0.

        Raises:
            IndexError: a row is out of range; nothing is written.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        priority, weight = np.asarray(priority, np.float32), np.asarray(weight, np.float32)
        if self._kernel is None:
            known, most = self._write(rows, priority, weight, only_known)
        elif self._kernel.write(self._struct, rows, priority, weight, only_known, self._written):
            known, most = self._written.known, np.float32(self._written.most)
        else:
            raise self._outside(rows)
        self.known += known
        return most

    def draw(self, uniform: NDArray[np.float64]) -> tuple[Rows, Floats]:
        """Return [n] rows, drawn in proportion to their weights, and [n] their weights.

        Args:
            uniform: [n] random numbers of [0, 1), which are overwritten: times ``total``, the sums of weights that the
                drawn row and those before it exceed first. What rounding carries past the end of a node falls on its
                last rows that are drawn at all.

        Raises:
            ValueError: all weights are 0.
        """
        if not self.total:
            raise ValueError("no row has a weight")
        if self._kernel is not None:
            return self._kernel.draw(self._struct, uniform)
        left, found = uniform * self._sums[-1][0], np.zeros(len(uniform), np.int64)
        for level in self._sums[-2::-1]:
            child, left = _child(_by_node(level)[found], left)
            found = found * _WIDTH + child
        found = found * _WIDTH + _child(_by_node(self.weight)[found], left)[0]
        return found, self.weight[found]

    def reweigh(self, weigh: Callable[[Floats], Floats]) -> None:
        """Compute weights anew from priorities [n], except those that are 0."""
        for nodes in self._known_nodes():
            is_drawn = self._weights_of(nodes) > 0
            _by_node(self.weight)[nodes] = np.where(is_drawn, weigh(self._rows_of(nodes)), np.float32(0))
            self._refresh(nodes)

    def known_rows(self) -> Rows:
        """Return [n] the rows that are not empty, ascending."""
        found = [
            (nodes[:, None] * _WIDTH + np.arange(_WIDTH))[self._rows_of(nodes) > 0] for nodes in self._known_nodes()
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def undrawn_rows(self) -> Rows:
        """Return [n] the rows that are not empty and have weight 0, ascending."""
        found = [np.empty(0, np.int64)]
        for start in range(0, self.capacity, _WIDTH * _AT_ONCE):
            rows = slice(start, start + _WIDTH * _AT_ONCE)
            found.append(start + np.flatnonzero((self.weight[rows] == 0) & (self.priority[rows] > 0)))
        return np.concatenate(found)

    def _known_nodes(self) -> Iterator[Rows]:
        """Yield the lowest nodes that have a row which is not empty, some at once."""
        nodes = np.flatnonzero(self._leasts[0])
        for start in range(0, len(nodes), _AT_ONCE):
            yield nodes[start : start + _AT_ONCE]

    def _rows_of(self, nodes: Rows) -> Floats:
        return _by_node(self.priority)[nodes]

    def _weights_of(self, nodes: Rows) -> Floats:
        return _by_node(self.weight)[nodes]

    def _outside(self, rows: Rows) -> IndexError:
        return IndexError(f"rows {rows.min()} to {rows.max()}: expected 0 to {self.capacity - 1}")

    def _write(self, rows: Rows, priority: Floats, weight: Floats, only_known: bool) -> tuple[int, np.float32]:
        if rows.size and not -1 <= rows.min() <= rows.max() < self.capacity:
            raise self._outside(rows)
        chosen = rows >= 0
        if only_known:
            chosen &= self.priority[rows] > 0
        at, given = rows[chosen], np.broadcast_to(priority, rows.shape)[chosen]
        if not at.size:
            return 0, np.float32(0)
        distinct = _distinct(np.sort(at))
        before = np.count_nonzero(self.priority[distinct])
        self.priority[at] = given
        is_drawn = self.weight[at] > 0 if only_known else np.ones(at.shape, bool)
        self.weight[at[is_drawn]] = np.broadcast_to(weight, rows.shape)[chosen][is_drawn]
        self._refresh(_distinct(distinct >> _SHIFT))
        return int(np.count_nonzero(self.priority[distinct]) - before), given.max()

    def _refresh(self, nodes: Rows) -> None:
        """Compute the lowest nodes [n] from their rows, and those above them."""
        self._sums[0][nodes] = _total(self._weights_of(nodes).astype(np.float64))
        for levels, reduce in ((self._leasts, _least), (self._mosts, _most)):
            if levels:
                levels[0][nodes] = reduce(self._rows_of(nodes))
        for level in range(1, len(self._sums)):
            nodes = _distinct(nodes >> _SHIFT)
            self._sums[level][nodes] = _total(_by_node(self._sums[level - 1])[nodes])
            for levels, reduce in ((self._leasts, _least), (self._mosts, _most)):
                if levels:
                    levels[level][nodes] = reduce(_by_node(levels[level - 1])[nodes])


def _zeros(count: int, dtype: type) -> NDArray[Any]:
    """Return zeros that begin with a line of the cache, so that the children of a node are in as few as can be.

    Many are in huge pages, where the system has them: most of the time of a random access is to find its page.
    """
    size = count * np.dtype(dtype).itemsize
    if size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype)
    raw = np.zeros(size + _LINE_BYTES, np.uint8)
    return raw[-address(raw) % _LINE_BYTES :][:size].view(dtype)


def _by_node(level: NDArray[Any]) -> NDArray[Any]:
    return level.reshape(-1, _WIDTH)


def _distinct(ascending: Rows) -> Rows:
    is_last = ascending[:-1] != ascending[1:]
    return np.concatenate((ascending[:-1][is_last], ascending[-1:]))


def _total(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [...] the sums of numbers [..., width], in the order of the kernel: halves are added until one is left."""
    while (width := numbers.shape[-1]) > 1:
        numbers = numbers[..., : width // 2] + numbers[..., width // 2 :]
    return numbers[..., 0]


def _least(children: Floats) -> Floats:
    """Return [n] the least of children [n, 32] that are above 0; 0 of none."""
    # As integers, which have the same order; 0 less 1 is the largest of them.
    least: Floats = ((children.view(np.uint32) - _ONE).min(axis=1) + _ONE).view(np.float32)
    return least


def _most(children: Floats) -> Floats:
    most: Floats = children.max(axis=1)
    return most


def _child(children: NDArray[Any], left: NDArray[np.float64]) -> tuple[Rows, NDArray[np.float64]]:
    """Return [n] which of children [n, 32] is the first at which their sum exceeds ``left``, less those before it."""
    groups = children.astype(np.float64).reshape(-1, _WIDTH // _GROUP, _GROUP)
    group, left = _pick(_total(groups), left)
    child, left = _pick(groups[np.arange(len(left)), group], left)
    return group * _GROUP + child, left


def _pick(numbers: NDArray[np.float64], left: NDArray[np.float64]) -> tuple[Rows, NDArray[np.float64]]:
    """Return [n] which of numbers [n, width] is the first at which their sum exceeds ``left``, less those before it."""
    before = np.zeros((len(numbers), numbers.shape[1] + 1))
    np.cumsum(numbers, axis=1, out=before[:, 1:])
    left = np.minimum(left, np.nextafter(before[:, -1], -np.inf))
    found = (before[:, 1:] <= left[:, None]).sum(axis=1)
    return found, left - before[np.arange(len(left)), found]


class _Tree(ctypes.Structure):
    """``struct tree`` of ``priority_tree.c``."""

    _fields_ = (
        ("capacity", ctypes.c_int64),
        ("levels", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("priority", "weight")),
        *((name, ctypes.c_void_p * _MOST_LEVELS) for name in ("sum", "least", "most")),
    )

    @classmethod
    def of(cls, tree: PriorityTree) -> _Tree:
        """Return where the arrays of a tree are, which it keeps."""
        levels = [
            (ctypes.c_void_p * _MOST_LEVELS)(*map(address, arrays))
            for arrays in (tree._sums, tree._leasts, tree._mosts)
        ]
        return cls(tree.capacity, len(tree._sums), address(tree.priority), address(tree.weight), *levels)


class _Written(ctypes.Structure):
    """``struct written`` of ``priority_tree.c``."""

    _fields_ = (("known", ctypes.c_int64), ("most", ctypes.c_float))


class _Kernel:
    """The functions of ``priority_tree.c``."""

    def __init__(self, compiled: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._write, self._draw = compiled.rlx_tree_write, compiled.rlx_tree_draw
        self._write.argtypes = [pointer, number, pointer, pointer, pointer, number, number, pointer]
        self._write.restype = number
        self._draw.argtypes = [pointer, number, pointer, pointer, pointer]
        self._draw.restype = None

    def write(
        self, tree: _Tree, rows: Rows, priority: Floats, weight: Floats, only_known: bool, written: _Written
    ) -> bool:
        """Return whether all rows are in range; otherwise nothing is written."""
        step = int(priority.ndim or weight.ndim)
        if step:
            priority, weight = (_column(values, rows) for values in (priority, weight))
        places = address(rows), address(priority), address(weight)
        status: int = self._write(
            ctypes.addressof(tree), len(rows), *places, step, only_known, ctypes.addressof(written)
        )
        return status == 0

    def draw(self, tree: _Tree, uniform: NDArray[np.float64]) -> tuple[Rows, Floats]:
        rows, weight = np.empty(len(uniform), np.int64), np.empty(len(uniform), np.float32)
        places = address(uniform), address(rows), address(weight)
        self._draw(ctypes.addressof(tree), len(uniform), *places)
        return rows, weight


def _column(values: Floats, rows: Rows) -> Floats:
    """Return [n] values, one for each row, without a gap."""
    return np.ascontiguousarray(values if values.shape == rows.shape else np.broadcast_to(values, rows.shape))


@lru_cache(maxsize=1)
def tree_kernel() -> _Kernel | None:
    """Return the compiled functions; None without ``library``."""
    compiled = library()
    return None if compiled is None else _Kernel(compiled)
