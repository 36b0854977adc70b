"""Transforms that tell where a step is in its trajectory, of what kind that is, and what was done next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.storage.dataset import DatasetTrajectoryIndex
from rlx.buffer.transform.group import Adding
from rlx.errors import TransformError
from rlx.transform.multi_step import NStep
from rlx.transform.protocol import Reader, as_path, wanted
from rlx.transform.selections import trajectory_values


class Timestep(Adding):
    """Transform that adds the number of stored steps of the trajectory before each step: 0 at its first.

    Called with a batch [*B, T], it counts from the first step of a trajectory in its row.

    Args:
        key: key of the number: int64 [n, 1].

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=rlx.buffer.Timestep())
        >>> buffer[:3]["timestep"].flatten()
        tensor([0, 1, 2])
    """

    def __init__(self, key: NestedKey = "timestep") -> None:
        self.key = as_path(key)

    def __repr__(self) -> str:
        return f"Timestep(key={'/'.join(self.key)!r})"

    def made(self) -> list[tuple[str, ...]]:
        """Return the path of the number."""
        return [self.key]

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows with their numbers."""
        batch = below.read(rows, keys)
        if wanted(self.key, keys):
            batch.set(self.key, _tensor(below.index.elapsed(rows), batch))
        return batch


class TrajectoryColumns(Adding):
    """Transform that adds columns of the dataset's trajectory table: ``("trajectory", "return")`` and so on.

    Args:
        columns: names of columns: ``return`` (float64), ``length``, ``episode`` (int64), ``whole``, ``terminated`` and
            the other flags (bool); each becomes [n, 1].

    Raises:
        OptionError: a column is unknown.
        TransformError: steps are not those of a dataset; trajectories of a buffer may still grow.

    Example:
        >>> columns = rlx.buffer.TrajectoryColumns("return", "length")
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=columns, batch_size=4)
        >>> buffer.sample()["trajectory", "length"].shape
        torch.Size([4, 1])
    """

    def __init__(self, *columns: str) -> None:
        if not columns:
            raise TransformError("no columns given: expected names such as 'return' and 'length'")
        self.columns = columns

    def __repr__(self) -> str:
        return f"TrajectoryColumns({', '.join(map(repr, self.columns))})"

    def made(self) -> list[tuple[str, ...]]:
        """Return the paths of the columns."""
        return [("trajectory", column) for column in self.columns]

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows with the columns of their trajectories."""
        batch = below.read(rows, keys)
        mine = [column for column in self.columns if wanted(("trajectory", column), keys)]
        if mine:
            if not isinstance(below.index, DatasetTrajectoryIndex):
                raise TransformError(f"{self!r}: expected steps of a dataset, as others have no table of trajectories")
            trajectory, _ = below.index.locate(rows)
            for column in mine:
                values = trajectory_values(below.index.table, column)[trajectory]
                batch.set(("trajectory", column), _tensor(values, batch))
        return batch


class NextAction(Adding):
    """Transform that adds the action after each step, at ``("next", "action")``, as SARSA needs it.

    A trajectory's last stored step has none: zeros, and False in the mask.

    Args:
        keys: keys of the actions.
        mask: key of the mask, bool [n, 1]: whether the action was recorded.

    Raises:
        TransformError: a key is not stored, the result exists already, or ``NStep`` comes before.

    Example:
        >>> data = rlx.open("cartpole")
        >>> buffer = rlx.ReplayBuffer(storage=data, transform=rlx.buffer.NextAction(), batch_size=4)
        >>> bool((buffer[:5]["next", "action"] == data[1:6]["action"]).all())
        True
    """

    def __init__(
        self, keys: NestedKey | Sequence[NestedKey] = "action", mask: NestedKey = ("next", "has_action")
    ) -> None:
        self.keys = [as_path(key) for key in ([keys] if isinstance(keys, str | tuple) else keys)]
        self.mask = as_path(mask)

    def __repr__(self) -> str:
        return f"NextAction(keys={['/'.join(key) for key in self.keys]}, mask={'/'.join(self.mask)!r})"

    def check_earlier(self, earlier: Sequence[Any]) -> None:
        """Raise TransformError if a NStep that replaces ``next`` is among the transforms before this one."""
        if any(isinstance(part, NStep) and part.replaces_next for part in earlier):
            raise TransformError("NextAction after NStep would not be that of the next state; put NextAction first")

    def made(self) -> list[tuple[str, ...]]:
        """Return the paths of the actions and of the mask."""
        return [*(("next", *key) for key in self.keys), self.mask]

    def needs(self) -> Sequence[tuple[str, ...]]:
        """Return the paths of the actions."""
        return self.keys

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows with the actions after them."""
        batch = below.read(rows, keys)
        after = [("next", *key) for key in self.keys]
        mine = [key for key in self.keys if wanted(("next", *key), keys)]
        if not (mine or wanted(self.mask, keys)):
            return batch
        for path in (*after, self.mask):
            if batch.get(path, None) is not None:
                raise TransformError(f"NextAction: {'/'.join(path)} exists already")
        following = below.index.after(rows, np.ones_like(rows))
        exists = following >= 0
        found = below.pick(np.where(exists, following, rows), mine) if mine else batch
        for key in mine:
            if (actions := found.get(key, None)) is None:
                raise TransformError(f"NextAction: {'/'.join(key)} is not stored")
            actions = actions.clone() if actions is batch.get(key, None) else actions
            actions[torch.from_numpy(~exists).to(actions.device)] = 0
            batch.set(("next", *key), actions)
        batch.set(self.mask, _tensor(exists, batch))
        return batch


def _tensor(values: Any, batch: TensorDictBase) -> torch.Tensor:
    """Return [n, 1] values on the device of a batch."""
    return torch.from_numpy(np.ascontiguousarray(values)[:, None]).to(batch.device or "cpu")
