"""What every step of a storage holds: settled by the first write, asked of all others."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from rlx.buffer.trajectory_keys import Path
from rlx.errors import SchemaMismatchError

Leaves = Mapping[Path, torch.Tensor]
StepSchema = Mapping[Path, tuple[torch.dtype, tuple[int, ...]]]


def leaves_of(steps: TensorDictBase) -> dict[Path, torch.Tensor]:
    """The tensors of steps by their paths.

    Raises:
        SchemaMismatchError: something is no tensor.
    """
    found: dict[Path, torch.Tensor] = {}
    _collect(steps, (), found)
    return found


def _collect(steps: TensorDictBase, parents: Path, found: dict[Path, torch.Tensor]) -> None:
    for name, value in steps.items():
        path = (*parents, name)
        if isinstance(value, torch.Tensor):
            found[path] = value
        elif isinstance(value, TensorDictBase):
            _collect(value, path, found)
        else:
            raise SchemaMismatchError(f"{'/'.join(path)}: expected a tensor, found {type(value).__name__}")


def schema_of(leaves: Leaves, dims: int) -> StepSchema:
    """Dtype and shape of one step's leaves, of steps with so many leading dimensions.

    Raises:
        SchemaMismatchError: there are none.
    """
    if not leaves:
        raise SchemaMismatchError("steps: expected at least one tensor, found none")
    return {path: (leaf.dtype, tuple(leaf.shape[dims:])) for path, leaf in leaves.items()}


def check(leaves: Leaves, schema: StepSchema, dims: int) -> None:
    """Raises SchemaMismatchError unless the leaves of steps, with so many leading dimensions, are of this schema."""
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


def nested(leaves: Leaves) -> dict[str, Any]:
    """The leaves as dictionaries in dictionaries."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        branch = tree
        for name in path[:-1]:
            branch = branch.setdefault(name, {})
        branch[path[-1]] = leaf
    return tree
