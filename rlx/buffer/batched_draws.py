"""Draws of a dataset's steps, made many at once to share their costs, with the same results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeGuard, cast

from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Keys, Rows, Sampler, Storage
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.sampler.steps import RandomSampler
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.transform.batches import FrameStack
from rlx.buffer.transform.compose import chosen_marks, for_batch
from rlx.buffer.transform.goals import Goals
from rlx.buffer.transform.group import Group
from rlx.buffer.transform.trajectories import NextAction, Timestep, TrajectoryColumns
from rlx.errors import RlxError
from rlx.store.ted import PlannedBatches
from rlx.transform.protocol import as_path, is_random

_PLANNED = (Timestep, TrajectoryColumns, NextAction, Goals)  # subclasses may do anything


def batches_at_once(size: int) -> int:
    """Return the number of batches to plan at once, for this batch size; small fields of all of them are read ahead."""
    return max(1, min(64, 8192 // size))


def is_planned(storage: Storage, around: Sequence[Any]) -> TypeGuard[DatasetStorage]:
    """Return whether batches of a storage through transforms that need neighbours may be read as planned."""
    if type(storage) is not DatasetStorage:  # others may read steps in their own way
        return False
    if not around:
        return True
    first, others = _split(around)
    if first and storage.has("steps_to_next_obs"):
        return False
    return all(type(part) in _PLANNED for part in others)


def _split(around: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return ``FrameStack``, if it is the first transform, and the others."""
    count = int(bool(around) and type(around[0]) is FrameStack)
    return around[:count], around[count:]


def planned(
    storage: Storage,
    around: Sequence[Any],
    rows: Rows,
    marks: Mapping[Any, Any] | None = None,
    only: Keys | None = None,
    chances: Sequence[tuple[int, Rows]] | None = None,
) -> PlannedBatches | None:
    """Return batches of the steps at rows [batches, *shape] of a dataset; None if they must be read one by one.

    Args:
        around: transforms that need neighbours.
        marks: values to add to the batches, as ``DatasetStorage.plan`` takes them.
        only: keys to read; all by default.
        chances: the number of each batch's random numbers, and [*shape] the places of its steps, as ``for_batch`` takes
            them; None where nothing may be drawn.
    """
    if not is_planned(storage, around):
        return None
    first, others = _split(around) if around else ((), ())
    keys, stack = (first[0].keys, first[0].stack) if first else ((), None)
    group = Group(storage, rows, only, {} if stack is None else {"/".join(as_path(key)): stack for key in keys})
    for place, part in enumerate(others, len(first)):
        if is_random(part) and chances is None:
            return None
        drawn = [for_batch([part], number, places, place)[0] for number, places in chances or ()]
        if not part.plan(group, drawn):
            return None
    added: Mapping[Any, Any] = {**group.marks, **(marks or {})}
    if only is not None:
        if not all(map(group.has, map(as_path, only))):
            return None
        added, only = chosen_marks(added, only), [key for key in only if storage.has_below(key)]
    return storage.plan(rows, keys, stack, added, only, group.more, group.after)


class DrawsAhead:
    """Draws of a sampler with replacement over a dataset, each as ``Sampler.sample`` makes it.

    The sampler's state is always that of single draws; if it was changed, the draws are repeated.
    """

    def __init__(self) -> None:
        self.discard()

    def discard(self) -> None:
        """Forget all draws, because the storage, the sampler or a transform was replaced."""
        self._waiting: Iterator[Draw] = iter(())
        self._next: tuple[Any, ...] = ()
        self._is_off = False

    def take(
        self, sampler: Sampler, storage: Storage, around: Sequence[Any], size: int, keys: Keys | None = None
    ) -> Draw | None:
        """Return the next draw; None if the sampler must draw, as for the first of several."""
        if self._is_off or type(sampler) not in (RandomSampler, SliceSampler) or not storage.is_read_only:
            return None
        known = cast("RandomSampler | SliceSampler", sampler)
        *others, number = size, *known.position
        is_next, self._next = (*others, number) == self._next, (*others, number + 1)
        if not is_next:
            self._waiting = iter(())
            return None
        draw = next(self._waiting, None)
        if draw is None:
            with suppress(RlxError):  # which may concern a later draw: draws one by one raise it in time
                self._waiting = _drawn(known, storage, around, size, keys)
            draw = next(self._waiting, None)
            self._is_off = draw is None
        if draw is not None:
            known.skip()
        return draw


def _drawn(
    sampler: RandomSampler | SliceSampler, storage: Storage, around: Sequence[Any], size: int, keys: Keys | None
) -> Iterator[Draw]:
    """Return the next draws; none where batches must be read one by one."""
    found = sampler.upcoming(storage, size, batches_at_once(size))
    batches = None if found is None else planned(storage, around, *found, keys)
    if found is None or batches is None:
        return iter(())
    rows, info = found
    return (
        Draw(
            rows[i],
            {key: values[i * size : (i + 1) * size] for key, values in info.items()},
            describes_steps=sampler.draws_slices,
            read=partial(batches.read, i),
        )
        for i in range(len(rows))
    )
