"""The last steps of a batch's way: what its user wants of it, and into the replay buffer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from rlx.buffer.batch import split_trajectories
from rlx.buffer.transform.compose import over_batch
from rlx.buffer.transform.neighbourhood import NeighbourTransform
from rlx.errors import CollectError

MASK = ("collector", "mask")
Device = torch.device | str
Postproc = Callable[[TensorDictBase], TensorDictBase] | NeighbourTransform


@dataclass(frozen=True, slots=True)
class BatchDelivery:
    """Post-processing of a batch.

    Args:
        split_trajs: whether a row is to be a trajectory.
        device: where it is put.
        postproc: applied to it.
        replay_buffer: extended by it.

    Raises:
        CollectError: the postproc is nothing that could be applied to a batch.
    """

    split_trajs: bool
    device: Device | None
    postproc: Postproc | None
    replay_buffer: Any

    def __post_init__(self) -> None:
        if not (self.postproc is None or callable(self.postproc) or isinstance(self.postproc, NeighbourTransform)):
            raise CollectError(
                f"postproc {self.postproc!r}: expected a function of a batch, or a transform of rlx.buffer"
            )

    @property
    def lanes(self) -> int:
        """Dimensions of the replay buffer before that of time."""
        return 0 if self.replay_buffer is None else int(self.replay_buffer.storage.ndim) - 1

    def __call__(self, batch: TensorDictBase, *, is_batched: bool) -> TensorDictBase | None:
        """Return the batch, or None if it went into the replay buffer.

        Args:
            batch: steps.
            is_batched: whether an environment is several, so that the last two dimensions are theirs and time.
        """
        if self.split_trajs:
            batch = split_trajectories(_real(batch))
        if self.device is not None:
            batch = batch.to(self.device)
        if self.postproc is not None:
            batch = over_batch(self.postproc, batch)
        if self.replay_buffer is None:
            return batch
        self._store(_real(batch), is_batched=is_batched)
        return None

    def _store(self, batch: TensorDictBase, *, is_batched: bool) -> None:
        ndim = self.lanes + 1
        if (
            ndim == 1
        ):  # as every worker by itself would write to it: a row is a step, or of several environments, theirs
            batch = batch.reshape(-1, batch.shape[-1]) if is_batched and batch.batch_dims > 1 else batch.reshape(-1)
        elif batch.batch_dims != ndim:
            raise CollectError(
                f"the replay buffer's storage has ndim={ndim}, batches have shape {list(batch.shape)}",
                hint=f"give the storage ndim={batch.batch_dims}, or ndim=1, which takes any",
            )
        self.replay_buffer.extend(batch)


def _real(batch: TensorDictBase) -> TensorDictBase:
    """Return the steps [S] of a batch with a mask, without it; any other as it is."""
    mask = batch.get(MASK, None)
    return batch if mask is None else batch[mask].exclude(MASK)
