"""Uniform samplers of single steps: with replacement, without, once per epoch, and a limited number of times each."""

import copy
from collections.abc import Mapping
from functools import update_wrapper
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, Sampler, Storage, check_kind, rows_in_order
from rlx.buffer.sampler.draws import Draws, WorkerShare, permute
from rlx.buffer.sampler.trajectory_weights import TrajectoryDraws, TrajectoryWeights, weights_of
from rlx.buffer.snapshot import SavedState
from rlx.errors import OptionError, SamplingError
from rlx.numbers import check_whole


def stored_steps(storage: Storage, batch_size: int) -> int:
    """Return how many steps are stored."""
    check_whole("batch_size", batch_size)
    if not (steps := len(storage)):
        if storage.is_read_only:
            raise SamplingError(f"cannot draw {batch_size} steps: the dataset has none")
        raise SamplingError(
            f"cannot draw {batch_size} steps: the storage is empty", hint="write steps first: buffer.extend(steps)"
        )
    return steps


class SeededSampler(SavedState, Sampler):
    """Base of samplers: a seed, shards, and no use of priorities.

    Args:
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.
    """

    def __init__(self, *, seed: int | None = None, generator: torch.Generator | None = None) -> None:
        self._draws = Draws(seed, generator)

    @property
    def seed(self) -> int:
        """The seed that repeats the same draws."""
        return self._draws.seed

    def seed_from(self, generator: torch.Generator) -> None:
        """Take a new seed from a generator, before the first draw."""
        self._draws = Draws(None, generator)

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Update the sampler after rows were written."""

    def updated(self, storage: Storage) -> None:
        """Update the sampler after stored steps were changed in place."""

    def update_priority(self, rows: Rows, priority: NDArray[Any]) -> None:
        """Ignore the new priorities of rows."""

    def emptied(self) -> None:
        """Update the sampler after the storage was emptied."""

    @property
    def position(self) -> tuple[Any, ...]:
        """The state that the next batch depends on, its number last."""
        self._draws.enter_worker()
        return self._draws.seed, self._draws.shard, self._draws.number

    def skip(self) -> None:
        """Advance as ``sample`` does."""
        self._draws.number += 1

    def shard(self, index: int, count: int) -> Self:
        """Return a copy for worker ``index`` of ``count``: without replacement, no two of them draw the same.

        With replacement the workers' draws are independent of each other.
        """
        mine = copy.deepcopy(self)
        mine._draws.set_shard(WorkerShare(index, count))
        return mine

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        return {"draws": self._draws.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self._draws.load_state_dict(state["draws"])


def check_replacement(sampler: object, found: bool, *, expected: bool, has_epochs: bool = False) -> None:
    """Raise TypeError for another ``replacement`` than expected, or for arguments of epochs beside it.

    Args:
        has_epochs: whether ``drop_last`` or ``shuffle`` was given to a sampler with replacement.
    """
    name = type(sampler).__name__
    if found != expected:
        raise TypeError(f"{name}: expected replacement={expected}, found {found}")
    if has_epochs:
        raise TypeError(f"{name}: drop_last and shuffle require replacement=False")


class RandomSampler(SeededSampler):
    """Sampler that draws every stored step with the same probability, with replacement.

    Args:
        replacement: if False, a ``SamplerWithoutReplacement`` is made instead.
        drop_last, shuffle: arguments of that one.
        trajectory_weights: a column of a dataset's trajectory table, such as ``length``, or [N] weights: trajectories
            are drawn in proportion to them, and all steps of one are equally likely. By default all stored steps are.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Raises:
        TypeError: an argument of ``SamplerWithoutReplacement``, with replacement; or a subclass without.

    Example:
        >>> sampler = rlx.buffer.RandomSampler(seed=0)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), sampler=sampler, batch_size=64)
        >>> buffer.sample().batch_size
        torch.Size([64])
    """

    def __init__(
        self,
        *,
        replacement: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        trajectory_weights: TrajectoryWeights | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_replacement(self, replacement, expected=True, has_epochs=drop_last or not shuffle)
        super().__init__(seed=seed, generator=generator)
        self._weights = trajectory_weights
        self._weighted: tuple[int, TrajectoryDraws, Rows, Rows] | None = None

    def __new__(cls, *args: Any, replacement: bool = True, **options: Any) -> Self:
        """Return a new sampler, of another class if it is without replacement."""
        if replacement or cls is not RandomSampler:
            return super().__new__(cls)
        return cast("Self", SamplerWithoutReplacement(*args, **options))

    update_wrapper(__new__, __init__, assigned=())  # for its signature

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and an empty dict.

        Raises:
            SamplingError: the storage is empty, or no trajectory has a weight.
            OptionError: weights are not one for each stored trajectory, or out of range.
        """
        steps = stored_steps(storage, batch_size)
        if self._weights is not None:
            return self._of_trajectories(storage, self._draws.next(), batch_size), {}
        return storage.row_at(self._draws.next().integers(steps, size=batch_size)), {}

    def upcoming(self, storage: Storage, batch_size: int, count: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return what the next calls of ``sample`` will: rows [count, n], and an empty dict."""
        if self._weights is not None:
            return np.stack([self._of_trajectories(storage, rng, batch_size) for rng in self._draws.peek(count)]), {}
        drawn = [rng.integers(len(storage), size=batch_size) for rng in self._draws.peek(count)]
        return storage.row_at(np.stack(drawn)), {}

    def _of_trajectories(self, storage: Storage, rng: np.random.Generator, count: int) -> Rows:
        """Return [count] rows of trajectories that are drawn by weight."""
        index = self.index(storage)
        if self._weighted is None or self._weighted[0] != index.generation:
            firsts, lengths = index.trajectories()
            assert self._weights is not None
            draws = TrajectoryDraws(weights_of(index, self._weights), lengths)
            self._weighted = index.generation, draws, firsts, lengths
        _, draws, firsts, lengths = self._weighted
        trajectories = draws.of(rng.random(count))
        return index.after(firsts[trajectories], rng.integers(lengths[trajectories]))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_weighted": None}  # computed again elsewhere rather than sent there


class Epoch:
    """Position of a sampler in an epoch, in which everything is drawn once.

    Args:
        unit: name of the drawn unit, for messages.
        saved_as: the key of ``length`` in ``state_dict``.

    Attributes:
        length: number of draws in the current epoch; 0 between epochs.
        ran_out: whether the last batch was the last of an epoch.
    """

    def __init__(self, unit: str, saved_as: str) -> None:
        self.length = 0
        self.ran_out = False
        self._unit, self._saved_as = unit, saved_as
        self._number = 0
        self._drawn = 0

    def next(
        self, draws: Draws, stored: int, count: int, *, drop_last: bool, shuffle: bool, is_over: bool
    ) -> tuple[Rows, int]:
        """Return [at most count] ordinals of the next batch, of this worker, and the length of their epoch.

        Args:
            shuffle: whether to draw in another order every epoch.
            is_over: whether the current epoch no longer fits the storage.
        """
        if draws.enter_worker():
            self._begin(draws.first_epoch or self._number)
        shard, least = draws.shard, count if drop_last else 1
        if self.length and (is_over or shard.of(self.length) - self._drawn < least):
            self._begin(self._number + 1)
        self.length = length = self.length or stored
        mine = shard.of(length)
        if mine - self._drawn < least:
            raise SamplingError(
                f"shard {shard.index} of {shard.count} needs {least} {self._unit} to draw from, "
                f"it has {mine} of the {length}"
            )
        stop = min(self._drawn + count, mine)
        ordinals = shard.ordinals(self._drawn, stop)
        if shuffle:
            ordinals = permute(ordinals, length, draws.seed, self._number)
        self._drawn = stop
        self.ran_out = mine - stop < least
        if self.ran_out:
            self._begin(self._number + 1)
        return ordinals, length

    def end(self) -> None:
        """End the epoch under way, if any."""
        if self.length:
            self._begin(self._number + 1)

    def _begin(self, number: int) -> None:
        self._number, self._drawn, self.length = number, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that ``load_state_dict`` takes."""
        return {
            "epoch": self._number,
            "drawn": self._drawn,
            self._saved_as: self.length,
            "ran_out": self.ran_out,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self._number, self._drawn, self.length = state["epoch"], state["drawn"], state[self._saved_as]
        self.ran_out = state["ran_out"]


class EpochSampler(SeededSampler):
    """Base of samplers without replacement, which draw everything once per epoch."""

    _epoch: Epoch

    @property
    def ran_out(self) -> bool:
        """Whether the last batch was the last of an epoch."""
        return self._epoch.ran_out

    def emptied(self) -> None:
        """Take note that the storage was emptied: the epoch is over."""
        self._epoch.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        return super().state_dict() | self._epoch.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        super().load_state_dict(state)
        self._epoch.load_state_dict(state)


class SamplerWithoutReplacement(EpochSampler):
    """Sampler that draws every stored step once per epoch; its memory does not grow with the number of steps.

    An epoch covers the steps that are stored when it begins: rows first written later are drawn in the next epoch, and
    a row that is overwritten meanwhile is drawn once, with its content at that time. Emptying the storage ends the
    epoch.

    Args:
        drop_last: leave out the last batch of an epoch if it is smaller than ``batch_size``.
        shuffle: draw in another random order every epoch; otherwise in the order of rows.
        replacement: must be False.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Example:
        >>> sampler = rlx.buffer.SamplerWithoutReplacement(seed=0)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), sampler=sampler, batch_size=250)
        >>> len({int(row) for batch in buffer for row in batch["index"]})  # the batches of one epoch
        1000
    """

    def __init__(
        self,
        drop_last: bool = False,
        shuffle: bool = True,
        *,
        replacement: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_replacement(self, replacement, expected=False)
        super().__init__(seed=seed, generator=generator)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._epoch = Epoch("steps", saved_as="length")

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, fewer than ``batch_size`` at the end of an epoch, and an empty dict.

        Raises:
            SamplingError: the storage is empty, or this shard or a whole batch finds too little in it.
        """
        stored = stored_steps(storage, batch_size)
        if storage.has_gaps:
            raise SamplingError(
                f"{type(self).__name__}: expected a writer that drops no episodes, as an epoch has a step in every row",
                hint="use RandomSampler, or SliceSamplerWithoutReplacement",
            )
        epoch = self._epoch
        ordinals, length = epoch.next(
            self._draws,
            stored,
            batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            is_over=epoch.length > stored,
        )
        return rows_in_order(storage, ordinals, length), {}


class ConsumingSampler(SeededSampler):
    """Sampler that draws every stored step a limited number of times, at random; a new step in its row counts anew.

    A batch has no step twice. It is smaller if fewer steps are left to draw, and an iteration ends with the last one.
    Steps stay in the storage until they are overwritten, the oldest first, whether they were drawn or not.

    Args:
        max_sample_count: how often each step is drawn, at most.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Example:
        >>> data = rlx.open("cartpole")[:100]
        >>> buffer = rlx.ReplayBuffer(sampler=rlx.buffer.ConsumingSampler(), batch_size=30)
        >>> rows = buffer.extend(data)
        >>> [len(batch) for batch in buffer]
        [30, 30, 30, 10]
        >>> buffer.sampler.available(buffer.storage), len(buffer)
        (0, 100)
    """

    def __init__(
        self, max_sample_count: int = 1, *, seed: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(seed=seed, generator=generator)
        self.max_sample_count = check_whole("max_sample_count", max_sample_count, 1, np.iinfo(np.int32).max)
        self.emptied()

    @property
    def ran_out(self) -> bool:
        """Whether the last batch left no step to draw."""
        return self._ran_out

    def available(self, storage: Storage) -> int:
        """Return how many of the stored steps can still be drawn, by this worker."""
        self._catch_up(storage)
        return self._count

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, fewer than ``batch_size`` if fewer are available, and an empty dict.

        Raises:
            SamplingError: the storage is empty, or all of its steps were drawn as often as they may be.
        """
        stored = stored_steps(storage, batch_size)
        count = min(batch_size, self.available(storage))
        if not count:
            raise SamplingError(
                f"cannot draw {batch_size} steps: each of the {stored:,} stored ones was drawn "
                f"{self.max_sample_count} times",
                hint="write more steps: buffer.extend(steps)",
            )
        places = self._draws.next().choice(self._count, count, replace=False)
        rows = self._rows[places]
        self._left[rows] -= 1
        self._remove(places[self._left[rows] == 0])
        self._ran_out = not self._count
        return rows, {}

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Make written rows available again, and forget dropped ones."""
        self._make_room(storage)
        rows = np.unique(rows)
        if storage.has_gaps:
            self._forget(np.setdiff1d(rows, storage.stored(rows)))
        self._add(storage.stored(rows))

    def emptied(self) -> None:
        """Forget all steps."""
        self._left = np.empty(0, np.int32)  # [max_size] draws of each row to come; -1 of rows never written
        self._rows = np.empty(0, np.int64)  # [max_size] the available rows first, in any order
        self._count = 0
        self._known = 0
        self._ran_out = False
        self._share = self._draws.shard

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        return super().state_dict() | {
            "max_sample_count": self.max_sample_count,
            "left": torch.from_numpy(self._left.copy()),
            "rows": torch.from_numpy(self._rows[: self._count].copy()),
            "ran_out": self._ran_out,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``.

        Raises:
            SamplingError: the state is of another ``max_sample_count``.
        """
        if (found := state["max_sample_count"]) != self.max_sample_count:
            raise SamplingError(f"max_sample_count {self.max_sample_count}: expected {found}, as in the state")
        super().load_state_dict(state)
        self.emptied()
        self._left, rows = state["left"].numpy().copy(), state["rows"].numpy()
        self._rows = np.empty(len(self._left), np.int64)
        self._rows[: len(rows)] = rows
        self._count, self._known = len(rows), int(np.count_nonzero(self._left >= 0))
        self._ran_out = state["ran_out"]

    def _catch_up(self, storage: Storage) -> None:
        """Learn of steps that were stored before the storage had this sampler, and of the share of this worker."""
        self._draws.enter_worker()
        self._make_room(storage)
        if self._known < len(storage):
            rows = storage.row_at(np.arange(len(storage)))
            self._add(rows[self._left[rows] < 0])
        if self._share != self._draws.shard:
            self._share = self._draws.shard
            rows = self._mine(np.flatnonzero(self._left > 0))
            self._rows[: len(rows)], self._count = rows, len(rows)

    def _make_room(self, storage: Storage) -> None:
        if (more := storage.max_size - len(self._left)) > 0:
            self._left = np.append(self._left, np.full(more, -1, np.int32))
            self._rows = np.append(self._rows, np.empty(more, np.int64))

    def _mine(self, rows: Rows) -> Rows:
        mine: Rows = rows[rows % self._share.count == self._share.index]
        return mine

    def _add(self, rows: Rows) -> None:
        """Add rows [n], each once."""
        before = self._left[rows]
        self._left[rows] = self.max_sample_count
        self._known += int(np.count_nonzero(before < 0))
        new = self._mine(rows[before <= 0])
        self._rows[self._count : self._count + len(new)] = new
        self._count += len(new)

    def _forget(self, rows: Rows) -> None:
        """Remove rows [n] that hold no step any more."""
        self._remove(np.flatnonzero(np.isin(self._rows[: self._count], rows)))
        self._known -= int(np.count_nonzero(self._left[rows] >= 0))
        self._left[rows] = -1

    def _remove(self, places: NDArray[np.int64]) -> None:
        """Remove the available rows at places [n]: the last ones move there."""
        self._count -= len(places)
        tail = np.arange(self._count, self._count + len(places))
        kept = np.setdiff1d(tail, places, assume_unique=True)
        self._rows[np.sort(places)[: len(kept)]] = self._rows[kept]


def check_sampler(sampler: Sampler, prefetch: int) -> None:
    """Raise TypeError unless it is a sampler, OptionError if a buffer cannot read ahead with it."""
    check_kind("sampler", sampler, Sampler)
    if prefetch and isinstance(sampler, ConsumingSampler):
        raise OptionError(
            f"prefetch {prefetch}: expected 0 with a ConsumingSampler, as a step that is overwritten in a batch read "
            "ahead would count as drawn"
        )
