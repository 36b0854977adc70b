"""Which of several buffers the rows of a batch come from."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.sampler.draws import Draws
from rlx.errors import SamplingError


class BufferChoice:
    """A choice of buffers by their probabilities, with replacement, or of all of them.

    Args:
        count: how many there are.
        p: [count] how likely each is, up to a factor; without it all are equally likely.
        sample_from_all: every buffer gives the same share of every batch. Either this or ``p``.
        num_buffer_sampled: how many a batch is made from; by default as many as there are.
        seed: the same seed gives the same choices; without it, one from ``generator``, or fresh entropy.
        generator: gives the seed.

    Attributes:
        number: how many buffers a batch is made from.
        p: [count] how likely each buffer is; None: all are equally likely.
        takes_all: whether every buffer gives a share of every batch.
        draws: the random numbers.

    Raises:
        ValueError: no buffer, or ``p`` is not one probability for each.
        TypeError: arguments that exclude each other.

    Example:
        >>> BufferChoice(3, p=[0, 1, 0], num_buffer_sampled=2, seed=0).next()
        [1, 1]
    """

    def __init__(
        self,
        count: int,
        *,
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
        if self.number < 1:
            raise ValueError(f"expected num_buffer_sampled of at least 1, found {num_buffer_sampled}")
        self.takes_all = sample_from_all
        self.p = None if p is None else _probabilities(p, count)
        self.draws = Draws(seed, generator)

    def among(self, chosen: Sequence[int]) -> "BufferChoice":
        """Return the same choice among some of the buffers, by their probabilities.

        Raises:
            ValueError: none of them is likely.
        """
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

    def share(self, batch_size: int) -> int:
        """Return steps of a batch that each of the chosen buffers gives.

        Raises:
            SamplingError: the batch cannot be split evenly.
        """
        size, rest = divmod(batch_size, self.number)
        if rest or not size:
            raise SamplingError(
                f"batch of {batch_size} steps: expected a multiple of {self.number}, the buffers sampled"
            )
        return size


def _probabilities(p: Sequence[float] | torch.Tensor, count: int) -> NDArray[np.float64]:
    found = np.asarray(p, np.float64).reshape(-1)
    if len(found) != count or not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError(f"expected {count} probabilities of at least 0, not all 0, found {found.tolist()}")
    probabilities: NDArray[np.float64] = found / found.sum()
    return probabilities
