"""Storages of rlx in TorchRL's replay buffers, and samplers of TorchRL in those of rlx."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase, is_leaf_nontensor

from rlx.buffer.protocol import Rows
from rlx.buffer.protocol import Sampler as SamplerOfRlx
from rlx.buffer.protocol import Storage as StorageOfRlx
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.errors import MissingExtraError, OptionError
from rlx.numbers import array_of
from rlx.store.dataset import Dataset

try:
    from torchrl.data.replay_buffers.samplers import Sampler as TorchRLSampler
    from torchrl.data.replay_buffers.storages import Storage as TorchRLStorage
except ModuleNotFoundError as exc:
    raise MissingExtraError("this module needs TorchRL", hint="pip install torchrl") from exc


class Storage(TorchRLStorage):  # type: ignore[misc]  # TorchRL has no types
    """Storage of rlx, or a dataset, as the storage of a ``torchrl.data.ReplayBuffer``: compressed, and exact.

    ``storage[:]`` reads nothing: it has the keys of a TensorDict, each read when it is asked for, so that TorchRL's
    samplers of slices find trajectories without decoding observations. TorchRL asks for a ``collate_fn`` with storages
    that are not its own; batches need none.

    Args:
        storage: a storage of one dimension, or a dataset, its path, id or URL. A dataset is read-only, which is what
            TorchRL's ``ImmutableDatasetWriter`` is for.

    Raises:
        OptionError: the storage has more dimensions, or TorchRL saves one that is not a dataset: use
            ``rlx.ReplayBuffer.dumps``.

    Example:
        >>> import rlx, torchrl.data
        >>> from rlx.integrations.torchrl import Storage
        >>> steps = Storage("cartpole")
        >>> buffer = torchrl.data.ReplayBuffer(storage=steps, collate_fn=lambda batch: batch, batch_size=32)
        >>> buffer.sample()["observation"].shape
        torch.Size([32, 4])
    """

    def __init__(self, storage: StorageOfRlx | Dataset | str | os.PathLike[str]) -> None:
        steps = DatasetStorage(storage) if isinstance(storage, Dataset | str | os.PathLike) else storage
        if steps.ndim != 1:
            raise OptionError(f"`storage` has {steps.ndim} dimensions: expected 1")
        super().__init__(steps.max_size)
        self.steps = steps

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Storage({self.steps!r})"

    def get(self, index: Any) -> Any:
        """Return the step at an integer, the steps [n] at rows, or for ``[:]`` an ``AllSteps``."""
        if isinstance(index, slice) and index == slice(None):
            return AllSteps(self.steps)
        rows = _rows(index, self.steps)
        steps = self.steps.get(rows.reshape(-1))
        return steps.reshape(rows.shape) if rows.ndim else steps[0]

    def set(self, cursor: Any, data: TensorDictBase, *, set_cursor: bool = True) -> None:
        """Write new steps at the writer's cursor, or without ``set_cursor`` update stored ones."""
        rows = np.atleast_1d(_rows(cursor, self.steps, written=True))
        steps = data if data.ndim else data[None]
        if set_cursor:
            self._set_last_cursor(cursor)
            self.steps.set(rows, steps)
        else:
            self.steps.update(rows, steps)
        self._bump_mutation_revision()

    def _empty(self) -> None:
        self.steps.empty()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing for a dataset, which stays where it is."""
        if not self.steps.is_read_only:
            raise OptionError(
                "TorchRL cannot save a storage of rlx: use `rlx.ReplayBuffer(storage=storage.steps).dumps`"
            )
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: ARG002
        """Do nothing: a dataset stays where it is."""
        self.state_dict()

    def dumps(self, path: Any) -> None:  # noqa: ARG002
        """Write nothing: a dataset stays where it is."""
        self.state_dict()

    loads = dumps


class AllSteps(Mapping[NestedKey, torch.Tensor]):
    """The keys of all steps of a storage, each read when it is asked for.

    Args:
        steps: the storage.
    """

    def __init__(self, steps: StorageOfRlx) -> None:
        self._steps = steps

    def __getitem__(self, key: NestedKey) -> Any:
        if not self._steps.has(key):
            raise KeyError(key)
        return self._steps.get(np.arange(len(self._steps)), [key])[key]

    def __iter__(self) -> Iterator[NestedKey]:
        return iter(self._steps.get(np.arange(1)).keys(True, True, is_leaf_nontensor))

    def __len__(self) -> int:
        return len(self._steps)


class Sampler(SamplerOfRlx):
    """Sampler of TorchRL for an ``rlx.ReplayBuffer``.

    Args:
        sampler: such as ``torchrl.data.replay_buffers.samplers.RandomSampler()``.

    Example:
        >>> import rlx, torchrl.data.replay_buffers.samplers as samplers
        >>> from rlx.integrations.torchrl import Sampler
        >>> sampler = Sampler(samplers.SamplerWithoutReplacement())
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), sampler=sampler, batch_size=250)
        >>> len({int(row) for _ in range(4) for row in buffer.sample()["index"]})
        1000
    """

    def __init__(self, sampler: TorchRLSampler) -> None:
        self.sampler = sampler

    @property
    def ran_out(self) -> bool:
        """Whether the last batch was the last of an epoch."""
        return bool(self.sampler.ran_out)

    def seed_from(self, generator: torch.Generator) -> None:
        """Draw from a generator."""
        self.sampler._rng = generator

    def sample(self, storage: StorageOfRlx, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and what the sampler adds to the batch, by key."""
        index, info = self.sampler.sample(Storage(storage), batch_size)
        said = {key: array_of(value) for key, value in info.items() if key != "index"}
        return _rows(index, storage), said

    def extended(self, storage: StorageOfRlx, rows: Rows) -> None:  # noqa: ARG002
        """Update the sampler after rows were written."""
        self.sampler.extend(torch.from_numpy(rows.reshape(-1)))

    def update_priority(self, rows: Rows, priority: NDArray[Any]) -> None:
        """Update the priorities of rows."""
        self.sampler.update_priority(torch.from_numpy(rows), torch.from_numpy(priority))

    def emptied(self) -> None:
        """Update the sampler after the storage was emptied."""
        self.sampler._empty()

    def shard(self, index: int, count: int) -> Self:
        """Raise OptionError: TorchRL's samplers cannot be divided among workers."""
        raise OptionError(f"{self.sampler!r} cannot be divided: worker {index} of {count} requires a sampler of rlx")

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state."""
        state: dict[str, Any] = self.sampler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self.sampler.load_state_dict(dict(state))


def _rows(index: Any, steps: StorageOfRlx, *, written: bool = False) -> Rows:
    """Return the rows of TorchRL's index: an integer, a range, a slice, a tensor, or a tuple of one of these."""
    if isinstance(index, tuple):
        (index,) = index
    if isinstance(index, slice):
        index = range(*index.indices(steps.max_size if written else len(steps)))
    return array_of(index, np.int64)
