"""The order of the samples of an epoch: a function of the seed, the epoch and a sample's number alone.

Any part of an epoch can be computed without the rest, so ranks, workers and a resumed run agree without talking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.draws import permute, stream
from rlx.buffer.sampler.slice_starts import MASK, Pad, Slicing, Weighting, contexts, stream_marks
from rlx.buffer.sampler.trajectory_weights import TrajectoryDraws
from rlx.errors import OptionError, SamplingError, SliceTooLongError


class StreamElements:
    """The slices of an epoch, in which trajectories follow each other, in every epoch in another order.

    With replacement, every step that is followed by enough others is an element.

    Args:
        replacement: whether elements are starts.
        shuffle: whether trajectories are in random order; otherwise in that of the storage.
        carry: whether a slice continues the one before it, and is not a beginning.
    """

    left_out = 0

    def __init__(
        self, storage: Storage, steps: int, seed: int, *, replacement: bool, shuffle: bool, carry: bool
    ) -> None:
        self._storage, self._index, self._steps, self._seed = storage, storage.index(), steps, seed
        self._shuffle, self._carry = shuffle, carry
        self._first, self._length = self._index.trajectories()
        total = int(self._length.sum())
        if 0 < total < steps:
            raise SliceTooLongError(f"slices of {steps} steps asked for, all trajectories together have {total}")
        self._stride = 1 if replacement else steps
        self.count = (total - steps) // self._stride + 1 if total else 0
        self._spare = total - steps - (self.count - 1) * self._stride

    def cut(self, elements: Rows, epoch: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n, steps] the rows of slices, and the marks of the steps where trajectories meet."""
        order, ends, skipped = _line(self, epoch)
        place = elements[:, None] * self._stride + skipped + np.arange(self._steps)
        piece = ends.searchsorted(place.reshape(-1), side="right").reshape(place.shape)
        trajectory = order[piece]
        elapsed = place - ends[piece] + self._length[trajectory]
        rows = self._index.after(self._first[trajectory].reshape(-1), elapsed.reshape(-1))
        is_first, is_last = elapsed == 0, elapsed == self._length[trajectory] - 1
        is_first[(elements == 0) | (not self._carry), 0] = True
        slicing = Slicing(None, self._steps)
        return rows.reshape(place.shape), stream_marks(slicing, self._storage, rows, is_first.ravel(), is_last.ravel())

    def line(self, epoch: int) -> tuple[Rows, Rows, int]:
        """Return [N] the trajectories in the order of an epoch, [N] where each ends, and the steps before the first
        slice."""
        order = np.arange(len(self._length))
        if not self._shuffle:
            return order, np.cumsum(self._length), 0
        order = permute(order, len(order), derived(self._seed, 6), epoch)
        return order, np.cumsum(self._length[order]), derived(self._seed, 7, epoch) % (self._spare + 1)


@lru_cache(maxsize=4)
def _line(elements: StreamElements, epoch: int) -> tuple[Rows, Rows, int]:
    return elements.line(epoch)


Shuffle = bool | Literal["blocks"]
_DRAWS = 2**64 - 2  # the stream of draws with replacement
_AT_ONCE = 256  # draws with replacement that are made by one stream
_ROUND = 1 << 16  # samples in which every dataset has exactly its share
_ODD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


