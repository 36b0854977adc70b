"""Steps as TorchRL Episode Data: a TensorDict with what the step produced under ``next``, flags of shape [*B, 1]."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.schema import SCALAR_COLUMNS, Role, Schema
from rlx.store.array import Rows
from rlx.store.leaf import to_leaf
from rlx.store.step_reader import StepReader

Tree = dict[str, Any]
FLAGS = ("done", "terminated", "truncated")


def read_ted(reader: StepReader, schema: Schema, steps: NDArray[np.int64]) -> TensorDict:
    """Return the steps [n] as TED, in the order asked for; every field of the schema and

    ``("collector", "traj_ids")`` (int64 [n], the trajectory), ``index`` (int64 [n], the step), ``done`` (bool [n, 1],
    terminated or truncated). The flags at the root are those of the state before the action: False. Texts are
    non-tensor data.
    """
    places = reader.locate(steps)
    root: dict[str, Rows] = {}
    after: dict[str, Rows] = {}
    for name, (rows, then) in reader.read_all(places).items():
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
    return TensorDict({**tree, "next": then}, trajectory.shape, names=names)


def _put(tree: Tree, name: str, rows: Rows) -> None:
    *parents, leaf = name.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = to_leaf(rows)
