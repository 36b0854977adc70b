"""Stored steps as a chain of transforms makes them: how a transform gets at the steps around those of the batch.

A chain is a stack of readers. The lowest reads the storage; each transform reads from the one below and changes the
result. So a transform that needs the steps before or after a row sees the output of the transforms below it: the n-step
return of clipped rewards, the stack of the frames n steps ahead.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, is_leaf_nontensor

from rlx.buffer.protocol import Keys, Rows, Storage, TrajectoryIndex


class Reader(Protocol):
    """Reader of steps after some of the transforms."""

    @property
    def index(self) -> TrajectoryIndex:
        """Which rows follow each other."""

    def read(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows; with ``keys`` at least those of them that there are."""


@runtime_checkable
class NeighbourTransform(Protocol):
    """A transform that needs steps other than those it changes."""

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps [n] at these rows, changed; with ``keys`` only those matter.

        Args:
            rows: [n] rows.
            keys: the TED keys that are wanted, or None for all.
            below: reads any rows as the transforms before this one make them. Rows that occur twice are read twice:
                ask for distinct ones.
        """


class Pointwise:
    """A transform that makes each step from that step alone, and makes do with any of its keys."""

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch, changed."""
        raise NotImplementedError


class StoredSteps:
    """The lowest reader. It remembers the first rows that were read whole, and reads none of them twice."""

    def __init__(self, storage: Storage, index: Callable[[], TrajectoryIndex]) -> None:
        self._storage = storage
        self._make_index = index
        self._batch: TensorDictBase | None = None

    @cached_property
    def index(self) -> TrajectoryIndex:
        """Which rows follow each other."""
        return self._make_index()

    def read(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows."""
        if keys is None:
            steps = self._storage.get(rows)
            if self._batch is None:
                self._remember(rows, steps)
            return steps
        keys = [key for key in keys if self._has(key)]
        place = self._places(rows)
        known = np.flatnonzero(place >= 0)
        if self._batch is None or not len(known):
            return self._storage.get(rows, keys)
        fresh = np.flatnonzero(place < 0)
        seen = pick_steps(self._batch.select(*keys), place[known])
        if not len(fresh):
            return seen
        position = np.empty(len(rows), np.int64)
        position[known], position[fresh] = np.arange(len(known)), np.arange(len(known), len(rows))
        both: Any = torch.cat([seen, self._storage.get(rows[fresh], keys)])  # torch knows no TensorDict
        return pick_steps(both, position)

    def read_stacked(self, rows: Rows, keys: Keys, k: int) -> TensorDictBase | None:
        """Return the steps [n] at these rows with stacks of k observations, if the storage makes them."""
        return None if self._batch is not None else self._storage.get_stacked(rows, keys, k)

    def _remember(self, rows: Rows, steps: TensorDictBase) -> None:
        # A shallow copy: the transforms replace entries of the batch, and must not replace them here.
        self._batch = steps.copy()
        self._rows, self._first = np.unique(rows, return_index=True)

    def _places(self, rows: Rows) -> Rows:
        """Return [n] where each row is in the remembered batch; -1 where it is not."""
        if self._batch is None or not len(self._rows):
            return np.full(len(rows), -1)
        place = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        return np.where(self._rows[place] == rows, self._first[place], -1)

    def _has(self, key: NestedKey) -> bool:
        return self._batch is None or key in self._batch.keys(include_nested=True)


def pick(leaf: torch.Tensor, places: Rows) -> torch.Tensor:
    """Return [n, ...] these of a tensor's rows."""
    # Several times as fast as indexing, where rows are images.
    return leaf.index_select(0, torch.from_numpy(places).to(leaf.device))


def pick_steps(steps: TensorDictBase, places: Rows) -> TensorDictBase:
    """Return [n] these of some steps."""
    picked = TensorDict({}, [len(places)], device=steps.device)
    for key, leaf in steps.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        # Texts are no tensor, and are indexed as a list is.
        picked.set(key, pick(leaf, places) if isinstance(leaf, torch.Tensor) else leaf[places.tolist()])
    return picked


class Transformed:
    """The steps of a reader, changed by one transform."""

    def __init__(self, transform: Any, below: Reader) -> None:
        self._transform = transform
        self._below = below

    @property
    def index(self) -> TrajectoryIndex:
        """Which rows follow each other."""
        return self._below.index

    def read(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, changed.

        Raises:
            ValueError: a callable does not return one step per step, so that transforms after it cannot find
                neighbours.
        """
        if isinstance(self._transform, NeighbourTransform):
            return self._transform.around(rows, keys, self._below)
        if isinstance(self._transform, Pointwise):
            return self._transform(self._below.read(rows, keys))
        # Only the callable knows which keys it needs.
        steps: TensorDictBase = self._transform(self._below.read(rows))
        if steps.batch_size[:1] != (len(rows),):
            raise ValueError(
                f"transform {self._transform!r} made {list(steps.batch_size)} of {len(rows)} steps: "
                "a transform that needs neighbours cannot follow one that changes their number"
            )
        return steps


def reader(storage: Storage, transforms: Sequence[Any], index: Callable[[], TrajectoryIndex]) -> Reader:
    """Read a storage through transforms, the first of which is applied first.

    Args:
        storage: where the steps are.
        transforms: callables, or transforms that need neighbours.
        index: makes the index, if one of them needs it.
    """
    top: Reader = StoredSteps(storage, index)
    for transform in transforms:
        top = Transformed(transform, top)
    return top


def split(transforms: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the transforms up to the last that needs neighbours, and those after it."""
    needy = [i for i, transform in enumerate(transforms) if isinstance(transform, NeighbourTransform)]
    cut = needy[-1] + 1 if needy else 0
    return transforms[:cut], transforms[cut:]


def path(key: NestedKey) -> tuple[str, ...]:
    """Return a TED key as a tuple.

    Example:
        >>> path("reward"), path(("next", "reward"))
        (('reward',), ('next', 'reward'))
    """
    return (key,) if isinstance(key, str) else tuple(part for item in key for part in path(item))


def wanted(key: NestedKey, keys: Keys | None) -> bool:
    """Return whether this leaf is among the keys, or below one of them; it is when all are wanted."""
    return keys is None or any(path(key)[: len(path(other))] == path(other) for other in keys)
