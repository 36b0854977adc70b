"""Steps as TorchRL Episode Data: a TensorDict with what the step produced under ``next``, flags of shape [*B, 1]."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.schema import SCALAR_COLUMNS, Role, Schema
from rlx.store.array import Rows
from rlx.store.leaf import to_leaf
from rlx.store.step_reader import StepReader

Tree = dict[str, Any]


def read_ted(reader: StepReader, schema: Schema, steps: NDArray[np.int64]) -> TensorDict:
    """Return the steps [n] as TED, in the order asked for; every field of the schema and

    ``("collector", "traj_ids")`` (int64 [n], the trajectory), ``index`` (int64 [n], the step), ``done`` (bool [n, 1],
    terminated or truncated). The flags at the root are those of the state before the action: False. Texts are
    non-tensor data.
    """
    places = reader.locate(steps)
    root: Tree = {}
    after: Tree = {}
    for name, (rows, then) in reader.read_all(places).items():
        if then is not None:
            _put(root, name, rows)
            _put(after, name, then)
        else:
            tree = root if schema[name].role == Role.STEP else after
            _put(tree, name, rows[:, None] if name in SCALAR_COLUMNS else rows)
    after["done"] = after["terminated"] | after["truncated"]
    for name, flags in zip(("done", "terminated", "truncated"), np.zeros((3, len(steps), 1), np.bool_), strict=True):
        _put(root, name, flags)
    _put(root, "collector/traj_ids", places.trajectory)
    _put(root, "index", steps)
    return TensorDict({**root, "next": after}, [len(steps)])


def _put(tree: Tree, name: str, rows: Rows) -> None:
    *parents, leaf = name.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = to_leaf(rows)
