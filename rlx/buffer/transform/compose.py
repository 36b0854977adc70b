"""Transforms in a row, and a transform the other way round."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from tensordict import TensorDictBase

from rlx.buffer.transform.neighbourhood import NeighbourTransform

Transform = Callable[[TensorDictBase], TensorDictBase] | NeighbourTransform


class Compose:
    """Transforms applied one after the other; on the way into a buffer their ``inv``, where they have one, backwards.

    Args:
        transforms: callables from TensorDict to TensorDict, or transforms that need neighbours.

    Raises:
        TransformError: a transform cannot come after another one.

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
            TransformError: a transform cannot come after another one.
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
        if hasattr(transform, "check_earlier"):
            transform.check_earlier(transforms[:place])
    return transforms
