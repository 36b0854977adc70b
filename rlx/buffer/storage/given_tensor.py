"""A storage over the tensors of a TensorDict that is there already."""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rlx.buffer.index.trajectory_keys import Path
from rlx.buffer.storage.step_schema import leaves_of, schema_of, text_leaves
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.errors import SchemaMismatchError


class TensorStorage(LazyTensorStorage):
    """Steps in the tensors of a TensorDict, without a copy: full from the start, and changed when it is written.

    Args:
        storage: steps [n], or [*lanes, n] of ``ndim`` dimensions; the first of a lane is its oldest.
        max_size: the number of steps; other numbers are refused.
        device: moves the tensors there, which makes a copy; by default they stay where they are.
        ndim: dimensions of the steps. Of more than one, tensors that are not contiguous are copied.

    Raises:
        SchemaMismatchError: ``storage`` is not a TensorDict with ``ndim`` dimensions, or holds a non-tensor.
        ValueError: ``max_size`` is another number.

    Example:
        >>> from tensordict import TensorDict
        >>> steps = TensorDict({"action": torch.arange(3)}, [3])
        >>> storage = TensorStorage(steps)
        >>> storage.append(TensorDict({"action": torch.tensor([9])}, [1]))
        array([0])
        >>> steps["action"]
        tensor([9, 1, 2])
    """

    def __init__(
        self,
        storage: TensorDictBase,
        max_size: int | None = None,
        *,
        device: torch.device | str | None = None,
        ndim: int = 1,
    ) -> None:
        if not isinstance(storage, TensorDictBase) or storage.batch_dims < ndim:
            found = list(storage.batch_size) if isinstance(storage, TensorDictBase) else type(storage).__name__
            raise SchemaMismatchError(f"storage: expected a TensorDict of {ndim} dimensions, found {found}")
        shape = storage.batch_size[:ndim]
        if max_size not in (None, shape.numel()):
            raise ValueError(f"max_size {max_size}: expected {shape.numel()}, the steps of the TensorDict")
        tensors = flat_leaves(storage, ndim)
        first = next(iter(tensors.values()), torch.empty(0))
        super().__init__(shape.numel(), ndim=ndim, device=first.device if device is None else device)
        self._schema = schema_of(tensors, 1)
        self._tensors = {path: leaf.to(self.device) for path, leaf in tensors.items()}
        self._lay_out(tuple(shape[:-1]))
        self._ring.push(np.arange(self.lanes), np.full(self.lanes, shape[-1]))


def flat_leaves(steps: TensorDictBase, ndim: int) -> dict[Path, torch.Tensor]:
    """Return plain tensors [n, ...] over the memory of steps, by path, with the first ``ndim`` dimensions joined.

    Raises:
        SchemaMismatchError: something is no tensor.
    """
    for path in text_leaves(steps):
        raise SchemaMismatchError(f"{'/'.join(path)}: expected a tensor, found text", hint="use LazyTensorStorage")
    plain: dict[Path, Any] = {path: leaf.detach() for path, leaf in leaves_of(steps).items()}
    return {path: leaf.as_subclass(torch.Tensor).flatten(0, ndim - 1) for path, leaf in plain.items()}
