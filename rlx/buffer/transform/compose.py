"""Transforms in a row, and a transform the other way round."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDictBase

from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform.neighbourhood import NeighbourTransform, Pointwise, reader, split

Transform = Callable[[TensorDictBase], TensorDictBase] | NeighbourTransform
_MASK = ("collector", "mask")


class Compose:
    """Transforms applied in order; on writing, the ``inv`` of those that have one is applied in reverse order.

    Args:
        transforms: callables from TensorDict to TensorDict, or transforms that need neighbours.

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
        self.transforms: list[Any] = _in_order([part for transform in transforms for part in flat(transform)])

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch after the transforms, none of which may need neighbours."""
        for transform in self.transforms:
            batch = transform(batch)
        return batch

    def inv(self, steps: TensorDictBase) -> TensorDictBase:
        """Return steps as the buffer is to keep them."""
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
            IndexError: there are fewer than that.
            TransformError: a transform must not follow another one, such as ``FrameStack`` after ``NStep``.
        """
        count = len(self.transforms)
        if not -count <= index <= count:
            raise IndexError(f"transform {index}: expected -{count} to {count}")
        self.transforms = _in_order([*self.transforms[:index], *flat(transform), *self.transforms[index:]])
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
        if isinstance(transform, NeighbourTransform):
            raise TypeError(f"{transform!r} needs stored steps: it cannot be applied before they are stored")
        self.transform = transform

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch after the transform's ``inv``."""
        back: TensorDictBase = self.transform.inv(batch) if hasattr(self.transform, "inv") else batch
        return back

    def inv(self, steps: TensorDictBase) -> TensorDictBase:
        """Return steps after the transform."""
        return self.transform(steps)

    def __repr__(self) -> str:
        return f"Inverted({self.transform!r})"


def flat(transform: Any) -> Sequence[Any]:
    """Return the transforms that a transform is made of."""
    return list(transform.transforms) if isinstance(transform, Compose) else [transform]


def _in_order(transforms: list[Any]) -> list[Any]:
    """Return the transforms, each of which has checked those before it."""
    for place, transform in enumerate(transforms):
        _check(transform)
        if hasattr(transform, "check_earlier"):
            transform.check_earlier(transforms[:place])
    return transforms


def _check(transform: Any) -> None:
    is_class = isinstance(transform, type)
    if is_class and (issubclass(transform, Pointwise) or hasattr(transform, "around")):
        raise TypeError(f"transform: found the class {transform.__name__} itself: give {transform.__name__}(...)")
    if not (callable(transform) or isinstance(transform, NeighbourTransform)):
        raise TypeError(
            f"transform: expected a function of a TensorDict or a transform of rlx.buffer, found {transform!r}"
        )


def over_batch(transform: Transform, batch: TensorDictBase) -> TensorDictBase:
    """Return the result of a transform for a batch; neighbours are found within the batch only.

    Args:
        transform: a callable, a transform that needs neighbours, or a Compose of such.
        batch: [*B, T] steps; trajectories are told apart as in a buffer. With ``("collector", "mask")``, steps after
            the ends of rows are left out, and are zero in the result.

    Example:
        >>> from tensordict import TensorDict
        >>> from rlx.buffer.transform.returns import NStep
        >>> after = {"reward": torch.ones(3, 1), "done": torch.tensor([[False], [False], [True]])}
        >>> over_batch(NStep(2, 0.5), TensorDict({"next": after}, [3]))["next", "reward"].flatten()
        tensor([1.5000, 1.5000, 1.0000])
    """
    around, rest = split(flat(transform))
    if around:
        batch = _around(around, batch)
    for function in rest:
        batch = function(batch)
    return batch


def _around(transforms: Any, batch: TensorDictBase) -> TensorDictBase:
    mask = batch.get(_MASK, None)
    steps = batch.reshape(-1) if mask is None else batch[mask]
    count = len(steps)
    if not count:
        return batch
    storage = LazyTensorStorage(count, device=batch.device or "cpu")
    storage.append(steps)
    made: Any = reader(storage, transforms, storage.index).read(np.arange(count))
    if mask is None:
        made = made.reshape(batch.shape)
    else:
        made = made.apply(lambda leaf: _padded(leaf, mask), batch_size=batch.batch_size)
        made.set("collector", batch.get("collector"))
    made.names = batch.names
    placed: TensorDictBase = made if batch.device is None else made.to(batch.device)
    return placed


def _padded(leaf: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    padded = leaf.new_zeros((*mask.shape, *leaf.shape[1:]))
    padded[mask] = leaf
    return padded
