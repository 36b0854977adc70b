"""The schema of the steps of a storage: fixed by the first write, required of all others."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from rlx.buffer.index.continuity import INDEX, IS_INIT, ORIGIN, Leaves, Path
from rlx.errors import SchemaMismatchError

StepSchema = Mapping[Path, tuple[torch.dtype, tuple[int, ...]]]

_OPTIONAL: Mapping[Path, int | bool] = {INDEX: -1, IS_INIT: False, ("next", *IS_INIT): False}


def parted(steps: TensorDictBase) -> tuple[dict[Path, torch.Tensor], dict[Path, Any]]:
    """Return the tensors of steps, and their non-tensor data, by their paths.

    Raises:
        SchemaMismatchError: something is neither a tensor nor non-tensor data.
    """
    tensors: dict[Path, torch.Tensor] = {}
    texts: dict[Path, Any] = {}
    for path, leaf in _collected(steps):
        if isinstance(leaf, torch.Tensor):
            tensors[path] = leaf
        elif isinstance(leaf, NonTensorData | NonTensorStack):
            texts[path] = leaf
        else:
            raise SchemaMismatchError(f"{'/'.join(path)}: expected a tensor or text, found {type(leaf).__name__}")
    return tensors, texts


def leaves_of(steps: TensorDictBase) -> dict[Path, torch.Tensor]:
    """Return the tensors of steps by their paths; not their texts."""
    return {path: leaf for path, leaf in _collected(steps) if isinstance(leaf, torch.Tensor)}


def text_leaves(steps: TensorDictBase) -> dict[Path, Any]:
    """Return the non-tensor data of steps by their paths.

    Raises:
        SchemaMismatchError: something is neither a tensor nor non-tensor data.
    """
    return parted(steps)[1]


def _collected(steps: TensorDictBase, parents: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in steps.items():
        # First of all, since it takes a tenth of the time to see that a value is a tensor.
        if (
            isinstance(value, torch.Tensor)
            or not isinstance(value, TensorDictBase)
            or isinstance(value, NonTensorStack)
        ):
            yield (*parents, name), value
        else:
            yield from _collected(value, (*parents, name))


def schema_of(leaves: Leaves, dims: int) -> StepSchema:
    """Return dtype and shape of one step's leaves, of steps with ``dims`` leading dimensions.

    Raises:
        SchemaMismatchError: the steps have no leaves.
    """
    if not leaves:
        raise SchemaMismatchError("steps: expected at least one tensor, found none")
    return {path: (leaf.dtype, tuple(leaf.shape[dims:])) for path, leaf in leaves.items()}


def fitted(given: Leaves, schema: StepSchema, shape: tuple[int, ...]) -> dict[Path, torch.Tensor]:
    """Return the leaves of steps [*shape] to be stored: sources need not agree on what says where a step comes from.

    ``index`` and ``is_init`` are left out if the first steps had none. If they had, steps without them get an index of
    -1 and an ``is_init`` of False, for the storage to set.
    """
    leaves = {
        path: leaf for path, leaf in given.items() if path != ORIGIN and (path in schema or path not in _OPTIONAL)
    }
    for path, blank in _OPTIONAL.items():
        if path in schema and path not in given:
            dtype, rest = schema[path]
            leaves[path] = torch.full((*shape, *rest), blank, dtype=dtype)
    return leaves


def check(leaves: Leaves, schema: StepSchema, dims: int) -> None:
    """Raise SchemaMismatchError unless the leaves of steps, with ``dims`` leading dimensions, are of this schema."""
    for path in leaves.keys() | schema.keys():
        if path not in leaves or path not in schema:
            what = "is missing" if path in schema else "is none of"
            expected = ", ".join(sorted("/".join(key) for key in schema))
            raise SchemaMismatchError(f"key {'/'.join(path)!r} {what}: expected {expected}")
        dtype, shape = schema[path]
        leaf = leaves[path]
        if leaf.dtype != dtype or leaf.shape[dims:] != shape:
            found = _described(leaf.dtype, tuple(leaf.shape[dims:]))
            raise SchemaMismatchError(f"key {'/'.join(path)!r}: expected {_described(dtype, shape)}, found {found}")


def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def nested(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """Return the leaves as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        branch = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
        branch[path[-1]] = leaf
    return tree
