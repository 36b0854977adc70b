"""Random numbers that are a function of a seed and of what they are for, so that drawing can go on where it stopped."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_WORD = 2**64
ORDERS = _WORD - 1
"""The stream of the orders of epochs, which all workers share."""


def fresh_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """The seed given, or one drawn from the generator, or from the system's entropy; 0 to 2**63.

    Raises:
        TypeError: both were given.
    """
    if seed is not None and generator is not None:
        raise TypeError("either seed or generator expected, found both")
    if generator is not None:
        return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    return secrets.randbits(63) if seed is None else seed % 2**63


def stream(seed: int, worker: int, epoch: int, number: int) -> np.random.Generator:
    """The random numbers of one batch; those of different arguments have nothing to do with each other.

    Example:
        >>> int(stream(seed=1, worker=0, epoch=0, number=7).integers(100))
        84
    """
    counter = np.array([0, number, epoch % _WORD, worker], np.uint64)
    return np.random.Generator(np.random.Philox(key=seed % _WORD, counter=counter))


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the draws one of several workers makes.

    Attributes:
        index: which worker; 0 to ``count``.
        count: how many there are.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard index of range({self.count}) expected, found {self.index}")

    def of(self, length: int) -> int:
        """How many of so many ordinals are this worker's."""
        return max(0, -(-(length - self.index) // self.count))

    def ordinals(self, start: int, stop: int) -> NDArray[np.int64]:
        """[stop - start] this worker's ordinals from its start-th to before its stop-th."""
        return np.arange(start, stop, dtype=np.int64) * self.count + self.index


class Draws:
    """The random numbers of a sampler, batch after batch.

    Args:
        seed: any integer; without it, one from ``generator``, or fresh entropy.
        generator: gives the seed.

    Attributes:
        seed: what makes the same draws again.
        share: which worker's draws these are.
        number: batches drawn so far.
    """

    def __init__(self, seed: int | None = None, generator: torch.Generator | None = None) -> None:
        self.seed = fresh_seed(seed, generator)
        self.share = Share()
        self.number = 0

    def next(self) -> np.random.Generator:
        """The random numbers of the next batch."""
        self.number += 1
        return stream(self.seed, self.share.index, 0, self.number - 1)

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"seed": self.seed, "number": self.number, "shard": self.share.index, "shards": self.share.count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on from there."""
        self.seed, self.number = state["seed"], state["number"]
        self.share = Share(state["shard"], state["shards"])
