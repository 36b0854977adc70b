"""Samplers of single steps, all of them equally likely: with replacement, and every step once an epoch."""

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.part_checkpoint import SavedState
from rlx.buffer.protocol import Rows, Sampler, Storage
from rlx.buffer.sampler.draws import Draws, Share, permute
from rlx.errors import SamplingError


def stored_steps(storage: Storage, batch_size: int) -> int:
    """Return how many steps are stored.

    Raises:
        SamplingError: none.
    """
    if batch_size < 1:
        raise ValueError(f"expected batch_size of at least 1, found {batch_size}")
    if not len(storage):
        raise SamplingError(
            f"{batch_size} steps asked for, the storage is empty", hint="write steps first: buffer.extend(steps)"
        )
    return len(storage)


class SeededSampler(SavedState, Sampler):
    """Base of samplers: a seed, shards, and no use of priorities.

    Args:
        seed: the same seed gives the same rows; without it, one from ``generator``, or fresh entropy.
        generator: gives the seed.
    """

    def __init__(self, *, seed: int | None = None, generator: torch.Generator | None = None) -> None:
        self._draws = Draws(seed, generator)

    @property
    def seed(self) -> int:
        """The seed that repeats the same draws."""
        return self._draws.seed

    def seed_from(self, generator: torch.Generator) -> None:
        """Take a new seed from a generator; to be called before anything is drawn."""
        self._draws = Draws(None, generator)

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Take note of rows that were just written."""

    def update_priority(self, rows: Rows, priority: NDArray[Any]) -> None:
        """Ignore the new priorities of rows."""

    def emptied(self) -> None:
        """Take note that the storage was emptied."""

    def shard(self, index: int, count: int) -> Self:
        """Return a copy for worker ``index`` of ``count``: without replacement, no two of them draw the same.

        With replacement the workers' draws are independent of each other.
        """
        mine = copy.deepcopy(self)
        mine._draws.give_share(Share(index, count))
        return mine

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next samples depend on."""
        return {"draws": self._draws.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self._draws.load_state_dict(state["draws"])


class RandomSampler(SeededSampler):
    """Sampler that draws every stored step with the same probability, with replacement."""

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows; nothing beside them.

        Raises:
            SamplingError: the storage is empty.
        """
        steps = stored_steps(storage, batch_size)
        return storage.row_at(self._draws.next().integers(steps, size=batch_size)), {}


class SamplerWithoutReplacement(SeededSampler):
    """Sampler that draws every stored step once an epoch, in an order whose memory does not grow with their number.

    An epoch is over the steps that are stored when it begins: rows first written later wait for the next one, and a row
    that is overwritten meanwhile comes once, with what it holds when it comes. Emptying the storage ends the epoch.

    Args:
        drop_last: leave out the last batch of an epoch if it is short of ``batch_size``.
        shuffle: in another order every epoch; otherwise in the order of the rows.
        seed: the same seed gives the same rows; without it, one from ``generator``, or fresh entropy.
        generator: gives the seed.
    """

    def __init__(
        self,
        drop_last: bool = False,
        shuffle: bool = True,
        *,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(seed=seed, generator=generator)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._epoch = 0
        self._drawn = 0
        self._length = 0  # of the epoch under way; 0 between epochs
        self._ran_out = False

    @property
    def ran_out(self) -> bool:
        """Whether the last batch was the last of an epoch."""
        return self._ran_out

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, fewer than ``batch_size`` at the end of an epoch; nothing beside them.

        Raises:
            SamplingError: the storage is empty, or this shard or a whole batch finds too little in it.
        """
        stored = stored_steps(storage, batch_size)
        if self._draws.enter_worker():
            self._begin_epoch(self._draws.first_epoch or self._epoch)
        share, least = self._draws.share, batch_size if self.drop_last else 1
        if self._length and (self._length > stored or share.of(self._length) - self._drawn < least):
            self._begin_epoch(self._epoch + 1)
        self._length = self._length or stored
        mine = share.of(self._length)
        if mine - self._drawn < least:
            raise SamplingError(
                f"shard {share.index} of {share.count} needs {least} steps to draw from, it has {mine} of the {stored}"
            )
        stop = min(self._drawn + batch_size, mine)
        ordinals, length = share.ordinals(self._drawn, stop), self._length
        if self.shuffle:
            ordinals = permute(ordinals, length, self._draws.seed, self._epoch)
        self._drawn = stop
        self._ran_out = mine - stop < least
        if self._ran_out:
            self._begin_epoch(self._epoch + 1)
        return _rows(storage, ordinals, length), {}

    def emptied(self) -> None:
        """Take note that the storage was emptied: the epoch is over."""
        if self._length:
            self._begin_epoch(self._epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next samples depend on."""
        return super().state_dict() | {
            "epoch": self._epoch,
            "drawn": self._drawn,
            "length": self._length,
            "ran_out": self._ran_out,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        super().load_state_dict(state)
        self._epoch, self._drawn, self._length = state["epoch"], state["drawn"], state["length"]
        self._ran_out = state["ran_out"]

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._drawn, self._length = epoch, 0, 0


def _rows(storage: Storage, ordinals: Rows, length: int) -> Rows:
    """Return [n] rows, of the first of which it held when it held ``length`` on;
    where the rings stand makes no difference."""
    lane, place = np.divmod(ordinals, length // storage.lanes)
    return lane * (storage.max_size // storage.lanes) + place
