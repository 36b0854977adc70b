"""A tree over the priorities of rows: their sum, least and largest, drawn from in proportion to their weights.

The compiled kernel (``CompiledTree``) writes and draws in one call each; without it, numpy gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows
from rlx.numbers import check_whole
from rlx.store.native.memory import zeros
from rlx.store.native.tree import CompiledTree, tree_kernel

Floats = NDArray[np.float32]
_SHIFT = 5
_WIDTH = 1 << _SHIFT
_GROUP = 8  # of children that are looked at together
_ONE = np.uint32(1)
_AT_ONCE = 1 << 13  # nodes whose rows are weighed at once


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
        self.priority, self.weight = zeros(rows, np.float32), zeros(rows, np.float32)
        self._sums = [zeros(width, np.float64) for width in levels]
        self._leasts = [zeros(width, np.float32) for width in levels]
        self._mosts = [zeros(width, np.float32) for width in levels] if self._keeps_most else []
        parts = self.capacity, self.priority, self.weight, self._sums, self._leasts, self._mosts
        self._compiled = None if (functions := tree_kernel()) is None else CompiledTree(functions, *parts)

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
        if self._compiled is None:
            known, most = self._write(rows, priority, weight, only_known)
        else:
            known, most = self._compiled.write(rows, priority, weight, only_known)
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
        if self._compiled is not None:
            return self._compiled.draw(uniform)
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

    def _write(self, rows: Rows, priority: Floats, weight: Floats, only_known: bool) -> tuple[int, np.float32]:
        if rows.size and not -1 <= rows.min() <= rows.max() < self.capacity:
            raise IndexError(f"rows {rows.min()} to {rows.max()}: expected 0 to {self.capacity - 1}")
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
