"""Steps as TorchRL Episode Data: a TensorDict with what the step produced under ``next``, flags of shape [*B, 1]."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.schema import SCALAR_COLUMNS, Role, Schema
from rlx.store.array import Rows
from rlx.store.step_reader import StepReader

Tree = dict[str, Any]


def read_ted(reader: StepReader, schema: Schema, steps: NDArray[np.int64]) -> TensorDict:
    """The steps [n] as TED, in the order asked for; every field of the schema and

    ``("collector", "traj_ids")`` (int64 [n], the trajectory), ``index`` (int64 [n], the step), ``done`` (bool [n, 1],
    terminated or truncated). The flags at the root are those of the state before the action: False.
    """
    trajectory = reader.trajectory_of(steps)
    root: Tree = {}
    after: Tree = {}
    for name, field in schema.fields.items():
        if field.role == Role.OBSERVATION:
            now, then = reader.read_observations(name, steps, trajectory)
            _put(root, name, _tensor(now))
            _put(after, name, _tensor(then))
        else:
            rows = _tensor(reader.read(name, steps, trajectory))
            wide = rows.unsqueeze(-1) if name in SCALAR_COLUMNS else rows
            _put(root if field.role == Role.STEP else after, name, wide)
    after["done"] = after["terminated"] | after["truncated"]
    before = torch.zeros((3, len(steps), 1), dtype=torch.bool).unbind(0)
    root |= dict(zip(("done", "terminated", "truncated"), before, strict=True))
    root |= {"collector": {"traj_ids": _tensor(trajectory)}, "index": torch.from_numpy(steps), "next": after}
    return TensorDict(root, [len(steps)])


def _put(tree: Tree, name: str, value: torch.Tensor) -> None:
    *parents, leaf = name.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def _tensor(rows: Rows) -> torch.Tensor:
    tensor: torch.Tensor = torch.from_numpy(rows)
    return tensor
