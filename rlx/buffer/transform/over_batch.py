"""Transforms over a batch that lies in no buffer."""

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform.compose import Transform, flat
from rlx.buffer.transform.neighbourhood import reader, split

_MASK = ("collector", "mask")


def over_batch(transform: Transform, batch: TensorDictBase) -> TensorDictBase:
    """Return the result of a transform for a batch; neighbours are found within the batch only.

    Args:
        transform: a callable, a transform that needs neighbours, or a Compose of such.
        batch: [*B, T] steps; trajectories are told apart as in a buffer. With ``("collector", "mask")``, steps after
            the ends of rows are left out, and are zero in the result.

    Example:
        >>> from tensordict import TensorDict
        >>> from rlx.buffer.transform.n_step import NStep
        >>> after = {"reward": torch.ones(3, 1), "done": torch.tensor([[False], [False], [True]])}
        >>> over_batch(NStep(2, 0.5), TensorDict({"next": after}, [3]))["next", "reward"].flatten()
        tensor([1.5000, 1.5000, 1.0000])
    """
    around, rest = split(flat(transform))
    if around:
        batch = _around(around, batch)
    for function in rest:
        batch = function(batch)
    return batch


def _around(transforms: Any, batch: TensorDictBase) -> TensorDictBase:
    mask = batch.get(_MASK, None)
    steps = batch.reshape(-1) if mask is None else batch[mask]
    count = len(steps)
    if not count:
        return batch
    storage = LazyTensorStorage(count, device=batch.device or "cpu")
    storage.append(steps)
    made: Any = reader(storage, transforms, storage.index).read(np.arange(count))
    if mask is None:
        made = made.reshape(batch.shape)
    else:
        made = made.apply(lambda leaf: _padded(leaf, mask), batch_size=batch.batch_size)
        made.set("collector", batch.get("collector"))
    made.names = batch.names
    placed: TensorDictBase = made if batch.device is None else made.to(batch.device)
    return placed


def _padded(leaf: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    padded = leaf.new_zeros((*mask.shape, *leaf.shape[1:]))
    padded[mask] = leaf
    return padded
