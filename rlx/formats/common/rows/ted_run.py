"""Sources of steps in leaves by TED path, such as directories of TensorDicts: which rows, in which order."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import SourceError
from rlx.formats.common.fields import RowType, expecting, not_taken_note
from rlx.formats.common.rows.episodes import PADDING, EpisodeTable, ending_notes, shard_bounds
from rlx.formats.common.rows.scan import EpisodeScan, FoundEpisodes, Recording, RowRuns
from rlx.formats.common.rows.ted_fields import TedFields
from rlx.formats.common.skipping import whole
from rlx.formats.common.source import EpisodeGroups, batch_rows, id_of
from rlx.schema import Schema

# Names of the types that torch and numpy both have.
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64))
NUMBERS = ("bool", *_INTEGERS, "float16", "float32", "float64")


def lanes(shape: Sequence[int], time: int, *, filled: int, oldest: int = 0) -> RowRuns:
    """Return rows of a batch lane by lane, each lane in the order of time.

    Args:
        shape: of the batch, whose rows are in C order.
        time: index of the dimension of time.
        filled: entries of the first dimension that have steps.
        oldest: index of the oldest of these; a ring wraps there.

    Example:
        >>> runs = lanes((4, 2), 0, filled=4, oldest=3)
        >>> [row for first, count in runs.spans(0, 8) for row in range(first, first + 2 * count, 2)]
        [6, 0, 2, 4, 7, 1, 3, 5]
    """
    stride = math.prod(shape[time + 1 :])
    turned = np.roll(np.arange(filled), -oldest)
    first = np.zeros(1, np.int64)
    for axis, size in enumerate(shape):
        if axis != time:
            indices = np.arange(size) if axis else turned
            first = (first[:, None] + indices * math.prod(shape[axis + 1 :])).reshape(-1)
    if time:
        return RowRuns(first, np.full(len(first), shape[time]), stride)
    parts = np.array([[oldest * stride, filled - oldest], [0, oldest]])
    parts = parts[parts[:, 1] > 0]
    starts = (first[:, None] + parts[:, 0]).reshape(-1)
    return RowRuns(starts, np.tile(parts[:, 1], len(first)), stride)


class LeafRows(Protocol):
    """The rows of one leaf."""

    place: str

    def read(self, first: int, count: int, stride: int = 1) -> NDArray[Any]:
        """Return rows [count, ...], each ``stride`` rows after the one before."""


class Leaves(Protocol):
    """Location of leaves. It can be pickled to another process."""

    def files(self, kinds: Mapping[str, RowType]) -> Sequence[str]:
        """Return the names, below the source's root, of the files of leaves of these dtypes and shapes."""

    def opened(self, kinds: Mapping[str, RowType]) -> AbstractContextManager[Mapping[str, LeafRows]]:
        """Return the leaves, open; raises SourceNotFoundError or CorruptShardError."""


@dataclass(frozen=True, slots=True)
class TedPlace:
    """Location of a run of steps.

    Args:
        root: the directory to which the names of files are relative.
        kinds: dtype and shape of the rows of every leaf, by TED path.
    """

    path: Path
    root: Path
    leaves: Leaves
    kinds: Mapping[str, RowType]
    layout: str


@dataclass(frozen=True, slots=True)
class TedRun(EpisodeGroups):
    """One directory.

    Args:
        runs: the rows that are steps, episode by episode.
        padding: masked rows, which are left out.
    """

    root: Path
    id: str
    leaves: Leaves
    kinds: Mapping[str, RowType]
    runs: RowRuns
    fields: TedFields
    notes: Mapping[str, Any]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]
    padding: int
    layout: str

    @property
    def schema(self) -> Schema:
        """Schema of a step."""
        return self.fields.schema

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (every file has rows of every shard)
        """Return the files of all fields."""
        return self.leaves.files(self.kinds)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard."""
        if shard == 0 and self.padding:
            dropped[PADDING] += self.padding
        first, stop = self.first_episodes[shard : shard + 2]
        row = int(self.episodes.rows[:first].sum())
        with expecting(self.layout), self.leaves.opened(self.kinds) as leaves:
            for episode in self.episodes[first:stop]:
                columns = _Columns(leaves, self.fields, self.runs, row)
                yield from whole(episode.name, episode.blocks(self.schema, columns, dropped), dropped)
                row += episode.rows


@dataclass(frozen=True, slots=True)
class _Columns:
    """The rows of an episode that begins at an index of ``runs``."""

    leaves: Mapping[str, LeafRows]
    fields: TedFields
    runs: RowRuns
    first: int

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        rows = self._read(name, self.fields.paths[name], start, stop)
        return rows.reshape(stop - start, *self.fields.schema[name].shape)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        return self._read(name, self.fields.after[name], row, row + 1)

    def _read(self, name: str, path: str, start: int, stop: int) -> NDArray[np.generic]:
        leaf = self.leaves[path]
        parts = []
        for first, count in self.runs.spans(self.first + start, self.first + stop):
            parts.append(leaf.read(first, count, self.runs.stride))
            self.fields.check(name, parts[-1], leaf.place, first)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def scanned(fields: TedFields, kinds: Mapping[str, RowType]) -> dict[str, RowType]:
    """Return the leaves that ``make_run`` needs: those of fields, and those that mark episodes."""
    needed = {path: kinds[path] for path in (*fields.paths.values(), *fields.after.values())}
    return needed | {path: kinds[path] for path in fields.scanned if path in kinds}


def make_run(
    place: TedPlace,
    fields: TedFields,
    files: Mapping[str, LeafRows],
    runs: RowRuns,
    *,
    lane: int,
    recording: Recording,
    notes: Mapping[str, Any],
    not_taken: Mapping[str, str] | None = None,
) -> TedRun:
    """Return the run that leaves hold.

    Args:
        files: the leaves that ``scanned`` names, open.
        runs: the rows that are steps, lane by lane.
        lane: rows per lane.
        recording: the state of the steps before the first row of each lane.

    Raises:
        SourceError: no row is a step.
    """
    found = _scan(str(place.path), files, fields, runs, lane, recording)
    if not len(found.table):
        raise SourceError(f"{place.path} has no step")
    fields = fields.torn(found.torn)
    return TedRun(
        place.root,
        id_of(place.path),
        place.leaves,
        {path: place.kinds[path] for path in (*fields.paths.values(), *fields.after.values())},
        runs if found.runs is None else runs.picked(found.runs),
        fields,
        {**notes, **ending_notes(found.table), **not_taken_note({**fields.not_taken, **(not_taken or {})})},
        found.table,
        shard_bounds(found.table.rows),
        found.padding,
        place.layout,
    )


def _scan(
    place: str, leaves: Mapping[str, LeafRows], fields: TedFields, runs: RowRuns, lane: int, recording: Recording
) -> FoundEpisodes:
    names = {name for name in fields.scanned if name in leaves} | {*fields.after, *fields.after.values()}
    size, rows = batch_rows(fields.schema), runs.rows
    scan = EpisodeScan(place, fields.after, fields.decides)
    for start in range(0, rows, size):
        spans = list(runs.spans(start, min(start + size, rows)))
        batch = {
            name: np.concatenate([leaves[name].read(first, count, runs.stride) for first, count in spans])
            for name in names
        }
        numbers = np.arange(start, start + len(batch[next(iter(names))]))
        scan.add(batch, lane_starts=numbers % lane == 0)
    return scan.found(recording, cyclic=recording == Recording.WRAPPED)
