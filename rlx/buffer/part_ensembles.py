"""Storages and writers of several buffers, as ``ReplayBufferEnsemble`` takes and gives them."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from rlx.buffer.batch import steps_at
from rlx.buffer.part_checkpoint import SavedTogether
from rlx.buffer.protocol import Storage, Writer
from rlx.buffer.storage.dataset import as_storage
from rlx.buffer.transform.compose import Transform
from rlx.store.dataset import Dataset


def positions(index: Any, count: int) -> int | list[int]:
    """Return the position that an index means among ``count`` parts, or the positions.

    Args:
        index: an integer, a slice, an Ellipsis, or a list, range or 1-d array of integers.
        count: how many parts there are.

    Raises:
        IndexError: the index is out of range, or has more dimensions.

    Example:
        >>> positions(-1, 3), positions(slice(1, None), 3), positions([2, 0], 3)
        (2, [1, 2], [2, 0])
    """
    found = np.arange(count)[np.asarray(index) if isinstance(index, (torch.Tensor, range)) else index]
    if found.ndim > 1:
        raise IndexError(f"index of {found.ndim} dimensions: expected one of {count} parts, or a list of them")
    chosen: int | list[int] = found.tolist()
    return chosen


def first_and_rest(index: Any) -> tuple[Any, Any]:
    """Return what an index says of parts, and what it says of rows: None if nothing.

    Example:
        >>> first_and_rest(2), first_and_rest((..., 5)), first_and_rest((0, 1, slice(3)))
        ((2, None), (Ellipsis, 5), (0, (1, slice(None, 3, None))))
    """
    if not isinstance(index, tuple):
        return index, None
    first, *rest = index
    return first, None if not rest else rest[0] if len(rest) == 1 else tuple(rest)


class StorageEnsemble(SavedTogether):
    """The storages of several buffers; ``len()`` is how many there are.

    Args:
        storages: the storages.
        transforms: of each storage's steps, one or None for each; none by default.

    Raises:
        ValueError: not as many transforms as storages.

    Example:
        >>> from tensordict import TensorDict
        >>> from rlx.buffer import LazyTensorStorage
        >>> storages = StorageEnsemble(LazyTensorStorage(10), LazyTensorStorage(10))
        >>> for storage in storages.storages:
        ...     rows = storage.append(TensorDict({"action": torch.arange(3)}, [3]))
        >>> storages[1, 2]["action"]
        tensor(2)
    """

    def __init__(self, *storages: Storage | Dataset, transforms: Sequence[Transform | None] | None = None) -> None:
        self.storages = tuple(map(as_storage, storages))
        self.transforms = [None] * len(storages) if transforms is None else list(transforms)
        if len(self.transforms) != len(storages):
            raise ValueError(f"{len(self.transforms)} transforms: expected {len(storages)}, one for each storage")

    @property
    def max_size(self) -> int:
        """Steps that there is room for, in all of them."""
        return sum(storage.max_size for storage in self.storages)

    def __len__(self) -> int:
        return len(self.storages)

    def __getitem__(self, index: Any) -> Any:
        """Return a storage, some of them as an ensemble, or the stored steps at rows of one or a list of those of
        several.

        Args:
            index: a storage or several, and rows: ``storages[0]``, ``storages[1:]``, ``storages[0, 5]``,
                ``storages[:, [3, 4]]``.

        Raises:
            IndexError: no such storage or row.
        """
        first, rows = first_and_rest(index)
        chosen = positions(first, len(self))
        if isinstance(chosen, int):
            return self.storages[chosen] if rows is None else steps_at(rows, self.storages[chosen])
        if rows is None:
            transforms = [self.transforms[number] for number in chosen]
            return StorageEnsemble(*(self.storages[number] for number in chosen), transforms=transforms)
        return [steps_at(rows, self.storages[number]) for number in chosen]

    def __repr__(self) -> str:
        return f"StorageEnsemble({', '.join(map(repr, self.storages))})"

    def _saved_parts(self) -> Any:
        return self.storages


class WriterEnsemble(SavedTogether):
    """The writers of several buffers, each of which writes to its own; ``len()`` is how many there are.

    Args:
        writers: the writers.
    """

    def __init__(self, *writers: Writer) -> None:
        self.writers = writers

    def __len__(self) -> int:
        return len(self.writers)

    def __getitem__(self, index: Any) -> "Writer | Self":
        """Return a writer, or some of them as an ensemble.

        Raises:
            IndexError: no such writer.
        """
        chosen = positions(index, len(self))
        if isinstance(chosen, int):
            return self.writers[chosen]
        return type(self)(*(self.writers[number] for number in chosen))

    def __repr__(self) -> str:
        return f"WriterEnsemble({', '.join(map(repr, self.writers))})"

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the writers."""
        return {"writers": [writer.state_dict() for writer in self.writers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the states of as many writers."""
        for writer, its in zip(self.writers, state["writers"], strict=True):
            writer.load_state_dict(its)

    def _saved_parts(self) -> Any:
        return self.writers
