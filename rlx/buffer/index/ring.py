"""Where a storage's lanes stand: every lane is a ring of rows, and time in it never goes back."""

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows


class Ring:
    """``lanes`` rings of ``size`` rows each; step t of lane b lies at row ``b * size + t % size``.

    Args:
        size: rows a lane.
        lanes: how many there are.

    Attributes:
        head: [lanes] time of the oldest step that is stored.
        tail: [lanes] time of the next step to be written.

    Example:
        >>> ring = Ring(size=4)
        >>> ring.push(np.array([0]), np.array([6]))
        >>> len(ring), ring.row_at(np.arange(4))
        (4, array([2, 3, 0, 1]))
    """

    def __init__(self, size: int, lanes: int = 1) -> None:
        self.size = size
        self.lanes = lanes
        self.head = np.zeros(lanes, np.int64)
        self.tail = np.zeros(lanes, np.int64)

    def __len__(self) -> int:
        return int((self.tail - self.head).sum())

    def push(self, lanes: Rows, steps: Rows) -> None:
        """Advance lanes (each named once) by ``counts`` steps; the oldest are overwritten."""
        self.tail[lanes] += steps
        np.maximum(self.head, self.tail - self.size, out=self.head)

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] rows of the 0th, 1st, ... stored step, lane by lane, oldest first."""
        if self.lanes == 1:
            return self.row(np.int64(0), self.head[0] + ordinals)
        behind = np.cumsum(self.tail - self.head)
        lane = np.searchsorted(behind, ordinals, side="right")
        ordinal = ordinals - behind[lane] + self.tail[lane]
        return self.row(lane, ordinal)

    def row(self, lane: Rows | np.int64, time: Rows) -> Rows:
        """Return [n] rows of steps, by lane and time."""
        return lane * self.size + time % self.size

    def locate(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return [n] lane and [n] time of the steps at these rows.

        Raises:
            IndexError: a row is empty or out of range.
        """
        lane, place = np.divmod(rows, self.size)
        if len(rows) and not 0 <= int(lane.min()) <= int(lane.max()) < self.lanes:
            raise IndexError(
                f"row {self._first(rows, (lane < 0) | (lane >= self.lanes))} is out of range "
                f"for {self.size * self.lanes:,} rows"
            )
        head = self.head[lane]
        time = head + (place - head) % self.size
        empty = time >= self.tail[lane]
        if empty.any():
            raise IndexError(f"row {self._first(rows, empty)} is empty: {len(self):,} steps are stored")
        return lane, time

    @staticmethod
    def _first(rows: Rows, chosen: NDArray[np.bool_]) -> int:
        return int(rows[chosen][0])

    def continues(self, rows: Rows) -> bool:
        """Return whether steps written at rows go on where their lanes stand, lane after lane, in time order."""
        lane, place = np.divmod(rows, self.size)
        first = run_starts(lane)
        if len(np.unique(lane[first])) != len(first):
            return False
        if len(lane) and not 0 <= lane.min() <= lane.max() < self.lanes:
            return False
        rank = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        return bool((place == (self.tail[lane] + rank) % self.size).all())


def run_starts(groups: Rows) -> Rows:
    """Return [m] the places where another value than the one before starts, 0 included.

    Example:
        >>> run_starts(np.array([5, 5, 3, 5]))
        array([0, 2, 3])
    """
    starts = np.empty(len(groups), bool)
    starts[:1] = True
    np.not_equal(groups[1:], groups[:-1], out=starts[1:])
    return np.flatnonzero(starts)
