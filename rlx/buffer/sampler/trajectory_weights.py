"""Weights by trajectory: how often samplers and loaders draw from each, given by a column of the table or an array."""

from collections.abc import Sequence
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, TrajectoryIndex
from rlx.errors import OptionError, SamplingError
from rlx.numbers import array_of
from rlx.transform.selections import trajectory_values

TrajectoryWeights: TypeAlias = str | Sequence[float] | NDArray[Any] | torch.Tensor


class TrajectoryDraws:
    """Draws of trajectories in proportion to weights.

    Args:
        weights: [N] of each trajectory.
        counts: [N] elements of each, such as steps; trajectories without any are not drawn.

    Raises:
        SamplingError: no trajectory that has elements has a weight.

    Example:
        >>> draws = TrajectoryDraws(np.array([1.0, 0.0, 3.0]), np.array([5, 5, 5]))
        >>> draws.of(np.array([0.0, 0.24, 0.25, 0.99]))
        array([0, 0, 2, 2])
    """

    def __init__(self, weights: NDArray[np.float64], counts: Rows) -> None:
        mine = np.where(counts > 0, weights, 0)
        if not mine.any():
            raise SamplingError("trajectory_weights: no trajectory that can be drawn has a weight above 0")
        # The largest becomes 1, so that no sum is infinite.
        ends = np.cumsum(mine / mine.max())
        self._ends, self._counts = ends / ends[-1], counts
        self._begins = np.cumsum(counts) - counts

    @property
    def checksum(self) -> int:
        """CRC-32 of the weights."""
        return crc32(self._ends.data)

    def of(self, chances: NDArray[np.float64]) -> Rows:
        """Return [n] a trajectory for each chance of 0 to below 1."""
        trajectories: Rows = self._ends.searchsorted(chances, side="right")
        return trajectories

    def elements(self, chances: NDArray[np.float64], places: NDArray[np.float64]) -> Rows:
        """Return [n] elements, numbered one trajectory after the other: the trajectory by a chance, and one of its
        elements by a place, both of 0 to below 1."""
        trajectory = self.of(chances)
        counts = self._counts[trajectory]
        within: Rows = np.minimum((places * counts).astype(np.int64), counts - 1)
        return self._begins[trajectory] + within


def weights_of(index: TrajectoryIndex, given: TrajectoryWeights) -> NDArray[np.float64]:
    """Return [N] the weight of each trajectory of an index, in the order of ``index.trajectories()``.

    Args:
        given: a column of the dataset's table, or [N] weights; ``length`` is known of every storage.

    Raises:
        OptionError: a weight is negative or not finite, or there are not as many as trajectories.
        SamplingError: a storage that is no dataset has no such column.
    """
    if (table := getattr(index, "table", None)) is not None:  # of a dataset
        values = trajectory_values(table, given)
    elif isinstance(given, str) and given != "length":
        raise SamplingError(f"trajectory_weights {given!r}: expected 'length' or an array, of steps of no dataset")
    else:
        values = index.trajectories()[1] if isinstance(given, str) else array_of(given)
        if values.shape != (count := len(index.trajectories()[0]),):
            raise OptionError(f"trajectory_weights {list(values.shape)}: expected one of {count:,} trajectories each")
    weights = values.astype(np.float64)
    if (bad := weights[~((weights >= 0) & np.isfinite(weights))]).size:
        raise OptionError(f"trajectory_weights {bad[0]}: expected finite numbers of at least 0")
    return weights
