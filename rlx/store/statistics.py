"""Statistics of a shard, written down with it and merged over shards when asked for, without opening one.

Every figure is a function of the shard's rows alone, not of the blocks they came in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError
from rlx.manifest import ShardRecord
from rlx.schema import Role, Schema
from rlx.store.array import Rows
from rlx.store.codec import MIN_ROW_BYTES
from rlx.store.trajectories import Trajectories

# Of observations of MIN_ROW_BYTES or more, every such row enters the statistics: looking at all would double the work.
SAMPLED_EVERY = 16
MAX_ACTIONS = 1024
# This many squares of 16-bit numbers add up to less than 2**53.
_EXACT_NUMBERS = 2**20
# Names of the statistics of all trajectories, pieces of episodes included.
OF_ALL = MappingProxyType({"return": "trajectory_return", "length": "trajectory_length"})
# Over the trajectories that are whole episodes; shards of rlx 0.1.0 lack these.
WHOLE = WHOLE_RETURN, WHOLE_LENGTH = "whole_return", "whole_length"


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, sum, sum of squares and range of the finite numbers seen.

    Sums that no double can hold are infinite or NaN here, null in the manifest.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @classmethod
    def of(cls, numbers: Rows) -> Self:
        """Return the moments of all finite numbers in an array."""
        values = np.asarray(numbers, np.float64).ravel()
        values = values[np.isfinite(values)]
        if not len(values):
            return cls()
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return cls(len(values), values.sum(), np.square(values).sum(), values.min(), values.max())

    @classmethod
    def merge(cls, parts: Iterable[Self]) -> Self:
        """Return the moments of all parts together."""
        seen = [part for part in parts if part.count]
        if not seen:
            return cls()
        return cls(
            sum(part.count for part in seen),
            _exact_sum([part.total for part in seen]),
            _exact_sum([part.squares for part in seen]),
            min(part.low for part in seen),
            max(part.high for part in seen),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the moments as they stand in the manifest; only the count if it is 0."""
        if not self.count:
            return {"count": 0}
        sums = {"sum": _finite(float(self.total)), "sum_of_squares": _finite(float(self.squares))}
        return {"count": self.count, **sums, "min": float(self.low), "max": float(self.high)}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Return the moments that a manifest describes."""
        try:
            if not described["count"]:
                return cls()
            total, squares = (
                math.nan if described[key] is None else float(described[key]) for key in ("sum", "sum_of_squares")
            )
            return cls(int(described["count"]), total, squares, float(described["min"]), float(described["max"]))
        except (KeyError, TypeError, ValueError) as exc:
            raise CorruptDatasetError(f"the manifest's statistics are damaged: {type(exc).__name__}: {exc}") from exc

    def summary(self) -> dict[str, Any]:
        """Return range, mean and (population) standard deviation, for people."""
        if not self.count:
            return {"min": None, "max": None, "mean": None, "std": None}
        mean = self.total / self.count
        variance = self.squares / self.count - mean * mean
        std = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else None
        return {"min": self.low, "max": self.high, "mean": _finite(mean), "std": std}


def _exact_sum(values: Sequence[float]) -> float:
    """Return the rounded sum, whatever the order; NaN where it or a part of it is beyond what a double can hold."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class RowMoments:
    """Moments of sampled rows, collected while they are written, independent of the blocks."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._rows = 0
        self._parts: list[Moments] = []

    def add(self, rows: Rows) -> None:
        """Take in the next rows [n, ...] of the field, looking at every ``every``-th one of the field."""
        first = -self._rows % self._every
        self._rows += len(rows)
        seen = rows[first :: self._every]
        exact = (
            seen.dtype.kind in "iu" and seen.dtype.itemsize <= 2 and len(seen) > 0 and seen[0].size <= _EXACT_NUMBERS
        )
        self._parts += [_of_small(seen)] if exact else [Moments.of(row) for row in seen]

    def moments(self) -> Moments:
        """Return the moments of all sampled rows."""
        return Moments.merge(self._parts)


def _of_small(rows: Rows) -> Moments:
    """Return the moments of whole numbers of 16 bits at most, whose sums are exact in whatever order."""
    numbers = np.ascontiguousarray(rows).reshape(len(rows), -1).astype(np.float64)
    total, squares = numbers.sum(axis=1), np.einsum("ij,ij->i", numbers, numbers)
    return Moments(numbers.size, math.fsum(total), math.fsum(squares), float(rows.min()), float(rows.max()))


def table_statistics(
    returns: NDArray[np.float64], length: NDArray[np.int64], whole: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the manifest's statistics of the trajectories of a shard, each column [N]: of all, and of whole
    episodes."""
    columns = {"return": returns, "length": length, WHOLE_RETURN: returns[whole], WHOLE_LENGTH: length[whole]}
    return {key: Moments.of(column).to_json() for key, column in columns.items()}


