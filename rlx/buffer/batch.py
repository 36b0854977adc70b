"""Steps entering and leaving a buffer: checks of dimensions, rows of an index, marks in a batch."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.utils import expand_as_right

from rlx.buffer.protocol import Rows, Storage
from rlx.errors import SchemaMismatchError
from rlx.store.dataset import normalize


def as_steps(steps: TensorDictBase, ndim: int, time_dim: int | None = None) -> TensorDictBase:
    """Return steps [*lanes, n, ...], ``ndim`` dimensions before those that belong to a row.

    Args:
        steps: steps, or longer rows.
        ndim: dimensions of the storage.
        time_dim: which of them is time; the last by default.

    Raises:
        SchemaMismatchError: fewer dimensions.
    """
    found = steps.batch_dims
    if found < ndim:
        raise SchemaMismatchError(f"steps of shape {list(steps.batch_size)}: expected {ndim} dimensions, found {found}")
    if time_dim is None or time_dim % ndim == ndim - 1:
        return steps
    order = [dim for dim in range(ndim) if dim != time_dim % ndim]
    moved: TensorDictBase = steps.permute(*order, time_dim % ndim, *range(ndim, found))
    return moved


def rows_of(index: Any, storage: Storage) -> Rows:
    """Return the rows that an index means: [] of an integer, [n] of a 1-d list or array, [*lanes, n] of a slice.

    Args:
        index: rows, or a slice of the rows of every lane; negative ones count from the end. A tuple indexes the
            [*lanes, n] rows that ``:`` means, as numpy does: ``(lane, slice(t, u))``.
        storage: the indexed storage.

    Raises:
        IndexError: no such row.
    """
    size, lanes = storage.max_size // storage.lanes, storage.lanes
    filled = len(storage) // lanes
    if isinstance(index, slice):
        rows = np.arange(lanes)[:, None] * size + np.arange(*index.indices(filled))
        return rows.reshape(*storage.lane_shape, rows.shape[-1])
    if isinstance(index, tuple):
        shape = (*storage.lane_shape, filled)
        first = np.arange(lanes).reshape(*storage.lane_shape, 1) * size
        # Indexing views that repeat the few distinct numbers makes no array of all rows.
        return np.asarray(np.broadcast_to(first, shape)[index] + np.broadcast_to(np.arange(filled), shape)[index])
    length = filled if lanes == 1 else storage.max_size
    if hasattr(index, "__index__") and not getattr(index, "ndim", 0) and not isinstance(index, bool):
        return normalize([operator.index(index)], length).reshape(())
    return normalize(index, length)


def steps_at(index: Any, storage: Storage) -> TensorDictBase:
    """Return the steps at the rows that an index means, in its shape; a copy.

    Raises:
        IndexError: no such row.
    """
    rows = rows_of(index, storage)
    steps = storage.get(rows.reshape(-1))
    return steps.reshape(*rows.shape, *steps.batch_size[1:])


def write_info(batch: TensorDictBase, info: Mapping[Any, Any]) -> None:
    """Write what a sampler says into a batch, by TED key.

    A flag under ``next`` stays set where it was set: a slice's end must not hide a truncation, nor an n-step transition
    that ends an episode be undone by the flags of its first step.
    """
    for key, value in info.items():
        tensor = torch.from_numpy(np.ascontiguousarray(value)).to(batch.device)
        if isinstance(key, tuple) and key[0] == "next" and tensor.dtype == torch.bool:
            stored = batch.get(key, None)
            tensor = tensor if stored is None else stored | tensor.reshape(stored.shape)
        # A value of a row applies to all steps of a row that is a trajectory.
        batch.set(key, expand_as_right(tensor, batch) if tensor.ndim < batch.batch_dims else tensor)
