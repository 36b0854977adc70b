"""Steps for ``torch.utils.data.DataLoader``: every worker of every rank its own part of an epoch."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDictBase
from torch.utils.data import IterableDataset, get_worker_info

from rlx.buffer.protocol import Rows
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.draws import permute, stream


class StepSource(Protocol):
    """Where steps are: a ``Dataset`` or a ``ReplayBuffer``."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, index: Rows, /) -> TensorDictBase:
        """Return those at these places."""


class StepDataset(IterableDataset[TensorDictBase]):
    """Iterable dataset for ``DataLoader``: batches [B] of all steps, once per epoch over all workers and ranks.

    The order depends only on the seed and the epoch. Each worker of each rank has a range of consecutive steps, so that
    it opens few shards, and draws them in random order; the ranges change with the epoch. Give it to a ``DataLoader``
    with ``batch_size=None, collate_fn=unchanged``, because it yields whole batches. Workers may be forked or
    spawned; do not write to a buffer while they start.

    Args:
        source: a ``Dataset`` or a ``ReplayBuffer`` (its transforms are applied, its sampler is not used).
        batch_size: steps per batch; the last batch of a worker may be smaller.
        shuffle: whether in random order.
        drop_last: whether to leave steps out so that all workers and ranks have the same number of full batches.
        seed: of the order.
        rank: number of this process; by default from ``torch.distributed``, if initialised.
        world: number of processes.
        transform: applied to every batch by the worker.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = ReplayBuffer()
        >>> rows = buffer.extend(TensorDict({"observation": torch.arange(5)}, [5]))
        >>> batches = StepDataset(buffer, 2, shuffle=False)
        >>> loader = torch.utils.data.DataLoader(batches, batch_size=None, collate_fn=unchanged)
        >>> [batch["observation"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        source: StepSource,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        transform: Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch of {batch_size} steps: expected 1 or more")
        self._source = source
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._seed = seed
        self._rank, self._world = _place(rank, world)
        self._transform = transform
        # Shared, for workers that live longer than an epoch have copies of everything else.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of this epoch; without, each is the same."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[TensorDictBase]:
        for places in self._batches():
            batch = self._source[places]
            yield batch if self._transform is None else self._transform(batch)

    def _batches(self) -> Iterator[Rows]:
        """Yield places in the source, batch after batch, of this worker."""
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        total, part, parts = len(self._source), self._rank * workers + number, self._world * workers
        start, stop = self._part(total, part, parts)
        epoch = int(self._epoch)
        shift = 0
        if self._shuffle and total:
            shift = int(stream(self._seed, 0, epoch, 0).integers(total))
        for first in range(start, stop, self._batch_size):
            places = np.arange(first, min(first + self._batch_size, stop))
            if self._shuffle:
                places = start + permute(places - start, stop - start, self._seed, epoch * parts + part)
                places = (places + shift) % total
            yield rows_at(self._source, places)

    def _part(self, total: int, part: int, parts: int) -> tuple[int, int]:
        """Return first and last + 1 step of a part."""
        if not self._drop_last:
            return total * part // parts, total * (part + 1) // parts
        length = total // parts // self._batch_size * self._batch_size
        return part * length, (part + 1) * length


def unchanged(batch: Any) -> Any:
    """Return the batch: what a ``DataLoader``, which cannot convert TensorDicts, is to do with them."""
    return batch


def rows_at(source: StepSource, places: Rows) -> Rows:
    """Return [n] indices into the source of the 0th, 1st, ... of its steps."""
    return source.storage.row_at(places) if isinstance(source, ReplayBuffer) else places


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    Raises:
        ValueError: one was given without the other, or the rank is not below the number.
    """
    if rank is None and world is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    if rank is None or world is None or not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world}: expected both, and 0 <= rank < world")
    return rank, world
