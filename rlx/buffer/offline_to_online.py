"""A buffer for learning from a dataset first, and then from one's own experience more and more."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from rlx.buffer.ensemble import BuffersTogether, check_whole_batches, joined_batches, mark
from rlx.buffer.protocol import Storage
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.draws import fresh_seed
from rlx.buffer.sampler.steps import RandomSampler
from rlx.buffer.storage.dataset import DatasetStorage, as_storage
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform.compose import Compose, Transform
from rlx.errors import OptionError
from rlx.numbers import check_real, check_whole
from rlx.store.dataset import Dataset


class OfflineToOnlineReplayBuffer(BuffersTogether):
    """Buffer that joins a dataset and a growing buffer: a fixed fraction of each batch comes from the dataset.

    Of a batch of B steps, the first ``round(offline_fraction * B)`` are of the dataset, and the rest of the online
    buffer; while that is empty, all are of the dataset. Written steps go to the online buffer only.
    ``("index", "buffer_ids")`` is 0 for steps of the dataset and 1 for others, and ``("index", "index")`` their rows.
    As in ``ReplayBufferEnsemble``, a batch of both has the keys that both have.

    Args:
        offline_dataset: a dataset, its path, id or URL, a storage, or a buffer, with its sampler and transforms.
        online_storage: stores written steps. Either this or ``online_capacity``.
        online_capacity: size of a ``LazyTensorStorage``.
        offline_fraction: fraction of a batch that comes from the dataset; between 0 and 1.
        batch_size: steps in a batch, unless ``sample`` overrides it.
        transform: applied to whole batches.
        seed: random seed of the samplers that are made here; random by default.
        generator: source of the seed.

    Attributes:
        offline_buffer: the buffer of the dataset.
        online_buffer: the buffer of written steps, which a collector may write to.

    Raises:
        OptionError: a number is out of range.
        TypeError: not exactly one of ``online_storage`` and ``online_capacity`` is given, or ``offline_dataset`` is no
            dataset.

    Example:
        >>> buffer = OfflineToOnlineReplayBuffer("cartpole", online_capacity=500, offline_fraction=0.25, batch_size=8)
        >>> rows = buffer.extend(rlx.open("cartpole")[:100])
        >>> buffer.sample()["index", "buffer_ids"].tolist()
        [0, 0, 1, 1, 1, 1, 1, 1]
        >>> buffer.anneal(step=50, total_steps=100)
        >>> buffer.offline_fraction
        0.125
    """

    offline_buffer: ReplayBuffer
    online_buffer: ReplayBuffer

    def __init__(
        self,
        offline_dataset: ReplayBuffer | Storage | Dataset | str | os.PathLike[str],
        *,
        online_storage: Storage | None = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Transform | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if online_capacity is not None and online_storage is None:
            online_storage = LazyTensorStorage(online_capacity)
        elif online_storage is None or online_capacity is not None:
            raise TypeError("expected either online_storage or online_capacity")
        if not 0 < check_real("offline_fraction", offline_fraction) < 1:
            raise OptionError(f"offline_fraction {offline_fraction}: expected more than 0 and less than 1")
        if batch_size is not None:
            check_whole("batch_size", batch_size)
        seeds = torch.Generator().manual_seed(fresh_seed(seed, generator))
        if isinstance(offline_dataset, str | os.PathLike):
            offline_dataset = DatasetStorage(offline_dataset)
        if not isinstance(offline_dataset, ReplayBuffer):
            offline_dataset = _sampled(as_storage(offline_dataset), seeds)
        self.offline_buffer = offline_dataset
        self.online_buffer = _sampled(as_storage(online_storage), seeds)
        self._fraction = self._base_fraction = float(offline_fraction)
        self._batch_size = batch_size
        self._transform = Compose() if transform is None else Compose(transform)
        check_whole_batches(self._transform)

    def __repr__(self) -> str:
        parts = f"offline={self.offline_buffer!r}, online={self.online_buffer!r}"
        return f"{type(self).__name__}({parts}, offline_fraction={self._fraction}, batch_size={self._batch_size})"

    @property
    def offline_fraction(self) -> float:
        """Fraction of a batch that comes from the dataset at present."""
        return self._fraction

    def anneal(self, step: int, total_steps: int) -> None:
        """Lower the fraction of the dataset linearly, to 0 at ``total_steps``.

        Args:
            step: training steps so far; at 0 the fraction is that of the constructor.
            total_steps: the first step without the dataset.
        """
        check_whole("step", step, 0)
        check_whole("total_steps", total_steps)
        self._fraction = self._base_fraction * max(0.0, 1 - step / total_steps)

    def add(self, step: Any) -> int | torch.Tensor:
        """Write one step to the online buffer; return its row."""
        return self.online_buffer.add(step)

    def extend(self, steps: Any) -> torch.Tensor:
        """Write steps to the online buffer; return their rows."""
        return self.online_buffer.extend(steps)

    def sample(self, batch_size: int | None = None) -> TensorDictBase:
        """Return a batch [n], steps of the dataset first.

        Args:
            batch_size: steps in the batch; the buffer's ``batch_size`` by default.

        Raises:
            SamplingError: the dataset is empty, or a buffer has no such batch.
            SchemaMismatchError: a key differs in shape between the buffers.
            ValueError: neither this call nor the buffer has a batch size.
        """
        size = self._batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample or to the buffer")
        check_whole("batch_size", size)
        offline = round(self._fraction * size) if len(self.online_buffer) else size
        batches = []
        for number, (buffer, count) in enumerate(
            [(self.offline_buffer, offline), (self.online_buffer, size - offline)]
        ):
            if count:
                batches.append(buffer.sample(count))
                mark(batches[-1], number)
        return self._transform(joined_batches(batches, torch.cat, 1))

    def _saved_parts(self) -> Sequence[ReplayBuffer]:
        return self.offline_buffer, self.online_buffer

    def _own_state(self) -> dict[str, Any]:
        return {"fraction": self._fraction, "base_fraction": self._base_fraction}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._fraction, self._base_fraction = state["fraction"], state["base_fraction"]


def _sampled(storage: Storage, seeds: torch.Generator) -> ReplayBuffer:
    return TensorDictReplayBuffer(storage=storage, sampler=RandomSampler(generator=seeds))
