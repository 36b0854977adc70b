"""The parts of an ensemble of replay buffers: their storages, samplers and writers, and the choice among them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.batch import steps_at
from rlx.buffer.protocol import Rows, Sampler, Storage, Writer, check_kind
from rlx.buffer.sampler.draws import Draws, WorkerShare
from rlx.buffer.snapshot import SavedState, SavedTogether
from rlx.buffer.storage.dataset import as_storage
from rlx.buffer.transform.compose import Transform
from rlx.errors import SamplingError
from rlx.numbers import array_of, check_whole
from rlx.store.dataset import Dataset


def positions(index: Any, count: int) -> int | list[int]:
    """Return the position that an index means among ``count`` parts, or the positions.

    Args:
        index: an integer, a slice, an Ellipsis, or a list, range or 1-d array of integers.

    Example:
        >>> positions(-1, 3), positions(slice(1, None), 3), positions([2, 0], 3)
        (2, [1, 2], [2, 0])
    """
    found = np.arange(count)[array_of(index) if isinstance(index, (torch.Tensor, range)) else index]
    if found.ndim > 1:
        raise IndexError(f"index of {found.ndim} dimensions: expected one of {count} parts, or a list of them")
    chosen: int | list[int] = found.tolist()
    return chosen


def first_and_rest(index: Any) -> tuple[Any, Any]:
    """Return the parts of an index that choose buffers, and those that choose rows; None if absent.

    Example:
        >>> first_and_rest(2), first_and_rest((..., 5)), first_and_rest((0, 1, slice(3)))
        ((2, None), (Ellipsis, 5), (0, (1, slice(None, 3, None))))
    """
    if not isinstance(index, tuple):
        return index, None
    first, *rest = index
    return first, None if not rest else rest[0] if len(rest) == 1 else tuple(rest)


class _EnsembleParts(ABC):
    """Base of the parts of several buffers: their number, and some of them by their positions."""

    @abstractmethod
    def _saved_parts(self) -> Sequence[Any]:
        """Return the parts."""

    @abstractmethod
    def _some(self, chosen: list[int]) -> Any:
        """Return the parts at these positions as an ensemble."""

    def __len__(self) -> int:
        return len(self._saved_parts())

    def __getitem__(self, index: Any) -> Any:
        """Return a part, or some of them as an ensemble.

        Raises:
            IndexError: no such part.
        """
        chosen = positions(index, len(self))
        return self._saved_parts()[chosen] if isinstance(chosen, int) else self._some(chosen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._saved_parts()))})"


class StorageEnsemble(_EnsembleParts, SavedTogether):
    """Storages of several buffers; ``len()`` is their number.

    Args:
        storages: the storages.
        transforms: one transform or None per storage; none by default.

    Raises:
        ValueError: the numbers of transforms and storages differ.

    Example:
        >>> from tensordict import TensorDict
        >>> from rlx.buffer import LazyTensorStorage
        >>> storages = StorageEnsemble(LazyTensorStorage(10), LazyTensorStorage(10))
        >>> for storage in storages.storages:
        ...     rows = storage.append(TensorDict({"action": torch.arange(3)}, [3]))
        >>> storages[1, 2]["action"]
        tensor(2)
    """

    def __init__(self, *storages: Storage | Dataset, transforms: Sequence[Transform | None] | None = None) -> None:
        self.storages = tuple(map(as_storage, storages))
        self.transforms = [None] * len(storages) if transforms is None else list(transforms)
        if len(self.transforms) != len(storages):
            raise ValueError(f"{len(self.transforms)} transforms: expected {len(storages)}, one for each storage")

    @property
    def max_size(self) -> int:
        """Maximum number of steps, over all storages."""
        return sum(storage.max_size for storage in self.storages)

    def _saved_parts(self) -> Sequence[Any]:
        return self.storages

    def _some(self, chosen: list[int]) -> "StorageEnsemble":
        transforms = [self.transforms[number] for number in chosen]
        return StorageEnsemble(*(self.storages[number] for number in chosen), transforms=transforms)

    def __getitem__(self, index: Any) -> Any:
        """Return a storage, some of them as an ensemble, or the stored steps at rows of one or a list of those of
        several.

        Args:
            index: a storage or several, and rows: ``storages[0]``, ``storages[1:]``, ``storages[0, 5]``,
                ``storages[:, [3, 4]]``.

        Raises:
            IndexError: no such storage or row.
        """
        first, rows = first_and_rest(index)
        if rows is None:
            return super().__getitem__(first)
        chosen = positions(first, len(self))
        if isinstance(chosen, int):
            return steps_at(rows, self.storages[chosen])
        return [steps_at(rows, self.storages[number]) for number in chosen]


class WriterEnsemble(_EnsembleParts, SavedTogether):
    """Writers of several buffers, one per buffer; ``len()`` is their number.

    Args:
        writers: the writers.

    Example:
        >>> writers = rlx.buffer.WriterEnsemble(rlx.buffer.RoundRobinWriter(), rlx.buffer.RoundRobinWriter())
        >>> len(writers)
        2
    """

    def __init__(self, *writers: Writer) -> None:
        for writer in writers:
            check_kind("writer", writer, Writer)
        self.writers = writers

    def _saved_parts(self) -> Sequence[Any]:
        return self.writers

    def _some(self, chosen: list[int]) -> "WriterEnsemble":
        return WriterEnsemble(*(self.writers[number] for number in chosen))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the writers."""
        return {"writers": [writer.state_dict() for writer in self.writers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the states of the same number of writers."""
        for writer, its in zip(self.writers, state["writers"], strict=True):
            writer.load_state_dict(its)


@dataclass(frozen=True, slots=True)
class BufferDraw:
    """One storage's part of a batch.

    Attributes:
        rows: [n] the rows in it.
    """

    buffer: int
    rows: Rows
    info: Mapping[Any, NDArray[Any]]


class SamplerEnsemble(_EnsembleParts, SavedState):
    """Sampler that chooses storages by probability, or takes all, and draws the same number of steps from each.

    Args:
        samplers: one per storage.
        p: [storages] weight of each storage; equal by default.
        sample_from_all: take an equal share of every storage in each batch. Either this or ``p``.
        num_buffer_sampled: number of storages drawn per batch, with replacement; by default the number of storages.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Raises:
        ValueError: no sampler is given, or ``p`` does not have one weight per storage.

    Example:
        >>> sampler = rlx.buffer.SamplerEnsemble(rlx.buffer.RandomSampler(), rlx.buffer.RandomSampler(), p=[0.25, 0.75])
        >>> storages = rlx.buffer.StorageEnsemble(*[rlx.buffer.DatasetStorage("cartpole") for _ in range(2)])
        >>> writers = rlx.buffer.WriterEnsemble(*[rlx.buffer.ImmutableDatasetWriter() for _ in range(2)])
        >>> parts = {"storages": storages, "samplers": sampler, "writers": writers}
        >>> rlx.buffer.ReplayBufferEnsemble(**parts, batch_size=16).sample()["action"].shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | torch.Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        for sampler in samplers:
            check_kind("sampler", sampler, Sampler)
        self.samplers = samplers
        self.choice = BufferChoice(len(samplers), p, sample_from_all, num_buffer_sampled, seed, generator)

    @property
    def p(self) -> NDArray[np.float64] | None:
        """Weight of each storage, [storages]; None if all are equal."""
        return self.choice.p

    @property
    def num_buffer_sampled(self) -> int:
        """Number of storages drawn per batch."""
        return self.choice.number

    def _saved_parts(self) -> Sequence[Any]:
        return self.samplers

    def _some(self, chosen: list[int]) -> "SamplerEnsemble":
        some = SamplerEnsemble(*(self.samplers[number] for number in chosen))
        some.choice = self.choice.among(chosen)
        return some

    @property
    def ran_out(self) -> bool:
        """Whether an epoch of any of the samplers ended with the last batch."""
        return any(sampler.ran_out for sampler in self.samplers)

    def sample(self, storages: Sequence[Storage], batch_size: int) -> list[BufferDraw]:
        """Return draws that make up a batch; a storage that is chosen twice gives two.

        Raises:
            SamplingError: ``batch_size`` is not divisible by the number of storages, or a storage lacks the steps.
        """
        if len(storages) != len(self.samplers):
            raise ValueError(f"expected {len(self.samplers)} storages, found {len(storages)}")
        size = self.choice.steps_each(batch_size)
        return [
            BufferDraw(buffer, *self.samplers[buffer].sample(storages[buffer], size)) for buffer in self.choice.next()
        ]

    def shard(self, index: int, count: int) -> Self:
        """Return a copy for worker ``index`` of ``count``; its samplers are sharded too."""
        mine = copy.copy(self)
        mine.choice = copy.deepcopy(self.choice)
        mine.choice.draws.set_shard(WorkerShare(index, count))
        mine.samplers = tuple(sampler.shard(index, count) for sampler in self.samplers)
        return mine

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next samples depend on."""
        return {
            "draws": self.choice.draws.state_dict(),
            "samplers": [sampler.state_dict() for sampler in self.samplers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``.

        Raises:
            SamplingError: the state is of another number of samplers.
        """
        if len(state["samplers"]) != len(self.samplers):
            raise SamplingError(f"expected states of {len(self.samplers)} samplers, found {len(state['samplers'])}")
        self.choice.draws.load_state_dict(state["draws"])
        for sampler, its in zip(self.samplers, state["samplers"], strict=True):
            sampler.load_state_dict(its)


class BufferChoice:
    """A choice of buffers by their probabilities, with replacement, or of all of them.

    Args:
        p, sample_from_all, num_buffer_sampled, seed, generator: as in ``SamplerEnsemble``, of buffers.

    Attributes:
        p: [count] probability of each buffer; None if equal.
        takes_all: whether every buffer gives a share of every batch.

    Example:
        >>> BufferChoice(3, p=[0, 1, 0], num_buffer_sampled=2, seed=0).next()
        [1, 1]
    """

    def __init__(
        self,
        count: int,
        p: Sequence[float] | torch.Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not count:
            raise ValueError("expected at least one sampler or buffer, found none")
        if sample_from_all and (p is not None or num_buffer_sampled not in (None, count)):
            raise TypeError("expected either sample_from_all or p and num_buffer_sampled, found both")
        self.count = count
        self.number = count if num_buffer_sampled is None else num_buffer_sampled
        check_whole("num_buffer_sampled", self.number)
        self.takes_all = sample_from_all
        self.p = None if p is None else _probabilities(p, count)
        self.draws = Draws(seed, generator)

    def among(self, chosen: Sequence[int]) -> "BufferChoice":
        """Return the same choice among some of the buffers, by their probabilities."""
        fewer = self.takes_all or self.number == self.count
        return BufferChoice(
            len(chosen),
            p=None if self.p is None else self.p[list(chosen)].tolist(),
            sample_from_all=self.takes_all,
            num_buffer_sampled=None if fewer else self.number,
            seed=self.draws.seed,
        )

    def next(self) -> list[int]:
        """Return the buffers of the next batch."""
        if self.takes_all:
            return list(range(self.count))
        chosen: list[int] = self.draws.next().choice(self.count, size=self.number, p=self.p).tolist()
        return chosen

    def steps_each(self, batch_size: int) -> int:
        """Return steps of a batch that each of the chosen buffers gives."""
        size, rest = divmod(batch_size, self.number)
        if rest or not size:
            raise SamplingError(
                f"batch of {batch_size} steps: expected a multiple of {self.number}, the buffers sampled"
            )
        return size


def _probabilities(p: Sequence[float] | torch.Tensor, count: int) -> NDArray[np.float64]:
    found = array_of(p, np.float64).reshape(-1)
    if len(found) != count or not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError(f"expected {count} probabilities of at least 0, not all 0, found {found.tolist()}")
    probabilities: NDArray[np.float64] = found / found.sum()
    return probabilities
