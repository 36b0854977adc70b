"""Random numbers and shuffled orders that are functions of a seed, so that drawing can resume where it stopped."""

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from rlx.numbers import check_whole

_WORD = 2**64
ORDERS = _WORD - 1
"""The stream of the orders of epochs, which all workers share."""
_FEW = 1024  # up to which the whole order is made at once, every one as likely
_ROUNDS = 6  # even, so that rows end up as rows
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def fresh_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """Return the seed given, or one drawn from the generator, or from the system's entropy; 0 to 2**63."""
    if seed is not None and generator is not None:
        raise TypeError("expected either seed or generator, found both")
    if generator is not None:
        return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    return secrets.randbits(63) if seed is None else check_whole("seed", seed, None) % 2**63


def stream(seed: int, worker: int, epoch: int, number: int) -> np.random.Generator:
    """Return the random numbers of one batch, independent for different arguments."""
    counter = np.array([0, number, epoch % _WORD, worker], np.uint64)
    return np.random.Generator(np.random.Philox(key=seed % _WORD, counter=counter))


class BatchStream:
    """The random numbers of one batch after another, by one generator: a new one takes eight times as long."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchStream, ()

    def of(self, seed: int, worker: int, number: int) -> np.random.Generator:
        """Return the numbers of ``stream`` in epoch 0, until the next call."""
        if self._key != (seed, worker):
            self._key = seed, worker
            self._rng = stream(seed, worker, 0, number)
            self._state: Any = self._rng.bit_generator.state
        self._state["state"]["counter"][1] = number
        self._rng.bit_generator.state = self._state
        return self._rng


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of a ``DataLoader``.

    Attributes:
        seed: seed of this epoch of the loader, the same in all workers; of the first epoch with persistent workers.
        index: which worker; 0 to ``count``.
    """

    seed: int
    index: int
    count: int


def worker_here() -> Worker | None:
    """Return the worker of a ``DataLoader`` that this process is; None elsewhere."""
    info = get_worker_info()
    return None if info is None else Worker(info.seed - info.id, info.id, info.num_workers)


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """Part of the draws that one of several workers makes.

    Attributes:
        index: which worker; 0 to ``count``.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"expected shard index of range({self.count}), found {self.index}")

    def of(self, length: int) -> int:
        """Return how many of ``length`` ordinals are this worker's."""
        return max(0, -(-(length - self.index) // self.count))

    def ordinals(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return [stop - start] this worker's ordinals from its start-th to before its stop-th."""
        return np.arange(start, stop, dtype=np.int64) * self.count + self.index


class Draws:
    """Random numbers of a sampler, batch by batch; each worker of a ``DataLoader`` has its own.

    Args:
        seed: any integer; without it, one from ``generator``, or fresh entropy.
    """

    def __init__(self, seed: int | None = None, generator: torch.Generator | None = None) -> None:
        self.seed = fresh_seed(seed, generator)
        self.shard = WorkerShare()
        self.number = 0
        self.first_epoch = 0
        self._worker: Worker | None = None
        self._stream = BatchStream()

    def enter_worker(self) -> bool:
        """Return whether this is a worker of a ``DataLoader`` before its first draw, when the shard is split.

        A worker's draws depend on its number and on the loader's seed of this epoch (``torch.manual_seed``).
        """
        worker = worker_here()
        if worker is None or worker == self._worker:
            return False
        if self.shard.count == 1:  # ranks that share an epoch need the same order, and have seeds of their own
            self.first_epoch = worker.seed
        self.shard = WorkerShare(self.shard.index * worker.count + worker.index, self.shard.count * worker.count)
        self.number = worker.seed
        self._worker = worker
        return True

    def set_shard(self, shard: WorkerShare) -> None:
        """Draw the part of one of several workers."""
        self.enter_worker()
        self.shard = shard

    def next(self) -> np.random.Generator:
        """Return the random numbers of the next batch; they end those of the one before."""
        self.enter_worker()
        self.number += 1
        return self._stream.of(self.seed, self.shard.index, self.number - 1)

    def peek(self, count: int) -> Iterator[np.random.Generator]:
        """Yield the random numbers of the next batches, which remain the next ones; each ends the one before."""
        ahead = BatchStream()
        for number in range(self.number, self.number + count):
            yield ahead.of(self.seed, self.shard.index, number)

    def state_dict(self) -> dict[str, int]:
        """Return the state that ``load_state_dict`` takes."""
        return {"seed": self.seed, "number": self.number, "shard": self.shard.index, "shards": self.shard.count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a state of ``state_dict``."""
        self._worker = worker_here()
        self.seed, self.number = state["seed"], state["number"]
        self.shard = WorkerShare(state["shard"], state["shards"])


def permute(ordinals: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return [...] the position of each ordinal in a permutation of range(n).

    Args:
        ordinals: [...] of range(n).
        n: number of elements, up to 2**62.
    """
    places = np.array(ordinals, dtype=np.int64)
    if places.size and (places.min() < 0 or places.max() >= n):
        raise IndexError(f"expected ordinals of range({n}), found {places.min()} to {places.max()}")
    rng = stream(seed, ORDERS, epoch, 0)
    if n <= _FEW:
        return rng.permutation(n)[places]
    keys = rng.integers(2**64, size=_ROUNDS, dtype=np.uint64)
    width = math.isqrt(n - 1) + 1
    height = -(-n // width)
    flat = places.reshape(-1)
    walking = _shuffle(flat, width, height, keys)
    flat[:] = walking
    outside = np.flatnonzero(walking >= n)
    while outside.size:
        walking = _shuffle(flat[outside], width, height, keys)
        flat[outside] = walking
        outside = outside[walking >= n]
    return places


def _shuffle(places: NDArray[np.int64], width: int, height: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return [n] where a permutation of range(width * height) takes each place."""
    size, other_size = np.uint64(height), np.uint64(width)
    one, other = np.divmod(places.astype(np.uint64), other_size)
    for key in keys:
        mixed = (other ^ key) * _ODD
        mixed = ((mixed ^ (mixed >> _HALF)) * _MIX >> _HALF) + one
        one, other = other, mixed - mixed // size * size  # the rest, in half of the time of %
        size, other_size = other_size, size
    return (one * np.uint64(width) + other).astype(np.int64)
