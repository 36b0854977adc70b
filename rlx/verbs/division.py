"""Divisions of the trajectories of a dataset into parts, each of them in one part at most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlx.errors import DatasetError, DatasetExistsError, OptionError
from rlx.store.dataset import Dataset
from rlx.verbs.assembly import ShardPart, kept_parts
from rlx.verbs.report import check_apart, clash

_EXACT = 1e-9  # what a sum of fractions may miss 1 by


class By(StrEnum):
    """The unit that is shared out: trajectories, or whole shards, which are linked."""

    TRAJECTORY = "trajectory"
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Division:
    """What determines which trajectory goes to which part.

    Args:
        fractions: of each part; if they sum to less than 1, the remaining fraction is dropped.
    """

    fractions: Sequence[float]
    by: By = By.TRAJECTORY
    seed: int = 0

    def __post_init__(self) -> None:
        text = ",".join(map(str, self.fractions)) or "none"
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise OptionError(f"fractions {text}: expected numbers above 0, at most 1")
        if math.fsum(self.fractions) > 1 + _EXACT:
            raise OptionError(f"fractions {text} add up to {math.fsum(self.fractions):g}, expected at most 1")
        if self.seed < 0:
            raise OptionError(f"seed {self.seed}: expected 0 or more")

    def parts(self, count: int) -> NDArray[np.int64]:
        """Return [count] the part of each of ``count`` trajectories or shards; -1 for those that are left out.

        Example:
            >>> Division([0.5, 0.25]).parts(8)
            array([ 1, -1,  0,  0,  0,  1,  0, -1])
        """
        sums = [math.fsum(self.fractions[: part + 1]) for part in range(len(self.fractions))]
        parts = np.full(count, -1, np.int64)
        order, start = np.random.default_rng(self.seed).permutation(count), 0
        for part, end in enumerate(min(round(sum * count), count) for sum in sums):
            if end == start:
                raise DatasetError(
                    f"part {part + 1} would be empty: {self.fractions[part]} of {count:,} {self._many}",
                    hint="a larger fraction" if self.by == By.TRAJECTORY else "`by` trajectory",
                )
            parts[order[start:end]] = part
            start = end
        return parts

    @property
    def _many(self) -> str:
        return "trajectories" if self.by == By.TRAJECTORY else "shards"


def divide(dataset: Dataset, division: Division) -> list[dict[int, ShardPart]]:
    """Return, for every part of the split, the parts of shards by their numbers."""
    sizes = np.diff(dataset.first_trajectories)
    parts = (
        np.repeat(division.parts(len(sizes)), sizes) if division.by == By.SHARD else division.parts(int(sizes.sum()))
    )
    return [kept_parts(dataset, parts == part) for part in range(len(division.fractions))]


def check_places(dataset: Dataset, destinations: Sequence[Path]) -> None:
    """Raise DatasetExistsError if writing the parts could change the dataset or another part."""
    for number, destination in enumerate(destinations):
        check_apart(dataset.path, destination)
        for other in destinations[:number]:
            if clash(other, destination):
                also = "" if other == destination else f", also as {other}"
                raise DatasetExistsError(f"{destination} is given twice{also}: expected a directory for each part")
