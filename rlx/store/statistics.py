"""Statistics of a shard, written down with it and merged over shards when asked for, without opening one.

Every figure is a function of the shard's rows alone, not of the blocks they came in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError
from rlx.manifest import ShardRecord
from rlx.schema import Field, Role, Schema, channel_axis
from rlx.store.array import Rows
from rlx.store.codec import MIN_ROW_BYTES
from rlx.store.trajectories import Trajectories

# Of observations of MIN_ROW_BYTES or more, that of every such step enters the statistics: all would double the work.
SAMPLED_EVERY = 16
MAX_ACTIONS = 1024
# A vector of more numbers has one statistic for all of them: every shard's record has five numbers for each.
MAX_DIMENSIONS = 512
# Rows that are added up at once: sums do not depend on the blocks that the rows came in.
PIECE_ROWS = 8192
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
        if len(seen) < 2:
            return seen[0] if seen else cls()
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

    @property
    def mean(self) -> float | None:
        """The mean; None of no numbers, and of those whose sum no double can hold."""
        return _finite(self.total / self.count) if self.count else None

    def summary(self) -> dict[str, Any]:
        """Return range, mean and (population) standard deviation, for people."""
        if not self.count:
            return {"min": None, "max": None, "mean": None, "std": None}
        mean = self.total / self.count
        variance = self.squares / self.count - mean * mean
        std = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else None
        return {"min": self.low, "max": self.high, "mean": self.mean, "std": std}


def _exact_sum(values: Sequence[float]) -> float:
    """Return the rounded sum, whatever the order; NaN where it or a part of it is beyond what a double can hold."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def parted_axis(shape: Sequence[int]) -> int | None:
    """Return the axis of a field's rows each of whose entries has statistics of its own; None if all numbers share one.

    That of a vector's dimensions, ``MAX_DIMENSIONS`` at most, or of a picture's channels.

    Example:
        >>> parted_axis((17,)), parted_axis((84, 84, 3)), parted_axis((84, 84)), parted_axis(())
        (0, 2, None, None)
    """
    if 0 in shape:
        return None
    return channel_axis(shape) if len(shape) != 1 else 0 if shape[0] <= MAX_DIMENSIONS else None


@dataclass(frozen=True, slots=True)
class FieldMoments:
    """Moments of the rows of a field.

    Args:
        parts: of each dimension of a vector or channel of a picture; or one, of all numbers.
        is_parted: whether they are of dimensions or channels.
    """

    parts: Sequence[Moments]
    is_parted: bool

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return the moments of rows [n, ...]."""
        axis = parted_axis(rows.shape[1:])
        if axis is None:
            return cls([Moments.of(rows)], is_parted=False)
        return cls([Moments.of(part) for part in np.moveaxis(rows, axis + 1, 0)], is_parted=True)

    @classmethod
    def merge(cls, parts: Iterable[Self]) -> Self:
        """Return the moments of all parts together: of all numbers, where one has no more than that."""
        seen = list(parts)
        if len({(len(one.parts), one.is_parted) for one in seen}) != 1:
            return cls([Moments.merge(moments for one in seen for moments in one.parts)], is_parted=False)
        columns = zip(*(one.parts for one in seen), strict=True)
        return cls([Moments.merge(column) for column in columns], seen[0].is_parted)

    def to_json(self) -> dict[str, Any]:
        """Return the moments as they stand in the manifest: of parts, a list for each key, null where a part has no
        numbers."""
        described = [part.to_json() for part in self.parts]
        return {key: [one.get(key) for one in described] for key in _KEYS} if self.is_parted else described[0]

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Return the moments that a manifest describes; rlx 0.1.0 wrote one for all numbers."""
        if not isinstance(described.get("count"), list):
            return cls([Moments.from_json(described)], is_parted=False)
        columns = [described.get(key) for key in _KEYS]
        lengths = {len(column) if isinstance(column, list) else None for column in columns}
        if lengths != {len(described["count"])}:
            raise CorruptDatasetError(f"the manifest's statistics are damaged: expected lists of one length of {_KEYS}")
        parts = [dict(zip(_KEYS, numbers, strict=True)) for numbers in zip(*columns, strict=True)]
        return cls([Moments.from_json(part) for part in parts], is_parted=True)

    def summary(self) -> dict[str, Any]:
        """Return range, mean and standard deviation; lists of them, of parts."""
        found = [part.summary() for part in self.parts]
        return {key: [one[key] for one in found] for key in found[0]} if self.is_parted else found[0]


_KEYS = ("count", "sum", "sum_of_squares", "min", "max")


