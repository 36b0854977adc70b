"""Normalization of batches, by the statistics of a dataset or by given ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase

from rlx.errors import TransformError
from rlx.numbers import check_real
from rlx.schema import name_of
from rlx.store.dataset import Dataset
from rlx.transform.keys import numeric_fields
from rlx.transform.protocol import Pointwise, as_keys
from rlx.transform.scaling import mean_and_divisor


class Normalize(Pointwise):
    """Transform that subtracts a mean and divides by a standard deviation, at the root and under ``next``.

    Keys that a batch lacks are left out.

    The statistics are those of a dataset, as ``dataset.stats`` gives them: of each dimension of a vector (of 512 at
    most) and each channel of a picture, else one for all numbers. So batches of a loader, and those of an environment
    in which a policy is tested, are normalized alike. The result is float32, or float64 if the values are.

    Args:
        statistics: a dataset, its path, id or URL, or ``mean`` and ``std`` by key: numbers, or arrays that suit the
            last dimensions of the values.
        keys: keys to normalize; all numeric observations of a dataset, or all given keys, by default.
        eps: minimum of the divisor.

    Raises:
        TransformError: a key has no mean or standard deviation, or ``eps`` is not above 0.

    Example:
        >>> data = rlx.open("cartpole")
        >>> buffer = rlx.ReplayBuffer(storage=data, transform=rlx.buffer.Normalize(data), batch_size=32)
        >>> steps = buffer[:]["observation"]
        >>> bool(steps.mean(0).abs().max() < 1e-3), bool((steps.std(0) - 1).abs().max() < 1e-2)
        (True, True)
        >>> halved = rlx.buffer.Normalize({"observation": {"mean": 0, "std": [1, 2, 4, 8]}})
        >>> bool((halved(data[:2])["observation"][:, 1] == data[:2]["observation"][:, 1] / 2).all())
        True
    """

    def __init__(
        self,
        statistics: Dataset | str | os.PathLike[str] | Mapping[Any, Mapping[str, Any]],
        keys: NestedKey | Sequence[NestedKey] = (),
        eps: float = 1e-8,
    ) -> None:
        check_real("eps", eps, error=TransformError)
        if not eps > 0:
            raise TransformError(f"eps is {eps}, expected more than 0")
        names = [name_of(key) for key in as_keys(keys)]
        self._moments: dict[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        if isinstance(statistics, Mapping):
            given = {name_of(key): figures for key, figures in statistics.items()}
            for name in names or given:
                figures = given.get(name, {})
                if figures.get("mean") is None or figures.get("std") is None:
                    raise TransformError(f"{name} has no mean and std: expected both by key, found {[*given]}")
                mean, std = (torch.as_tensor(figures[part], dtype=torch.float64) for part in ("mean", "std"))
                self._moments[tuple(name.split("/"))] = mean, std.clamp(min=eps)
            return
        dataset = statistics if isinstance(statistics, Dataset) else Dataset(statistics)
        found = dataset.stats
        for name in numeric_fields(dataset.schema, names):
            moments = mean_and_divisor(name, found.get(name, {}), dataset.schema[name].shape, eps)
            self._moments[tuple(name.split("/"))] = torch.as_tensor(moments[0]), torch.as_tensor(moments[1])

    def __repr__(self) -> str:
        return f"Normalize(keys={['/'.join(path) for path in self._moments]})"

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with its values normalized."""
        for path, moments in self._moments.items():
            for leaf in (path, ("next", *path)):
                if (values := batch.get(leaf, None)) is None:
                    continue
                kind = values.dtype if values.dtype == torch.float64 else torch.float32
                mean, std = (each.to(values.device, kind) for each in moments)
                batch.set(leaf, (values.to(kind) - mean).div_(std))
        return batch
