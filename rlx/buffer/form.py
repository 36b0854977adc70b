"""Data that are no TensorDict and come back from a buffer as they came: tensors, dictionaries, tensorclasses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_tensorclass

from rlx.errors import SchemaMismatchError

ITEM = "_item"


@dataclass(frozen=True, slots=True)
class Form:
    """How data came.

    Args:
        name: ``tensordict``, ``tensor``, ``dict`` or ``tensorclass``.
        cls: the tensorclass.
    """

    name: str
    cls: Any = None

    def back(self, steps: TensorDictBase) -> Any:
        """Return steps in this form; what a tensorclass has no field for is left out."""
        if self.name == "tensor":
            return steps[ITEM]
        if self.name == "dict":
            return steps.to_dict()
        if self.cls is not None:
            return self.cls.from_tensordict(steps.select(*(field.name for field in fields(self.cls)), strict=False))
        return steps


TENSORDICT = Form("tensordict")


def form_of(data: Any) -> Form:
    """Return the form of data, or of the elements of a list.

    Raises:
        SchemaMismatchError: it cannot be stored.
    """
    if isinstance(data, Sequence) and not isinstance(data, str) and not is_tensorclass(data) and len(data):
        forms = {form_of(element) for element in data}
        if len(forms) == 1 and (forms == {TENSORDICT} or not isinstance(data, tuple)):
            return forms.pop()
        if isinstance(data, tuple):
            raise SchemaMismatchError(
                f"tuple of {len(data)} cannot be stored: expected a list of elements, or a dict of named columns"
            )
        raise SchemaMismatchError(f"list of {', '.join(sorted(form.name for form in forms))}: expected one kind")
    if is_tensorclass(data):
        return Form("tensorclass", type(data))
    if isinstance(data, TensorDictBase):
        return TENSORDICT
    if isinstance(data, torch.Tensor):
        return Form("tensor")
    if isinstance(data, Mapping):
        return Form("dict")
    raise SchemaMismatchError(
        f"{type(data).__name__} cannot be stored: expected a TensorDict, tensorclass, tensor or dict of tensors, "
        "or a list of these",
        hint="torch.as_tensor(...) makes a tensor of numbers",
    )


def in_tensordict(data: Any, dim: int = 0, *, may_differ: bool = False) -> TensorDictBase:
    """Return data [n, ...], or a list of n elements, as a TensorDict.

    Args:
        data: in any form.
        dim: where the elements of a list are stacked.
        may_differ: whether elements may have other shapes and keys than each other.

    Raises:
        SchemaMismatchError: elements of a list differ, or the tensors of a dict differ in their first dimension.
    """
    if isinstance(data, Sequence) and not is_tensorclass(data):
        if not data:
            raise SchemaMismatchError("steps: expected at least one, found an empty list")
        return _stacked([_element(element) for element in data], dim, may_differ)
    if isinstance(data, Mapping) and not isinstance(data, TensorDictBase):
        return TensorDict(dict(data), [_length(data)])
    if isinstance(data, torch.Tensor):
        return TensorDict({ITEM: data}, [len(data)])
    return _element(data)


def _stacked(elements: list[Any], dim: int, may_differ: bool) -> TensorDictBase:
    if may_differ:
        return cast("TensorDictBase", LazyStackedTensorDict.lazy_stack(elements, dim))
    try:
        joined: Any = torch.stack(elements, dim)
    except RuntimeError as exc:
        raise SchemaMismatchError(f"steps of a list: expected the same keys and shapes in all of them; {exc}") from exc
    return cast("TensorDictBase", joined)


def _element(data: Any) -> TensorDictBase:
    if is_tensorclass(data):
        return cast("TensorDictBase", data.to_tensordict(retain_none=False))
    if isinstance(data, TensorDictBase):
        return data
    if isinstance(data, torch.Tensor):
        return TensorDict({ITEM: data}, [])
    return TensorDict(dict(data), [])


def _length(data: Mapping[Any, Any]) -> int:
    lengths = set(_lengths(data))
    if len(lengths) != 1:
        raise SchemaMismatchError(f"dict of tensors of {sorted(lengths)} rows: expected the same number in each")
    return lengths.pop()


def _lengths(data: Mapping[Any, Any]) -> list[int]:
    found = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            found += _lengths(value)
        elif isinstance(value, torch.Tensor) and value.ndim:
            found.append(len(value))
        else:
            raise SchemaMismatchError(f"key {key!r}: expected a tensor of rows, found {type(value).__name__}")
    return found
