"""Composition of buffer transforms, each of which can read the neighbours of a batch's steps.

Transforms are a stack of readers. The lowest reads the storage; each transform reads from the one below
and changes the result. So a transform that needs steps before or after a row sees the output of the transforms below
it: the n-step return of clipped rewards, the stack of the frames n steps ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, is_leaf_nontensor

from rlx.buffer.protocol import Keys, Rows, Storage
from rlx.buffer.storage.step_schema import accelerator_of, leaves_of, padded, signed
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.errors import OptionError, TransformError
from rlx.store.step_reader import Stack
from rlx.transform.protocol import (
    BatchChance,
    Neighbours,
    NeighbourTransform,
    Pointwise,
    Reader,
    as_path,
    is_random,
    needs_neighbours,
    wanted,
)

Transform = Callable[[TensorDictBase], TensorDictBase] | NeighbourTransform
_MASK = ("collector", "mask")
_FEW = 8  # rows that are read, to one that is known
_ODD = 0x9E3779B97F4A7C15


class _Reader:
    """Reader of steps, which picks rows that may repeat."""

    def read(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows; with ``keys`` at least those of them that are stored."""
        raise NotImplementedError

    def pick(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, which may repeat: each row is read once."""
        distinct, position = np.unique(rows, return_inverse=True)
        return pick_steps(self.read(distinct, keys), position)


class StoredSteps(_Reader):
    """Reader of the storage, which caches the first rows that were read, with their keys."""

    def __init__(self, storage: Storage, index: Callable[[], Neighbours]) -> None:
        self._storage = storage
        self._make_index = index
        self._index: Neighbours | None = None  # a cached_property would lock, in Python 3.11, those of all buffers
        self._batch: TensorDictBase | None = None

    @property
    def index(self) -> Neighbours:
        """Which rows follow each other."""
        if self._index is None:
            self._index = self._make_index()
        return self._index

    def read(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows."""
        if keys is not None:
            keys = [key for key in keys if self._storage.has_below(key)]
        if self._batch is None:
            steps = self._storage.get(rows, keys)
            # A shallow copy: the transforms replace entries of the batch, and must not replace them here.
            self._batch, self._keys = steps.copy(), keys
            self._rows, self._first = np.unique(rows, return_index=True)
            return steps
        if keys is None or not all(wanted(key, self._keys) for key in keys):
            return self._storage.get(rows, keys)
        place = self._places(rows)
        known = np.flatnonzero(place >= 0)
        if len(known) * _FEW <= len(rows):  # to join a few with the others costs more than to read them again
            return self._storage.get(rows, keys)
        fresh = np.flatnonzero(place < 0)
        seen = pick_steps(self._batch.select(*keys), place[known])
        if not len(fresh):
            return seen
        position = np.empty(len(rows), np.int64)
        position[known], position[fresh] = np.arange(len(known)), np.arange(len(known), len(rows))
        both: Any = torch.cat([seen, self._storage.get(rows[fresh], keys)])  # torch knows no TensorDict
        return pick_steps(both, position)

    def read_stacked(self, rows: Rows, keys: Keys, stack: Stack, only: Keys | None) -> TensorDictBase | None:
        """Return the steps [n] at these rows with stacks of observations, if the storage makes them.

        Args:
            keys: the observations to be stacked.
            only: the keys to read, of which at least the stored ones are; all by default.
        """
        if self._batch is not None:
            return None
        if only is None:
            return self._storage.get_stacked(rows, keys, stack)
        return self._storage.get_stacked(rows, keys, stack, [key for key in only if self._storage.has_below(key)])

    def _places(self, rows: Rows) -> Rows:
        """Return [n] where each row is in the remembered batch; -1 where it is not."""
        if not len(self._rows):
            return np.full(len(rows), -1)
        place = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        return np.where(self._rows[place] == rows, self._first[place], -1)


def pick(leaf: torch.Tensor, places: Rows) -> torch.Tensor:
    """Return [n, ...] these of a tensor's rows."""
    # Several times as fast as indexing, where rows are images.
    return signed(leaf).index_select(0, torch.from_numpy(places).to(leaf.device)).view(leaf.dtype)


def pick_steps(steps: TensorDictBase, places: Rows) -> TensorDictBase:
    """Return [n] these of some steps."""
    picked = TensorDict({}, [len(places)], device=steps.device)
    for key, leaf in steps.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        # Texts are no tensor, and are indexed as a list is.
        picked.set(key, pick(leaf, places) if isinstance(leaf, torch.Tensor) else leaf[places.tolist()])
    return picked


class Transformed(_Reader):
    """The steps of a reader after one transform."""

    def __init__(self, transform: Any, below: Reader) -> None:
        self._transform = transform
        self._below = below

    @property
    def index(self) -> Neighbours:
        """Which rows follow each other."""
        return self._below.index

    def read(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        """Return the transformed steps [n] at these rows."""
        if needs_neighbours(self._transform):
            return self._transform.around(rows, keys, self._below)
        if isinstance(self._transform, Pointwise):
            return self._transform(self._below.read(rows, keys))
        # Only the callable knows which keys it needs.
        steps: TensorDictBase = applied([self._transform], self._below.read(rows))
        if steps.batch_size[:1] != (len(rows),):
            raise ValueError(
                f"transform {self._transform!r} returned {list(steps.batch_size)} for {len(rows)} steps: "
                "a transform that needs neighbours cannot follow one that changes their number"
            )
        return steps


def reader(storage: Storage, transforms: Sequence[Any], index: Callable[[], Neighbours]) -> Reader:
    """Read a storage through transforms, the first of which is applied first.

    Args:
        transforms: callables, or transforms that need neighbours.
        index: makes the index, if one of them needs it.
    """
    top: Reader = StoredSteps(storage, index)
    for transform in transforms:
        top = Transformed(transform, top)
    return top


def read_steps(
    storage: Storage,
    transforms: Sequence[Any],
    index: Callable[[], Neighbours],
    rows: Rows,
    keys: Keys | None = None,
) -> TensorDictBase:
    """Return the steps [n] at these rows after transforms, as ``reader`` reads them, with these keys only.

    Raises:
        KeyError: a key that neither the storage nor a transform has.
    """
    if not transforms:
        return storage.get(rows, keys)
    steps = reader(storage, transforms, index).read(rows, keys)
    if keys is None:
        return steps
    for key in keys:
        if steps.get(key, None) is None:
            raise KeyError(f"{'/'.join(as_path(key))!r} is neither stored nor made by a transform")
    return steps.select(*keys)


def checked_keys(keys: Sequence[NestedKey] | None) -> Keys | None:
    """Return the ``keys`` of batches.

    Raises:
        OptionError: they are no keys.
    """
    if keys is None:
        return None
    if isinstance(keys, str) or not isinstance(keys, Iterable) or not keys:
        raise OptionError(f"keys {keys!r}: expected a list of keys")
    paths = dict.fromkeys(as_path(key) for key in keys)
    # A leaf beside its group would restrict the group to it.
    outer = [path for path in paths if not any(path[:size] in paths for size in range(1, len(path)))]
    return tuple(path if len(path) > 1 else path[0] for path in outer)


def chosen_marks(marks: Mapping[Any, Any], keys: Keys) -> Mapping[Any, Any]:
    """Return the values of a sampler that come with these keys: all but the flags under ``next`` that are not asked
    for."""
    return {key: value for key, value in marks.items() if as_path(key)[0] != "next" or wanted(key, keys)}


def split(transforms: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the transforms up to the last that needs neighbours, and those after it."""
    needy = [i for i, transform in enumerate(transforms) if needs_neighbours(transform)]
    cut = needy[-1] + 1 if needy else 0
    return transforms[:cut], transforms[cut:]


def for_batch(
    transforms: Sequence[Any], number: int | None, places: Rows | None = None, first: int = 0
) -> Sequence[Any]:
    """Return the transforms, those that draw random numbers with the numbers of a batch.

    Args:
        number: of the batch; None: each transform's own next numbers.
        places: [n] where each step is in the whole batch, of which a rank has a part; in order by default.
        first: how many transforms there are before these.
    """
    if number is None:
        return transforms
    # Transforms of one seed draw different numbers, by where they are.
    return [
        part.for_batch(BatchChance(number + place * _ODD, places)) if is_random(part) else part
        for place, part in enumerate(transforms, first)
    ]


def applied(transforms: Sequence[Any], batch: TensorDictBase) -> Any:
    """Return the batch after transforms, none of which may need neighbours.

    Raises:
        TransformError: one returned nothing.
    """
    for transform in transforms:
        batch = transform(batch)
        if batch is None:
            raise TransformError(f"{transform!r} returned None, expected the batch")
    return batch


class Compose:
    """Transforms applied in order; on writing, the ``inv`` of those that have one is applied in reverse order.

    Args:
        transforms: callables from TensorDict to TensorDict, or transforms that need neighbours.

    Attributes:
        is_random: whether one draws random numbers.
        has_inverse: whether ``inv`` may change steps.
        around: the transforms up to the last that needs neighbours.
        rest: those after it.

    Raises:
        TransformError: a transform must not follow another one, such as ``FrameStack`` after ``NStep``.
        TypeError: one is not callable, nor a transform that needs neighbours.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> double = lambda steps: steps.apply(lambda x: x * 2)
        >>> Compose(double, double)(TensorDict({"a": torch.ones(1)}, [1]))["a"]
        tensor([4.])
    """

    def __init__(self, *transforms: Transform) -> None:
        self._hold(_in_order([part for transform in transforms for part in flat(transform)]))

    def _hold(self, transforms: list[Any]) -> None:
        self.transforms = transforms
        self.is_random = any(is_random(part) for part in transforms)
        self.has_inverse = any(hasattr(part, "inv") for part in transforms)
        self.around, self.rest = split(transforms)

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch after the transforms; those that need neighbours find them within the batch only."""
        return over_batch(self, batch)

    def inv(self, steps: TensorDictBase) -> TensorDictBase:
        """Return steps in the form to be stored."""
        for transform in reversed(self.transforms):
            if hasattr(transform, "inv"):
                steps = transform.inv(steps)
        return steps

    def append(self, transform: Transform) -> Self:
        """Append a transform; return itself."""
        return self.insert(len(self.transforms), transform)

    def insert(self, index: int, transform: Transform) -> Self:
        """Add one before the index-th; return itself.

        Raises:
            IndexError: the index is out of range.
            TransformError: a transform must not follow another one, such as ``FrameStack`` after ``NStep``.
        """
        count = len(self.transforms)
        if not -count <= index <= count:
            raise IndexError(f"transform {index}: expected -{count} to {count}")
        self._hold(_in_order([*self.transforms[:index], *flat(transform), *self.transforms[index:]]))
        return self

    def __len__(self) -> int:
        return len(self.transforms)

    def __getitem__(self, index: int) -> Any:
        return self.transforms[index]

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


class Inverted:
    """A transform whose two directions are swapped: applied on the way in, and its ``inv``, if any, on sample."""

    def __init__(self, transform: Transform) -> None:
        if needs_neighbours(transform):
            raise TypeError(f"{transform!r} needs stored steps: it cannot be applied before they are stored")
        self.transform: Any = transform

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch after the transform's ``inv``."""
        back: TensorDictBase = self.transform.inv(batch) if hasattr(self.transform, "inv") else batch
        return back

    def inv(self, steps: TensorDictBase) -> TensorDictBase:
        """Return steps after the transform."""
        stored: TensorDictBase = self.transform(steps)
        return stored

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"


def flat(transform: Any) -> Sequence[Any]:
    """Return the transforms that a transform is made of."""
    return list(transform.transforms) if isinstance(transform, Compose) else [transform]


def _in_order(transforms: list[Any]) -> list[Any]:
    for place, transform in enumerate(transforms):
        _check(transform)
        if needs_neighbours(transform):
            _check_drawn(transform, transforms[:place])
        if hasattr(transform, "check_earlier"):
            transform.check_earlier(transforms[:place])
    return transforms


def _check_drawn(transform: Any, earlier: Sequence[Any]) -> None:
    """Raise TransformError if a transform would read neighbours that were drawn apart from the batch's steps."""
    for part in earlier:
        if is_random(part) and not (needs_neighbours(part) and is_random(transform)):
            name = type(transform).__name__
            raise TransformError(
                f"{name} after {type(part).__name__} would read other steps changed at random; put {name} first"
            )


def _check(transform: Any) -> None:
    is_class = isinstance(transform, type)
    if is_class and (issubclass(transform, Pointwise) or needs_neighbours(transform)):
        raise TypeError(f"transform: found the class {transform.__name__} itself: give {transform.__name__}(...)")
    if not (callable(transform) or needs_neighbours(transform)):
        raise TypeError(
            f"transform: expected a function of a TensorDict or a transform of rlx.buffer, found {transform!r}"
        )


class OverBatch:
    """Base of transforms that need neighbours: called with a batch, they find them within it only."""

    __slots__ = ()

    def __call__(self: Any, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch [*B, T] transformed; with ``("collector", "mask")``, steps that it leaves out are zero."""
        return over_batch(self, batch)


def over_batch(transform: Transform, batch: TensorDictBase) -> TensorDictBase:
    """Return the result of a transform for a batch; neighbours are found within the batch only.

    Args:
        transform: a callable, a transform that needs neighbours, or a Compose of such.
        batch: [*B, T] steps; no trajectory continues in another row. With ``("collector", "mask")``, steps after the
            ends of rows are left out, and are zero in the result.

    Example:
        >>> from tensordict import TensorDict
        >>> from rlx.transform.multi_step import NStep
        >>> after = {"reward": torch.ones(3, 1), "done": torch.tensor([[False], [False], [True]])}
        >>> over_batch(NStep(2, 0.5), TensorDict({"next": after}, [3]))["next", "reward"].flatten()
        tensor([1.5000, 1.5000, 1.0000])
    """
    around, rest = split(flat(transform))
    transformed: TensorDictBase = applied(rest, _around(around, batch) if around else batch)
    return transformed


def _around(transforms: Any, batch: TensorDictBase) -> TensorDictBase:
    if not batch.batch_dims:
        raise TransformError(f"batch of shape []: expected [*B, T] steps, to find the neighbours of {transforms[0]!r}")
    mask = batch.get(_MASK, None)
    if not (batch.batch_size.numel() if mask is None else mask.any()):
        return batch
    steps = batch.reshape(-1, batch.shape[-1]) if mask is None else batch[mask]
    count = steps.batch_size.numel()
    device = batch.device or accelerator_of(leaves_of(steps)) or "cpu"
    storage = LazyTensorStorage(count, device=device, ndim=steps.batch_dims)
    storage.append(steps)
    row = None if mask is None else np.flatnonzero(mask.numpy(force=True)) // batch.shape[-1]
    index = storage.index if row is None else lambda: _WithinRows(storage.index(), row, batch.shape[-1])
    made: Any = reader(storage, transforms, index).read(np.arange(count))
    if mask is None:
        made = made.reshape(batch.shape)
    else:
        made = made.apply(lambda leaf: padded(leaf, mask), batch_size=batch.batch_size)
        made.set("collector", batch.get("collector"))
    made.names = batch.names
    placed: TensorDictBase = made.clear_device_() if batch.device is None else made.to(batch.device)
    return placed


class _WithinRows:
    """Which steps follow each other in the rows of a batch, whose steps a storage holds one row after the other.

    Args:
        index: of the storage.
        row: [n] the row of each step.
        width: steps of the longest row, at most.
    """

    def __init__(self, index: Neighbours, row: Rows, width: int) -> None:
        self._index, self._row, self._width = index, row, width

    def remaining(self, rows: Rows) -> Rows:
        """Return [n] steps from each one to the end of its trajectory in its row."""
        steps: Rows = (self.follow(rows, self._width) >= 0).sum(1)
        return steps

    def elapsed(self, rows: Rows) -> Rows:
        """Return [n] the steps of its trajectory before each one in its row."""
        steps: Rows = (self.precede(rows, self._width) >= 0).sum(1) - 1
        return steps

    def follow(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] each step and those that follow it in its row; -1 after the end."""
        return self._inside(rows[:, None], self._index.follow(rows, steps))

    def after(self, rows: Rows, steps: Rows) -> Rows:
        """Return [n] the step that is ``steps`` after each one; -1 after the end."""
        return self._inside(rows, self._index.after(rows, steps))

    def precede(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] the steps before each one in its row, itself last; -1 before the first."""
        return self._inside(rows[:, None], self._index.precede(rows, steps))

    def _inside(self, rows: Rows, found: Rows) -> Rows:
        return np.where(self._row[found] == self._row[rows], found, -1)
