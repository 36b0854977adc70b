"""Trajectories left out: those that do not fit a condition, and those that a sample passes over."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.errors import TransformError
from rlx.store.trajectories import Trajectories
from rlx.transform.expression import Expression


@dataclass(frozen=True)
class Filter:
    """Selection of the trajectories for which a condition holds: ``filter:return > 10 and length < 5000``.

    Args:
        text: an ``Expression`` over the trajectory table; ``id`` is a trajectory's number among those that it looks at,
            ``shard`` the number that its shard is named by.
    """

    text: str

    def __post_init__(self) -> None:
        Expression(self.text)

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return [N] whether the condition holds for each trajectory."""
        columns = {**table.columns(), "whole": table.whole, "id": np.arange(len(table)), "shard": shard}
        return Expression(self.text).holds(columns)


@dataclass(frozen=True)
class Subsample:
    """Selection of every n-th trajectory, from the first, or a random fraction of them, rounded.

    Args:
        every: 2 keeps the first, the third, and so on.
        fraction: how much of them.
        seed: of the choice of a fraction.
    """

    every: int = 0
    fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if bool(self.every) == bool(self.fraction):
            raise TransformError("expected every=N or fraction=F, one of them")
        if self.every < 0:
            raise TransformError(f"every is {self.every}, expected at least 1")
        if not 0 <= self.fraction <= 1:
            raise TransformError(f"fraction is {self.fraction}, expected 0 to 1")
        if self.seed < 0:
            raise TransformError(f"seed is {self.seed}, expected at least 0")

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return [N] whether each trajectory is in the sample."""
        kept = np.zeros(len(table), np.bool_)
        if self.every:
            kept[:: self.every] = True
            return kept
        kept[np.random.default_rng(self.seed).permutation(len(table))[: round(len(table) * self.fraction)]] = True
        return kept
