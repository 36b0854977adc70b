"""Where slices can start: any of the valid starts at random, without looking at all that is stored."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, TrajectoryIndex
from rlx.buffer.sampler.slicing import Slicing
from rlx.errors import SamplingError, SliceTooLongError

Weighting = Literal["step", "trajectory"]
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class SliceStarts:
    """Every valid start of a storage, counted by trajectory; takes time proportional to the trajectories.

    Attributes:
        firsts: [N] the first row of every trajectory that has a valid start.
        steps: [N] the stored steps of each.
        counts: [N] how many starts each has: its first row and those that follow it. With a span, the first ones lie
            before its first row.
        ends: [N] how many it and those before it have.
        generation: that of the index that this was counted in.
        slice_len: the length that this was counted for.
        left: how many steps of a slice may lie before its trajectory.
    """

    firsts: Rows
    steps: NDArray[np.int64]
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]
    generation: int
    slice_len: int | None
    left: int = 0

    @classmethod
    def count(cls, index: TrajectoryIndex, slicing: Slicing, slice_len: int | None) -> Self:
        """Count them.

        Raises:
            SliceTooLongError: no trajectory is that long.
            SamplingError: no slice can be drawn for another reason.
        """
        firsts, steps = index.trajectories()
        if not len(firsts):
            raise SamplingError("cannot draw slices: the storage is empty", hint="write steps: buffer.extend(steps)")
        counts = _starts_by_length(steps, slicing, slice_len)
        if slice_len is not None and not counts.any():
            raise _no_fit(steps, slicing, slice_len)
        if slicing.start_at_reset:
            counts = np.minimum(counts, index.at_reset(firsts))
            if not counts.any():
                raise SamplingError("start_at_reset: no stored episode has its first step")
        some = counts > 0
        left = 0 if slice_len is None else slicing.reach(slice_len)[0]
        return cls(firsts[some], steps[some], counts[some], np.cumsum(counts[some]), index.generation, slice_len, left)

    def draw(
        self, index: TrajectoryIndex, rng: np.random.Generator, slices: int, weighting: Weighting
    ) -> tuple[Rows, Rows | None]:
        """Return [slices] starts: each with the same probability, or of trajectories with the same probability.

        Also [slices] how many steps each may have at most, or None if all may have as many.
        """
        if weighting == "trajectory":
            return self.within(index, rng, rng.integers(len(self.firsts), size=slices))
        places = rng.integers(self.ends[-1], size=slices)
        trajectories = np.searchsorted(self.ends, places, side="right")
        before = self.ends[trajectories] - self.counts[trajectories]
        return self._at(index, trajectories, places - before)

    def within(self, index: TrajectoryIndex, rng: np.random.Generator, trajectories: Rows) -> tuple[Rows, Rows | None]:
        """Return [n] a start of each of these trajectories, each of its starts with the same probability;
        as ``draw``."""
        return self._at(index, trajectories, rng.integers(self.counts[trajectories]))

    def _at(self, index: TrajectoryIndex, trajectories: Rows, places: Rows) -> tuple[Rows, Rows | None]:
        firsts = self.firsts[trajectories]
        if not self.left or self.slice_len is None:
            return index.after(firsts, places), None
        window = np.minimum(self.slice_len, self.steps[trajectories])
        starts = places - np.minimum(self.left, window - 1)
        return index.after(firsts, np.maximum(starts, 0)), window + np.minimum(starts, 0)


def draw_by_rejection(
    index: TrajectoryIndex, rng: np.random.Generator, slicing: Slicing, slices: int, slice_len: int
) -> Rows:
    """Return [at most slices] valid starts, each with the same probability: stored steps at random, less those that
    are none.

    It takes time proportional to the slices whatever is stored, and gives up where most steps are no start.
    """
    found: list[Rows] = []
    missing, tries = slices, slices + slices // 4 + 8
    for _ in range(_ROUNDS):
        rows = index.row_at(rng.integers(len(index), size=tries))
        found.append(rows[slicing.is_start(index, rows, slice_len)][:missing])
        missing -= len(found[-1])
        if not missing:
            break
        tries *= 2
    return np.concatenate(found)


def _starts_by_length(steps: NDArray[np.int64], slicing: Slicing, slice_len: int | None) -> NDArray[np.int64]:
    """Return [N] how many steps can start a slice in a trajectory of each length."""
    if slicing.whole_trajectories:
        fits = np.ones_like(steps, bool) if slice_len is None else steps <= slice_len
        return fits.astype(np.int64)
    length = slice_len or 1
    windows = np.minimum(length, steps)  # shorter trajectories are drawn whole, where they are drawn
    beyond = sum(np.minimum(reach, windows - 1) for reach in slicing.reach(length))
    fits = steps >= length if slicing.strict_length else np.ones_like(steps, bool)
    return np.where(fits, steps - windows + 1 + beyond, 0)


def _no_fit(steps: NDArray[np.int64], slicing: Slicing, slice_len: int) -> SamplingError:
    if slicing.whole_trajectories:
        return SamplingError(
            f"whole trajectories of at most {slice_len} steps asked for, the shortest of {len(steps)} has {steps.min()}"
        )
    return SliceTooLongError(
        f"slices of {slice_len} steps asked for, the longest of {len(steps)} trajectories has {steps.max()}",
        hint="ask for shorter slices, or for what there is with strict_length=False",
    )
