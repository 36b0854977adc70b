"""Steps with others before and after them, as LeRobot's datasets give them to policies of action chunks."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, is_leaf_nontensor
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from rlx.buffer.protocol import Rows
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.errors import OptionError, SchemaMismatchError
from rlx.store.dataset import Dataset
from rlx.transform.protocol import as_path

_TOLERANCE_S = 1e-4  # LeRobot's own


class TimeWindows(TorchDataset[dict[str, Any]]):
    """Dataset of steps, each with others at given times before and after it, for a ``torch.utils.data.DataLoader``.

    Semantics are those of ``LeRobotDataset(delta_timestamps=...)``: a time before the trajectory's first step or after
    its last one gives that step, and is marked in ``KEY_is_pad``.

    Args:
        dataset: a dataset, or its path, id or URL.
        delta_timestamps: seconds relative to the step, by TED key, each a multiple of ``1 / fps``. Other keys of the
            step come as they are.
        fps: steps per second.

    Raises:
        SchemaMismatchError: a key is unknown.
        OptionError: a time is not a multiple of ``1 / fps``, or a key is a text.

    Example:
        >>> from rlx.integrations.lerobot import TimeWindows
        >>> steps = TimeWindows("cartpole", {"observation": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}, fps=10)
        >>> step = steps[0]
        >>> step["observation"].shape, step["observation_is_pad"], step["action"].shape
        (torch.Size([2, 4]), tensor([ True, False]), torch.Size([3]))
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        delta_timestamps: Mapping[NestedKey, Sequence[float]],
        *,
        fps: float,
    ) -> None:
        self._steps = DatasetStorage(dataset)
        self._index = self._steps.index()
        self._offsets: dict[tuple[str, ...], NDArray[np.int64]] = {}
        probe = self._steps.get(np.arange(min(1, len(self))))
        leaves = [as_path(key) for key in probe.keys(True, True, is_leaf_nontensor)]
        self._texts = {path for path in leaves if not isinstance(probe.get(path), Tensor)}
        for key, seconds in delta_timestamps.items():
            path = as_path(key)
            if not self._steps.has(path):
                raise SchemaMismatchError(f"`delta_timestamps`: the dataset has no {'.'.join(path)}")
            if path in self._texts:
                raise OptionError(f"`delta_timestamps` of {'.'.join(path)}, a text: expected keys of numbers")
            exact = np.asarray(seconds, np.float64) * fps
            offsets = np.rint(exact).astype(np.int64)
            if odd := [
                time for time, far in zip(seconds, abs(exact - offsets) / fps, strict=True) if far > _TOLERANCE_S
            ]:
                raise OptionError(
                    f"`delta_timestamps` of {'.'.join(path)}: {odd[0]} s: expected a multiple of 1/{fps} s"
                )
            self._offsets[path] = offsets
        self._plain = [path for path in leaves if path not in self._offsets]

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a step as tensors and texts by key, nested keys joined by dots: [times, ...] where times were asked
        for."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several steps, which are read at once."""
        rows = np.asarray(indices, np.int64)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            wrong = rows[(rows < -len(self)) | (rows >= len(self))]
            raise IndexError(f"step {wrong[0]} is out of range for {len(self)} steps")
        rows = rows % max(len(self), 1)  # a copy: the caller may use the indices again
        first, last = rows - self._index.elapsed(rows), rows + self._index.remaining(rows) - 1
        found: dict[str, Any] = {}
        plain = self._steps.get(rows, self._plain)
        for path in self._plain:
            values = plain.get(path)
            found[".".join(path)] = values.tolist() if path in self._texts else values
        for path, offsets in self._offsets.items():
            wanted = rows[:, None] + offsets
            kept: Rows = np.clip(wanted, first[:, None], last[:, None])
            values = self._steps.get(kept.reshape(-1), [path])[path]
            found[".".join(path)] = values.reshape(*kept.shape, *values.shape[1:])
            found[".".join(path) + "_is_pad"] = torch.from_numpy(wanted != kept)
        return [{key: values[number] for key, values in found.items()} for number in range(len(rows))]
