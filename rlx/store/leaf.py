"""Rows of a field as a leaf of a TensorDict and back: numbers are tensors, texts are non-tensor data."""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from rlx.errors import SchemaMismatchError
from rlx.store.array import Rows

if TYPE_CHECKING:
    from tensordict import NonTensorStack

Leaf: TypeAlias = "torch.Tensor | NonTensorStack"


def to_leaf(rows: Rows) -> Leaf:
    """Return rows [n, ...] as a leaf of a TensorDict of batch size [n]; numbers share the rows' memory.

    Example:
        >>> to_leaf(np.array(["pick", "place"], object)).tolist()
        ['pick', 'place']
    """
    if rows.dtype != object:
        return torch.from_numpy(rows)
    from tensordict import NonTensorStack  # noqa: PLC0415  (takes seconds, and numbers do not need it)

    if rows.ndim == 1:
        return NonTensorStack(*rows.tolist())
    stack: NonTensorStack = NonTensorStack.from_list(rows.tolist())
    return stack


def to_rows(leaf: Any) -> Rows:
    """Return rows of a leaf: numbers as numpy has them, texts as an array of objects, each a ``str``.

    Args:
        leaf: a tensor, or non-tensor data whose every value is a text; its shape is that of the rows.

    Raises:
        SchemaMismatchError: a value is neither a number nor a text.

    Example:
        >>> from tensordict import NonTensorData
        >>> to_rows(NonTensorData("pick", batch_size=[2]))
        array(['pick', 'pick'], dtype=object)
    """
    if isinstance(leaf, torch.Tensor):
        try:
            rows: Rows = leaf.detach().cpu().numpy()
        except TypeError as exc:
            raise SchemaMismatchError(f"{leaf.dtype}, expected a type that numpy has") from exc
        return rows
    from tensordict import NonTensorData, NonTensorStack  # noqa: PLC0415  (takes seconds, and numbers do not need it)

    if not isinstance(leaf, NonTensorData | NonTensorStack):
        raise SchemaMismatchError(f"{type(leaf).__name__}, expected a tensor or text")
    shape = tuple(leaf.batch_size)
    texts = np.empty(shape, object)
    if isinstance(leaf, NonTensorData):
        texts[...] = leaf.data if isinstance(leaf.data, str) else _refuse(leaf.data)
        return texts
    for place, text in zip(np.ndindex(shape), _flat(leaf.tolist(), len(shape)), strict=True):
        texts[place] = text if isinstance(text, str) else _refuse(text)
    return texts


def _flat(values: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        values = [value for inner in values for value in inner]
    return values


def _refuse(value: Any) -> str:
    raise SchemaMismatchError(f"{type(value).__name__}, expected numbers or text (str)")
