"""Streams of an epoch: all trajectories one after the other, cut into slices that run on from one into the next."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.epoch_order import derived
from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.draws import permute
from rlx.buffer.sampler.slice_starts import Slicing, stream_marks
from rlx.errors import SliceTooLongError


class StreamElements:
    """The slices of an epoch, in which trajectories follow each other, in every epoch in another order.

    With replacement, every step that is followed by enough others is an element.

    Args:
        replacement: whether elements are starts.
        shuffle: whether trajectories are in random order; otherwise in that of the storage.
        carry: whether a slice continues the one before it, and is not a beginning.
    """

    left_out = 0

    def __init__(
        self, storage: Storage, steps: int, seed: int, *, replacement: bool, shuffle: bool, carry: bool
    ) -> None:
        self._storage, self._index, self._steps, self._seed = storage, storage.index(), steps, seed
        self._shuffle, self._carry = shuffle, carry
        self._first, self._length = self._index.trajectories()
        total = int(self._length.sum())
        if 0 < total < steps:
            raise SliceTooLongError(f"slices of {steps} steps asked for, all trajectories together have {total}")
        self._stride = 1 if replacement else steps
        self.count = (total - steps) // self._stride + 1 if total else 0
        self._spare = total - steps - (self.count - 1) * self._stride

    def cut(self, elements: Rows, epoch: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n, steps] the rows of slices, and the marks of the steps where trajectories meet."""
        order, ends, skipped = _line(self, epoch)
        place = elements[:, None] * self._stride + skipped + np.arange(self._steps)
        piece = ends.searchsorted(place.reshape(-1), side="right").reshape(place.shape)
        trajectory = order[piece]
        elapsed = place - ends[piece] + self._length[trajectory]
        rows = self._index.after(self._first[trajectory].reshape(-1), elapsed.reshape(-1))
        is_first, is_last = elapsed == 0, elapsed == self._length[trajectory] - 1
        is_first[(elements == 0) | (not self._carry), 0] = True
        slicing = Slicing(None, self._steps)
        return rows.reshape(place.shape), stream_marks(slicing, self._storage, rows, is_first.ravel(), is_last.ravel())

    def line(self, epoch: int) -> tuple[Rows, Rows, int]:
        """Return [N] the trajectories in the order of an epoch, [N] where each ends, and the steps before the first
        slice."""
        order = np.arange(len(self._length))
        if not self._shuffle:
            return order, np.cumsum(self._length), 0
        order = permute(order, len(order), derived(self._seed, 6), epoch)
        return order, np.cumsum(self._length[order]), derived(self._seed, 7, epoch) % (self._spare + 1)


@lru_cache(maxsize=4)
def _line(elements: StreamElements, epoch: int) -> tuple[Rows, Rows, int]:
    return elements.line(epoch)
