"""In which order the rows of arrays are steps: the lanes of a batch of several dimensions, and pieces of episodes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """Rows in an order of their own: runs of rows, each row ``stride`` rows after the one before.

    Args:
        first: [k] row that each run begins with.
        count: [k] rows of each run.
        stride: of all of them.

    Example:
        >>> runs = RowRuns(np.array([4, 1]), np.array([2, 3]), stride=2)
        >>> list(runs.spans(1, 4))
        [(6, 1), (1, 2)]
        >>> list(runs.picked(np.array([[3, 2], [0, 1]])).spans(0, 3))
        [(3, 2), (4, 1)]
    """

    first: Places
    count: Places
    stride: int
    _ends: Places = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum(self.count))

    @property
    def rows(self) -> int:
        """Rows in all."""
        return int(self.count.sum())

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield first row and number of rows of each part of a run that lies in [start, stop) of this order."""
        run = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            inside = start - int(self._ends[run] - self.count[run])
            count = min(stop - start, int(self.count[run]) - inside)
            yield int(self.first[run]) + inside * self.stride, count
            start, run = start + count, run + 1

    def picked(self, pieces: Places) -> "RowRuns":
        """Return the rows of pieces [p, 2], each the place of its first row in this order and how many follow it."""
        spans = [span for start, count in pieces.tolist() for span in self.spans(start, start + count)]
        first, count = np.array(spans, np.int64).reshape(-1, 2).T
        return RowRuns(first, count, self.stride)


def lanes(shape: Sequence[int], time: int, *, filled: int, oldest: int = 0) -> RowRuns:
    """Return rows of a batch lane by lane, each lane in the order of time.

    Args:
        shape: of the batch; its rows lie as in an array in C order.
        time: the dimension that is time.
        filled: how many of the first dimension hold steps.
        oldest: which of these was written first; a ring goes round from there.

    Example:
        >>> runs = lanes((4, 2), 0, filled=4, oldest=3)
        >>> [row for first, count in runs.spans(0, 8) for row in range(first, first + 2 * count, 2)]
        [6, 0, 2, 4, 7, 1, 3, 5]
    """
    stride = math.prod(shape[time + 1 :])
    turned = np.roll(np.arange(filled), -oldest)
    axes = [turned if axis == 0 else np.arange(size) for axis, size in enumerate(shape)]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = np.zeros(1, np.int64)
    for axis, places in enumerate(axes):
        if axis != time:
            first = (first[:, None] + places * strides[axis]).reshape(-1)
    if time:
        return RowRuns(first, np.full(len(first), shape[time]), stride)
    parts = np.array([[oldest * stride, filled - oldest], [0, oldest]])
    parts = parts[parts[:, 1] > 0]
    starts = (first[:, None] + parts[:, 0]).reshape(-1)
    return RowRuns(starts, np.tile(parts[:, 1], len(first)), stride)
