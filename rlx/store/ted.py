"""Steps as TorchRL Episode Data: a TensorDict with ``next``, flags of shape [*B, 1]; texts are non-tensor data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.errors import SchemaMismatchError
from rlx.schema import SCALAR_COLUMNS, Role, Schema
from rlx.store.array import Rows
from rlx.store.step_reader import StepReader

if TYPE_CHECKING:
    from tensordict import NonTensorStack, TensorDict


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


Tree = dict[str, Any]
FLAGS = ("done", "terminated", "truncated")


def read_ted(
    reader: StepReader, schema: Schema, steps: NDArray[np.int64], stacks: Mapping[str, int] | None = None
) -> TensorDict:
    """Return the steps [n] as TED, in the order asked for; every field of the schema and

    ``("collector", "traj_ids")`` (int64 [n], the trajectory), ``index`` (int64 [n], the step), ``done`` (bool [n, 1],
    terminated or truncated). The flags at the root are those of the state before the action: False. Texts are
    non-tensor data. Observations named in ``stacks`` are stacks [n, k, ...], as ``StepReader.read_stacks`` gives them.
    """
    places = reader.locate(steps)
    root: dict[str, Rows] = {}
    after: dict[str, Rows] = {}
    for name, (rows, then) in reader.read_all(places, stacks).items():
        if then is not None:
            root[name], after[name] = rows, then
        else:
            (root if schema[name].role == Role.STEP else after)[name] = rows
    root["index"] = steps
    return make_ted(root, after, places.trajectory)


def make_ted(
    root: Mapping[str, Rows],
    after: Mapping[str, Rows],
    trajectory: NDArray[np.int64],
    names: Any = None,
) -> TensorDict:
    """Return steps as TED; numbers share the memory of the rows.

    Args:
        root: rows [*B, ...] of the fields at the root; the parts of a nested key are joined by ``/``.
        after: the same of the fields under ``next``, ``terminated`` and ``truncated`` among them.
        trajectory: [*B] of each step.
        names: of the dimensions, or None where one has none; tensordict does not type those.
    """
    tree: Tree = {}
    then: Tree = {}
    for name, rows in root.items():
        _put(tree, name, rows)
    for name, rows in after.items():
        _put(then, name, rows[..., None] if name in SCALAR_COLUMNS else rows)
    then["done"] = then["terminated"] | then["truncated"]
    for name, flags in zip(FLAGS, np.zeros((3, *trajectory.shape, 1), np.bool_), strict=True):
        _put(tree, name, flags)
    _put(tree, "collector/traj_ids", trajectory)
    from tensordict import TensorDict  # noqa: PLC0415  (takes seconds, and the rows of workers do not need it)

    return TensorDict({**tree, "next": then}, trajectory.shape, names=names)


def _put(tree: Tree, name: str, rows: Rows) -> None:
    *parents, leaf = name.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = to_leaf(rows)
