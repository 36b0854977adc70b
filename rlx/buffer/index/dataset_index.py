"""The index of a dataset, whose trajectories follow each other and never change."""

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows
from rlx.store.trajectories import Trajectories


class DatasetTrajectoryIndex:
    """Which steps of a dataset follow each other; a row is a step.

    Args:
        trajectories: the dataset's table.
    """

    def __init__(self, trajectories: Trajectories) -> None:
        self.generation = 0
        self._start, self._length = trajectories.start, trajectories.length
        self._from_reset = trajectories.from_reset
        self._steps = int(self._length.sum())

    def __len__(self) -> int:
        return self._steps

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the 0th, 1st, ... step: the same numbers."""
        return ordinals

    def _locate(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return [n] the trajectory of each row and its place in it."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._steps:
            bad = rows[(rows < 0) | (rows >= self._steps)][0]
            raise IndexError(f"row {bad} is out of range for {self._steps:,} steps")
        trajectory = self._start.searchsorted(rows, side="right") - 1
        return trajectory, rows - self._start[trajectory]

    def remaining(self, rows: Rows) -> Rows:
        """Return [n] steps from each row to the end of its trajectory, itself included."""
        trajectory, elapsed = self._locate(rows)
        return self._length[trajectory] - elapsed

    def elapsed(self, rows: Rows) -> Rows:
        """Return [n] steps of the trajectory before each row."""
        return self._locate(rows)[1]

    def at_reset(self, rows: Rows) -> NDArray[np.bool_]:
        """Return [n] whether each row is the first step of its episode."""
        trajectory, elapsed = self._locate(rows)
        first: NDArray[np.bool_] = self._from_reset[trajectory] & (elapsed == 0)
        return first

    def follow(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] each row and those that follow it; -1 after the end of the trajectory."""
        column = np.arange(steps)
        return np.where(column < self.remaining(rows)[:, None], rows[:, None] + column, -1)

    def after(self, rows: Rows, steps: Rows) -> Rows:
        """Return [n] the row ``steps`` after each row; -1 after the end of the trajectory."""
        return np.where(steps < self.remaining(rows), rows + steps, -1)

    def precede(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] those that precede each row, oldest first, and itself last; -1 before the trajectory."""
        back = np.arange(steps)[::-1]
        return np.where(back <= self.elapsed(rows)[:, None], rows[:, None] - back, -1)

    def trajectories(self) -> tuple[Rows, Rows]:
        """Return [N] the first row, and [N] the steps, of every trajectory."""
        return self._start.copy(), self._length.copy()
