"""A wide tree over priorities: their sum, minimum or maximum at once, and what lies at a prefix sum.

Every node reduces 16 children, so a million leaves take five levels and a batch of updates or look-ups a few numpy
calls for each. A node is always recomputed from its children, never corrected by differences, so that nothing drifts
and the tree is a function of its leaves alone.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

_SHIFT = 4
_WIDTH = 1 << _SHIFT
_REDUCE = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NOTHING = {"sum": 0.0, "min": np.inf, "max": -np.inf}


class PriorityTree:
    """The sum, minimum or maximum of ``capacity`` float64 leaves, and the leaves.

    Args:
        capacity: how many leaves; they start as what changes nothing: 0, infinity or minus infinity.
        of: what a node says of its children.

    Example:
        >>> tree = PriorityTree(10)
        >>> tree.set(np.array([3, 7]), np.array([1.0, 2.0]))
        >>> tree.root
        3.0
        >>> tree.find(np.array([0.5, 1.5, 2.9]))
        array([3, 7, 7])
    """

    def __init__(self, capacity: int, of: Literal["sum", "min", "max"] = "sum") -> None:
        if capacity < 1:
            raise ValueError(f"expected capacity of at least 1, found {capacity}")
        self.capacity = capacity
        self._reduce = _REDUCE[of]
        self._nothing = _NOTHING[of]
        self._levels: list[NDArray[np.float64]] = []  # the leaves first; every level [nodes, children]
        nodes = capacity
        while not self._levels or nodes > 1:
            nodes = -(-nodes // _WIDTH)
            self._levels.append(np.full((nodes, _WIDTH), self._nothing))

    @property
    def root(self) -> float:
        """The reduction of all leaves."""
        return float(self._reduce.reduce(self._levels[-1][0]))

    def get(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return [n] the leaves at these rows."""
        return self._levels[0].reshape(-1)[rows]

    def set(self, rows: NDArray[np.int64], values: NDArray[np.float64] | float) -> None:
        """Set leaves; of a row that is there more than once the last value counts.

        Args:
            rows: [n], each of range(capacity).
            values: [n], or one for all.
        """
        if rows.size == 0:
            return
        self._levels[0].reshape(-1)[rows] = values
        nodes = np.sort(rows)
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            nodes = _distinct(nodes >> _SHIFT)
            parents.reshape(-1)[nodes] = self._reduce.reduce(children.take(nodes, axis=0), axis=1)

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return [n] the leaf that each prefix sum falls on: the first up to which the leaves add up to more. Sum
        trees only.

        Args:
            sums: [n] from 0 to less than the root. What rounding carries past the end falls on the last leaf that is
                not 0; a leaf that is 0 is never found.
        """
        nodes, left = np.zeros(sums.size, np.int64), sums
        every = np.arange(sums.size)
        for level in reversed(self._levels):
            running = np.zeros((sums.size, _WIDTH + 1))
            np.cumsum(level.take(nodes, axis=0), axis=1, out=running[:, 1:])
            left = np.minimum(left, np.nextafter(running[:, -1], -np.inf))
            child = (running[:, 1:] > left[:, None]).argmax(axis=1)
            left = left - running[every, child]
            nodes = nodes * _WIDTH + child
        return nodes

    def clear(self) -> None:
        """Make every leaf what changes nothing."""
        for level in self._levels:
            level.fill(self._nothing)


def _distinct(ascending: NDArray[np.int64]) -> NDArray[np.int64]:
    last_of_its_kind = ascending[:-1] != ascending[1:]
    return np.concatenate((ascending[:-1][last_of_its_kind], ascending[-1:]))