@dataclass(frozen=True, slots=True)
class EpisodeStatistics:
    """Numbers of whole episodes and pieces of episodes, from the manifest.

    Args:
        whole: how many whole episodes; None where shards that rlx 0.1.0 wrote do not say.
        pieces: how many other trajectories; None where that is unknown.
        returns: of the whole episodes; of all trajectories where it is unknown which are whole.
    """

    whole: int | None
    pieces: int | None
    returns: Moments
    lengths: Moments

    @classmethod
    def of(cls, shards: Iterable[ShardRecord]) -> Self:
        """Return the episodes of some shards."""
        filled = [shard for shard in shards if shard.trajectories]
        is_known = all(WHOLE_LENGTH in shard.statistics for shard in filled)
        keys = (WHOLE_RETURN, WHOLE_LENGTH) if is_known else ("return", "length")
        returns, lengths = (
            Moments.merge(Moments.from_json(shard.statistics[key]) for shard in filled if key in shard.statistics)
            for key in keys
        )
        pieces = sum(shard.trajectories for shard in filled) - lengths.count
        return cls(lengths.count, pieces, returns, lengths) if is_known else cls(None, None, returns, lengths)

    def summary(self) -> dict[str, Any]:
        """Return both numbers, and the mean return and length of whole episodes; None where that is unknown."""
        means = [moments.summary()["mean"] if self.whole else None for moments in (self.returns, self.lengths)]
        return {"whole": self.whole, "pieces": self.pieces, "mean_return": means[0], "mean_length": means[1]}


def action_counts(actions: NDArray[np.generic]) -> dict[str, Any]:
    """Return how often each action was taken, where actions are few integers; else their moments."""
    if actions.ndim == 1 and actions.dtype.kind in "iub":
        values, counts = np.unique(actions, return_counts=True)
        if len(values) <= MAX_ACTIONS:
            return {"counts": {str(int(value)): int(count) for value, count in zip(values, counts, strict=True)}}
    return Moments.of(actions).to_json()


def statistics_of(blocks: Iterable[Block], table: Trajectories, schema: Schema) -> dict[str, Any]:
    """Return the statistics of the trajectories of a table, as a shard of them would have them."""
    kept = [name for name in ("reward", "action") if name in schema.fields and not schema[name].is_text]
    columns: dict[str, list[NDArray[np.generic]]] = {name: [] for name in kept}
    names = [name for name in schema.names(Role.OBSERVATION) if not schema[name].is_text]
    seen = {name: RowMoments(SAMPLED_EVERY if schema[name].row_bytes >= MIN_ROW_BYTES else 1) for name in names}
    for block in blocks:
        for name, parts in columns.items():
            parts.append(block.data[name])
        for name, moments in seen.items():
            moments.add(block.data[name])
    statistics = table_statistics(table.returns, table.length, table.whole)
    rows = {name: np.concatenate(parts) for name, parts in columns.items()}
    statistics["reward"] = Moments.of(rows["reward"]).to_json()
    if "action" in rows:
        statistics["action"] = action_counts(rows["action"])
    return {**{name: moments.moments().to_json() for name, moments in seen.items()}, **statistics}


def merge_statistics(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of a dataset from those of its shards, as ``rlx inspect --stats`` gives them."""
    parts = list(parts)
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: _merge([part[key] for part in parts if key in part]) for key in keys}


def summary(shards: Sequence[ShardRecord]) -> dict[str, Any]:
    """Return the statistics of a dataset of these shards, by name.

    ``return`` and ``length`` are of whole episodes, the names of ``OF_ALL`` of all trajectories; ``reward``, ``action``
    and the observations follow.
    """
    stats = merge_statistics(shard.statistics for shard in shards)
    episodes = EpisodeStatistics.of(shards)
    of_whole = {"return": episodes.returns.summary(), "length": episodes.lengths.summary()}
    of_all = {name: stats[key] for key, name in OF_ALL.items() if key in stats}
    return {**of_whole, **of_all, **{key: stats[key] for key in stats if key not in (*of_whole, *WHOLE)}}


def _merge(described: list[Mapping[str, Any]]) -> dict[str, Any]:
    if all("counts" in one for one in described):
        counts: dict[str, int] = {}
        for one in described:
            for value, count in one["counts"].items():
                counts[value] = counts.get(value, 0) + count
        return {"counts": dict(sorted(counts.items(), key=lambda item: int(item[0])))}
    return Moments.merge(Moments.from_json(one) for one in described if "counts" not in one).summary()
