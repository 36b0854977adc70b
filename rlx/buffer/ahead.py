"""Draws of a dataset's steps made many at once, where nobody can tell: their costs are shared."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Rows, Sampler, Storage
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.sampler.steps import RandomSampler
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.transform.batches import FrameStack
from rlx.errors import RlxError
from rlx.store.ted import PlannedBatches


def batches_at_once(size: int) -> int:
    """Return how many batches of so many steps to plan at once: few of large ones, as small fields are read ahead."""
    return max(1, min(32, 4096 // size))


def planned(
    storage: Storage, around: Sequence[Any], rows: Rows, marks: Mapping[Any, Any] | None = None
) -> PlannedBatches | None:
    """Return batches of the steps at rows [batches, *shape] of a dataset; None where they must be read one by one.

    Args:
        around: transforms that need neighbours.
        marks: values to add to the batches, as ``DatasetStorage.plan`` takes them.
    """
    if type(storage) is not DatasetStorage:  # others may read steps in their own way
        return None
    if not around:
        return storage.plan(rows, marks=marks)
    stack = around[0]
    if len(around) > 1 or type(stack) is not FrameStack or not stack.is_plain or storage.has("steps_to_next_obs"):
        return None
    return storage.plan(rows, stack.keys, stack.k, marks)


class DrawsAhead:
    """Draws of a sampler with replacement over a dataset, each as ``Sampler.sample`` makes it.

    The sampler's state is always that of one draw after the other; if it was changed, draws are made anew.
    """

    def __init__(self) -> None:
        self.discard()

    def discard(self) -> None:
        """Forget all draws, because the storage, the sampler or a transform was replaced."""
        self._waiting: deque[Draw] = deque()
        self._next: tuple[Any, ...] = ()
        self._is_off = False

    def take(self, sampler: Sampler, storage: Storage, around: Sequence[Any], size: int) -> Draw | None:
        """Return the next draw; None if the sampler must be asked, as it is for the first of several."""
        if self._is_off or type(sampler) not in (RandomSampler, SliceSampler) or not storage.is_read_only:
            return None
        assert isinstance(sampler, RandomSampler | SliceSampler)
        *others, number = size, *sampler.position
        is_next, self._next = (*others, number) == self._next, (*others, number + 1)
        if not is_next:
            self._waiting.clear()
            return None
        if not self._waiting:
            with suppress(RlxError):  # which may concern a later draw: draws one by one raise it in time
                self._waiting.extend(_drawn(sampler, storage, around, size))
            self._is_off = not self._waiting
        if self._is_off:
            return None
        sampler.skip()
        return self._waiting.popleft()


def _drawn(sampler: RandomSampler | SliceSampler, storage: Storage, around: Sequence[Any], size: int) -> list[Draw]:
    """Return the next draws; none where batches must be read one by one."""
    found = sampler.upcoming(storage, size, batches_at_once(size))
    batches = None if found is None else planned(storage, around, *found)
    if found is None or batches is None:
        return []
    rows, info = found
    parts = [{key: values[i * size : (i + 1) * size] for key, values in info.items()} for i in range(len(rows))]
    return [
        Draw(rows[i], part, describes_steps=sampler.draws_slices, read=partial(batches.read, i))
        for i, part in enumerate(parts)
    ]