@lru_cache(maxsize=4096)
def derived(seed: int, *numbers: int) -> int:
    """Return a seed for one of several orders that must not resemble each other."""
    return int(np.random.SeedSequence([seed % 2**64, *numbers]).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class EpochOrder:
    """The order of the elements of one or more datasets, which are numbered one dataset after the other.

    Args:
        shuffle: whether in random order. With "blocks", blocks of consecutive elements are in random order, and
            elements only within windows of several blocks.
        weights: share of each dataset in the samples; in proportion to its elements by default.
        lanes: elements per batch, each of which is followed by the next element in the next batch; 0: none are.
        by_trajectory: draws of the elements of each dataset by weights of its trajectories, with replacement.
    """

    counts: tuple[int, ...]
    seed: int
    shuffle: Shuffle = True
    replacement: bool = False
    weights: tuple[float, ...] | None = None
    block: int = 256
    window: int = 16_384
    lanes: int = 0
    by_trajectory: tuple[TrajectoryDraws | None, ...] | None = None

    def __post_init__(self) -> None:
        if not self.total:
            raise SamplingError("cannot draw batches: the data have no steps")
        if self.weights is None:
            return
        found = np.asarray(self.weights, np.float64)
        if len(found) != len(self.counts) or not np.isfinite(found).all() or (found < 0).any() or not found.any():
            raise OptionError(
                f"weights {list(self.weights)}: expected {len(self.counts)} numbers of at least 0, not all 0"
            )
        if empty := [number for number, count in enumerate(self.counts) if found[number] and not count]:
            raise SamplingError(f"dataset {empty[0]} has no steps to draw from: expected a weight of 0")
        never = np.flatnonzero((found > 0) & (_quotas(self.weights, _ROUND) == 0))
        if len(never) and not self.replacement:
            raise OptionError(
                f"weights {list(self.weights)}: number {never[0]} is below 1/{_ROUND:,} of their sum",
                hint="replacement=True draws in any proportion",
            )

    @property
    def total(self) -> int:
        """Elements of all datasets."""
        return sum(self.counts)

    @property
    def is_endless(self) -> bool:
        """Whether an epoch may have more samples than elements."""
        return self.replacement or self.weights is not None

    def batches(self, size: int, batches: int | None, ranks: int, *, drop_last: bool) -> int:
        """Return batches per epoch.

        Args:
            batches: the number that is asked for; by default as many as the elements give.
        """
        whole, rest = divmod(self.total, size)
        limited = not self.is_endless
        most = whole + (rest > 0 and not drop_last and limited)
        if most > whole and rest < ranks and (batches is None or batches > whole):
            raise OptionError(
                f"the last batch has {rest} elements, fewer than the {ranks} ranks", hint="use drop_last=True"
            )
        if batches is None:
            found = most or (0 if limited else 1)
        elif batches < 1 or (limited and batches > most):
            raise OptionError(f"batches {batches}: expected 1 to {most}, those of an epoch without replacement")
        else:
            found = batches
        if not found:
            raise SamplingError(f"{self.total} elements are less than a batch of {size}", hint="use drop_last=False")
        return found

    def located(self, elements: Rows) -> tuple[Rows, Rows]:
        """Return [n] the dataset of each element, and [n] its number there."""
        ends = np.cumsum(self.counts)
        part = ends.searchsorted(elements, side="right")
        first: Rows = ends - np.array(self.counts, np.int64)
        return part, elements - first[part]

    def elements(self, epoch: int, start: int, stop: int) -> Rows:
        """Return [stop - start] the elements that are samples ``start`` to ``stop`` of an epoch."""
        samples = np.arange(start, stop, dtype=np.int64)
        if self.lanes:
            batch, lane = np.divmod(samples, self.lanes)
            return lane * (self.total // self.lanes) + batch
        if self.replacement:
            return self._drawn(epoch, start, stop)
        if self.weights is not None:
            return self._weighted(epoch, samples)
        if self.shuffle == "blocks":
            return self._in_blocks(epoch, samples)
        return permute(samples, self.total, self.seed, epoch) if self.shuffle else samples

    def _drawn(self, epoch: int, start: int, stop: int) -> Rows:
        """Return independent draws; those of a number of samples at a time have one stream."""
        first = start // _AT_ONCE
        drawn = []
        for number in range(first, -(-stop // _AT_ONCE)):
            rng = stream(self.seed, _DRAWS, epoch, number)
            counts = np.array(self.counts)
            if self.weights is None:
                elements = rng.integers(self.total, size=_AT_ONCE)
                if self.by_trajectory is None:
                    drawn.append(elements)
                    continue
                part, _ = self.located(elements)
            else:
                part = np.cumsum(_shares(self.weights)).searchsorted(rng.random(_AT_ONCE), side="right")
                part = np.minimum(part, len(counts) - 1)
            within = rng.integers(counts[part]) if self.by_trajectory is None else self._by_trajectory(rng, part)
            drawn.append((np.cumsum(counts) - counts)[part] + within)
        return np.concatenate(drawn)[start - first * _AT_ONCE :][: stop - start]

    def _by_trajectory(self, rng: np.random.Generator, part: Rows) -> Rows:
        """Return [n] an element of each dataset, drawn by weights of its trajectories."""
        assert self.by_trajectory is not None
        chances, places = rng.random((2, len(part)))
        elements = np.empty_like(part)
        for number in np.unique(part).tolist():
            at = part == number
            draws, count = self.by_trajectory[number], self.counts[number]
            elements[at] = places[at] * count if draws is None else draws.elements(chances[at], places[at])
        return elements

    def _weighted(self, epoch: int, samples: Rows) -> Rows:
        """Return elements without replacement: no element of a dataset comes again before all of its others did."""
        counts = np.array(self.counts)
        turn, place = np.divmod(samples, _ROUND)
        elements = np.empty_like(samples)
        for number in np.unique(turn).tolist():
            at = np.flatnonzero(turn == number)
            part, draw = (column[place[at]] for column in _round(self, epoch, number))
            elements[at] = self._nth(epoch, part, draw) + (np.cumsum(counts) - counts)[part]
        return elements

    def _nth(self, epoch: int, part: Rows, draw: Rows) -> Rows:
        """Return [n] the elements that are the ``draw``-th of their datasets."""
        counts = np.array(self.counts)[part]
        cycle, place = np.divmod(draw, counts)
        if not self.shuffle:
            return place
        for number, turn in sorted({*zip(part.tolist(), cycle.tolist(), strict=True)}):
            at = np.flatnonzero((part == number) & (cycle == turn))
            place[at] = permute(place[at], self.counts[number], derived(self.seed, 2, number, turn), epoch)
        return place

    def _in_blocks(self, epoch: int, samples: Rows) -> Rows:
        order, ends = _blocks(self, epoch)
        window = samples // self.window
        places = samples.copy()
        for number in np.unique(window).tolist():
            first = number * self.window
            at = np.flatnonzero(window == number)
            size = min(self.window, self.total - first)
            places[at] = first + permute(samples[at] - first, size, derived(self.seed, 3, number), epoch)
        block = ends.searchsorted(places, side="right")
        elements: Rows = order[block] * self.block + places - np.concatenate([[0], ends])[block]
        return elements


@lru_cache(maxsize=4)
def _round(order: EpochOrder, epoch: int, number: int) -> tuple[Rows, Rows]:
    """Return, of each sample of a round, its dataset, and how many samples of that dataset came before it."""
    assert order.weights is not None
    quota = _quotas(order.weights, _ROUND)
    shuffled = permute(np.arange(_ROUND), _ROUND, derived(order.seed, 1, number), epoch)
    part = np.cumsum(quota).searchsorted(shuffled, side="right")
    draw = np.empty_like(part)
    draw[np.argsort(part, kind="stable")] = np.concatenate([number * n + np.arange(n) for n in quota.tolist()])
    return part, draw


@lru_cache(maxsize=4)
def _blocks(order: EpochOrder, epoch: int) -> tuple[Rows, Rows]:
    """Return [blocks] the blocks in the order of an epoch, and [blocks] where each ends."""
    count = -(-order.total // order.block)
    blocks = permute(np.arange(count), count, derived(order.seed, 4), epoch)
    sizes = np.where(blocks == count - 1, order.total - (count - 1) * order.block, order.block)
    return blocks, np.cumsum(sizes)


def _shares(weights: Sequence[float]) -> NDArray[np.float64]:
    given = np.asarray(weights, np.float64)
    shares: NDArray[np.float64] = given / given.sum()
    return shares


def _quotas(weights: Sequence[float], total: int) -> Rows:
    """Return [datasets] whole numbers that sum to a total, in proportion to weights."""
    exact = _shares(weights) * total
    quotas = np.floor(exact).astype(np.int64)
    largest = np.argsort(quotas - exact, kind="stable")[: total - int(quotas.sum())]
    quotas[largest] += 1
    return quotas


class Elements(Protocol):
    """The slices of the epochs of one source.

    Attributes:
        count: slices per epoch.
        left_out: trajectories that are too short.
    """

    count: int
    left_out: int

    def cut(self, elements: Rows, epoch: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n, steps] the rows of slices, and values to add to their steps, by TED key, each [n * steps, ...]."""


class SliceElements:
    """The slices of an epoch: every trajectory is cut into slices, in every epoch from another offset.

    With replacement, every start that is followed by enough steps is an element.

    Args:
        replacement: whether elements are starts.
        shuffle: whether offsets are random; otherwise slices begin with their trajectories.
        pad: whether any step may be the first of a slice ("right"), or the last one ("left"), and elements are steps.
        weighting: "step": elements are starts. "trajectory": one slice of every trajectory, in every epoch another.
    """

    def __init__(
        self,
        storage: Storage,
        steps: int,
        seed: int,
        *,
        replacement: bool,
        shuffle: bool,
        pad: Pad | None = None,
        weighting: Weighting | None = None,
    ) -> None:
        index = storage.index()
        first, length = index.trajectories()
        shortest = 1 if pad else steps
        fits = length >= shortest
        if len(length) and not fits.any():
            raise SliceTooLongError(
                f"slices of {steps} steps asked for, the longest of {len(length)} trajectories has {length.max()}",
                hint="request shorter slices",
            )
        self.left_out = int((~fits).sum())
        self._index, self._steps, self._seed, self._pad = index, steps, seed, pad
        self._shuffle = shuffle and not replacement
        self._first, self._fits = first[fits], fits
        starts = length[fits] - shortest + 1
        self._stride = 1 if replacement or pad or weighting else steps
        per_trajectory = np.ones_like(starts) if weighting == "trajectory" else (starts - 1) // self._stride + 1
        self._spare = starts - 1 - (per_trajectory - 1) * self._stride
        self._ends = np.cumsum(per_trajectory)
        self._begins = self._ends - per_trajectory
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    def by_weights(self, weights: NDArray[np.float64]) -> TrajectoryDraws:
        """Return draws of the elements by weights [N] of all trajectories."""
        return TrajectoryDraws(weights[self._fits], self._ends - self._begins)

    def cut(self, elements: Rows, epoch: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n, steps] the rows of slices, and values to add to their steps, by TED key, each [n * steps]."""
        trajectory = self._ends.searchsorted(elements, side="right")
        start = (elements - self._begins[trajectory]) * self._stride
        if self._shuffle:
            start = start + self._offsets(trajectory, epoch)
        elif self._pad == "left":
            start = start + self._spare[trajectory]  # ends with its trajectory, if this has one slice
        rows = self._index.after(self._first[trajectory], start)
        if self._pad is None:
            return self._index.follow(rows, self._steps), {}
        rows, is_real = contexts(self._index, rows, self._steps, self._pad)
        return rows, {MASK: is_real.reshape(-1)}

    def _offsets(self, trajectory: Rows, epoch: int) -> Rows:
        mixed = (trajectory.astype(np.uint64) ^ np.uint64(derived(self._seed, 5, epoch))) * _ODD
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX
        offsets: Rows = ((mixed >> _HALF) % (self._spare[trajectory] + 1).astype(np.uint64)).astype(np.int64)
        return offsets