class ObservationMoments:
    """Moments of the observations that steps begin with, collected while they are written, independent of the blocks.

    Final observations are left out: learners normalize by those that they act on, and some sources record no others.

    Args:
        field: the observation; of large ones, every ``SAMPLED_EVERY``-th step's is looked at.
    """

    def __init__(self, field: Field) -> None:
        shape = field.shape
        self._axis, self._every = parted_axis(shape), SAMPLED_EVERY if field.row_bytes >= MIN_ROW_BYTES else 1
        # Pictures are added up one by one, vectors many at once.
        self._piece = PIECE_ROWS if math.prod(shape) <= MAX_DIMENSIONS else 1
        self._is_exact = math.prod(shape) <= _EXACT_NUMBERS
        self._steps = 0
        self._waiting: list[Rows] = []
        self._waiting_rows = 0
        self._parts: list[FieldMoments] = []

    def add(self, block: Block, name: str) -> None:
        """Take in a field's rows of the next block, or of every sixteenth step of all blocks."""
        rows, first = block.data[name], -self._steps % self._every
        self._steps += block.steps
        # Every trajectory that ends in the block has a final observation.
        begun = np.arange(block.steps) + np.repeat(np.arange(len(block.lengths)), block.lengths)
        seen = rows[begun[first :: self._every]]
        if not seen.size:  # no steps, or rows of shape [0]
            return
        if self._is_exact and seen.dtype.kind in "iub" and seen.dtype.itemsize <= 2:
            parts = [seen] if self._axis is None else np.moveaxis(seen, self._axis + 1, 0)
            self._parts.append(FieldMoments([_of_small(part) for part in parts], self._axis is not None))
        elif self._piece == 1:
            self._parts += [FieldMoments.of(row[None]) for row in seen]
        else:
            self._waiting.append(seen)
            self._waiting_rows += len(seen)
            if self._waiting_rows >= self._piece:
                self._add_up()

    def _add_up(self) -> None:
        waiting = np.concatenate(self._waiting)
        whole = len(waiting) // self._piece * self._piece
        self._parts += [FieldMoments.of(part) for part in np.split(waiting[:whole], whole // self._piece)]
        self._waiting, self._waiting_rows = [waiting[whole:]], len(waiting) - whole

    def moments(self) -> FieldMoments:
        """Return the moments of all rows looked at."""
        rest = [FieldMoments.of(np.concatenate(self._waiting))] if self._waiting_rows else []
        if not self._parts and not rest:
            return FieldMoments([Moments()], is_parted=False)
        return FieldMoments.merge([*self._parts, *rest])


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

    KEYS: ClassVar[tuple[str, ...]] = (*WHOLE, "return", "length")  # the statistics that they are made of

    @classmethod
    def of(cls, shards: Iterable[ShardRecord]) -> Self:
        """Return the episodes of some shards."""
        filled = [shard for shard in shards if shard.trajectories]
        is_known = all(WHOLE_LENGTH in shard.statistics for shard in filled)
        keys = cls.KEYS[:2] if is_known else cls.KEYS[2:]
        returns, lengths = (
            Moments.merge(Moments.from_json(shard.statistics[key]) for shard in filled if key in shard.statistics)
            for key in keys
        )
        pieces = sum(shard.trajectories for shard in filled) - lengths.count
        return cls(lengths.count, pieces, returns, lengths) if is_known else cls(None, None, returns, lengths)

    def summary(self) -> dict[str, Any]:
        """Return both numbers, and the mean return and length of whole episodes; None where that is unknown."""
        means = [moments.mean if self.whole else None for moments in (self.returns, self.lengths)]
        return {"whole": self.whole, "pieces": self.pieces, "mean_return": means[0], "mean_length": means[1]}


def action_counts(actions: NDArray[np.generic]) -> dict[str, Any]:
    """Return how often each action was taken, where actions are few integers; else their moments, of each dimension."""
    if actions.ndim == 1 and actions.dtype.kind in "iub":
        values, counts = np.unique(actions, return_counts=True)
        if len(values) <= MAX_ACTIONS:
            return {"counts": {str(int(value)): int(count) for value, count in zip(values, counts, strict=True)}}
    return FieldMoments.of(actions).to_json()


def statistics_of(blocks: Iterable[Block], table: Trajectories, schema: Schema) -> dict[str, Any]:
    """Return the statistics of the trajectories of a table, as a shard of them would have them."""
    kept = [name for name in ("reward", "action") if name in schema.fields and not schema[name].is_text]
    columns: dict[str, list[NDArray[np.generic]]] = {name: [] for name in kept}
    names = [name for name in schema.names(Role.OBSERVATION) if not schema[name].is_text]
    seen = {name: ObservationMoments(schema[name]) for name in names}
    for block in blocks:
        for name, parts in columns.items():
            parts.append(block.data[name])
        for name, moments in seen.items():
            moments.add(block, name)
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
    and the observations follow. Figures of vectors and of pictures with channels are lists, see ``parted_axis``; those
    of shards that rlx 0.1.0 wrote are single numbers.
    """
    stats = merge_statistics(shard.statistics for shard in shards)
    episodes = EpisodeStatistics.of(shards)
    of_whole = {"return": episodes.returns.summary(), "length": episodes.lengths.summary()}
    of_all = {name: stats[key] for key, name in OF_ALL.items() if key in stats}
    return {**of_whole, **of_all, **{key: stats[key] for key in stats if key not in (*of_whole, *WHOLE)}}


def apart(name: str, figures: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the range, mean and deviation of a summary, with a name for each part that they are of.

    Example:
        >>> [part for part, _ in apart("observation", {key: [0.0, 1.0] for key in ("min", "max", "mean", "std")})]
        ['observation[0]', 'observation[1]']
    """
    keys = ("min", "max", "mean", "std")
    if not isinstance(figures["mean"], list):
        return [(name, {key: figures[key] for key in keys})]
    rows = zip(*(figures[key] for key in keys), strict=True)
    return [(f"{name}[{place}]", dict(zip(keys, row, strict=True))) for place, row in enumerate(rows)]


def _merge(described: list[Mapping[str, Any]]) -> dict[str, Any]:
    if all("counts" in one for one in described):
        counts: dict[str, int] = {}
        for one in described:
            for value, count in one["counts"].items():
                counts[value] = counts.get(value, 0) + count
        return {"counts": dict(sorted(counts.items(), key=lambda item: int(item[0])))}
    moments = [FieldMoments.from_json(one) for one in described if "counts" not in one]
    # Shards without numbers know no dimensions.
    return FieldMoments.merge([one for one in moments if any(part.count for part in one.parts)] or moments).summary()
