"""A sampler over several storages, which chooses among them and leaves the rows to a sampler of each."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.part_checkpoint import SavedState
from rlx.buffer.part_ensembles import positions
from rlx.buffer.protocol import Rows, Sampler, Storage
from rlx.buffer.sampler.buffer_choice import BufferChoice
from rlx.buffer.sampler.draws import Share
from rlx.errors import SamplingError


@dataclass(frozen=True, slots=True)
class Portion:
    """One storage's part of a batch.

    Attributes:
        buffer: which of them.
        rows: [n] the rows in it.
        info: what its sampler says beside them.
    """

    buffer: int
    rows: Rows
    info: Mapping[Any, NDArray[Any]]


class SamplerEnsemble(SavedState):
    """Sampler that chooses storages by their probabilities, or takes all, and draws as many steps from each with its
    own sampler.

    Args:
        samplers: one for each storage.
        p: [storages] how likely each is, up to a factor; without it all are equally likely.
        sample_from_all: every storage gives the same share of every batch. Either this or ``p``.
        num_buffer_sampled: how many storages a batch is made from, with replacement; by default as many as there are.
        seed: the same seed gives the same choices; without it, one from ``generator``, or fresh entropy.
        generator: gives the seed.

    Raises:
        ValueError: no sampler, or ``p`` is not one probability for each.
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
        self.samplers = samplers
        self.choice = BufferChoice(
            len(samplers),
            p=p,
            sample_from_all=sample_from_all,
            num_buffer_sampled=num_buffer_sampled,
            seed=seed,
            generator=generator,
        )

    @property
    def p(self) -> NDArray[np.float64] | None:
        """How likely each storage is, [storages]; None: all are equally likely."""
        return self.choice.p

    @property
    def num_buffer_sampled(self) -> int:
        """How many storages a batch is made from."""
        return self.choice.number

    def __len__(self) -> int:
        return len(self.samplers)

    def __getitem__(self, index: Any) -> "Sampler | SamplerEnsemble":
        """Return a sampler, or some of them as an ensemble that keeps their probabilities.

        Raises:
            IndexError: no such sampler.
        """
        chosen = positions(index, len(self))
        if isinstance(chosen, int):
            return self.samplers[chosen]
        some = SamplerEnsemble(*(self.samplers[number] for number in chosen))
        some.choice = self.choice.among(chosen)
        return some

    @property
    def ran_out(self) -> bool:
        """Whether an epoch of any of the samplers ended with the last batch."""
        return any(getattr(sampler, "ran_out", False) for sampler in self.samplers)

    def sample(self, storages: Sequence[Storage], batch_size: int) -> list[Portion]:
        """Return portions that make up a batch; a storage that is chosen twice gives two.

        Raises:
            SamplingError: ``batch_size`` is not divisible by the number of storages, or a storage lacks the steps.
        """
        if len(storages) != len(self.samplers):
            raise ValueError(f"expected {len(self.samplers)} storages, found {len(storages)}")
        size = self.choice.share(batch_size)
        return [Portion(buffer, *self.samplers[buffer].sample(storages[buffer], size)) for buffer in self.choice.next()]

    def shard(self, index: int, count: int) -> Self:
        """Return a copy for worker ``index`` of ``count``, and so is each of its samplers."""
        mine = copy.copy(self)
        mine.choice = copy.deepcopy(self.choice)
        mine.choice.draws.give_share(Share(index, count))
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
