"""A directory of TED steps as ``TensorDict.memmap`` writes it: TorchRL's datasets, storages and what rlx writes so."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.schema import Schema
from rlx.source.episode_scan import (
    CUT,
    DONE,
    EPISODE,
    FROM_RESET,
    INIT,
    MASK,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    EpisodeScan,
    FoundEpisodes,
    Recording,
)
from rlx.source.episode_table import EpisodeTable
from rlx.source.expected_layout import expecting
from rlx.source.extra_fields import NOT_OF_STEPS, RowType, not_taken_note
from rlx.source.json_file import read_object
from rlx.source.memmap_leaves import METADATA, Leaf, described, file_of, opened
from rlx.source.one_file import id_of
from rlx.source.protocol import batch_rows
from rlx.source.provenance import told_beside
from rlx.source.row_episodes import shard_bounds, without_outcome
from rlx.source.row_runs import RowRuns, lanes
from rlx.source.ted_rows import TedFields, ted_fields
from rlx.source.time_dimension import time_dimension

PADDING = "padding"
# What ReplayBuffer.dumps writes: the storage in a directory of its own, and beside it what the buffer's parts know.
_BUFFER = "buffer_metadata.json"
_STORAGE = "storage"
_STORAGE_METADATA = "storage_metadata.json"
_WRITER = "writer/metadata.json"
_OF_BUFFER = frozenset({_BUFFER, _STORAGE, "writer", "prefetch.pkl"})
_SCANNED = (TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET, CUT, MASK)
_LAYOUT = (
    "expected what TensorDict.memmap writes: meta.json, observation.memmap, action.memmap, next/reward.memmap, "
    "next/terminated.memmap, next/truncated.memmap, as many rows in each as meta.json says"
)


@dataclass(frozen=True, slots=True)
class TorchRLMemmap:
    """One directory.

    Args:
        root: the directory with the memory maps.
        id: name of the dataset.
        kinds: dtype and shape of the rows of every memory map, by TED path.
        stored: rows of every memory map.
        runs: which of them are steps, in which order: episode by episode.
        fields: what they hold.
        notes: what rlx noted of the data when it wrote them, and what is not taken.
        episodes: those of all steps.
        first_episodes: first episode of every shard, and the number of episodes.
        padding: rows that are no steps, between others.
    """

    root: Path
    id: str
    kinds: Mapping[str, RowType]
    stored: int
    runs: RowRuns
    fields: TedFields
    notes: Mapping[str, Any]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]
    padding: int

    @property
    def schema(self) -> Schema:
        """What one step holds."""
        return self.fields.schema

    def shards(self) -> Sequence[int]:
        """Groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (every file has rows of every shard)
        """The files of all fields."""
        return [file_of(path, self.kinds[path]) for path in self._paths]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The steps of a shard.

        Raises:
            SourceNotFoundError: a file is missing.
            CorruptShardError: one has not the length that it should have, or has NaN in it.
        """
        if shard == 0 and self.padding:
            dropped[PADDING] += self.padding
        first, stop = self.first_episodes[shard : shard + 2]
        row = int(self.episodes.rows[:first].sum())
        kinds = {path: self.kinds[path] for path in self._paths}
        with expecting(_LAYOUT), opened(self.root, kinds, self.stored) as leaves:
            for episode in self.episodes[first:stop]:
                yield from episode.blocks(self.schema, _Columns(leaves, self.fields, self.runs, row), dropped)
                row += episode.rows

    @property
    def _paths(self) -> Sequence[str]:
        return (*self.fields.paths.values(), *self.fields.after.values())


class _Columns:
    """The rows of an episode that begins at a place in an order of rows."""

    def __init__(self, leaves: Mapping[str, Leaf], fields: TedFields, runs: RowRuns, first: int) -> None:
        self._leaves = leaves
        self._fields = fields
        self._runs = runs
        self._first = first

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        rows = self._read(name, self._fields.paths[name], start, stop)
        return rows.reshape(-1, *self._fields.schema[name].shape)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        return self._read(name, self._fields.after[name], row, row + 1)

    def _read(self, name: str, path: str, start: int, stop: int) -> NDArray[np.generic]:
        leaf = self._leaves[path]
        parts = []
        for first, count in self._runs.spans(self._first + start, self._first + stop):
            parts.append(leaf.read(first, count, self._runs.stride))
            self._fields.check(name, parts[-1], leaf.place, first)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def recognises(path: Path) -> bool:
    """Whether a directory is a TensorDict of steps, or a replay buffer that TorchRL dumped."""
    return (path / _BUFFER).is_file() or ((path / METADATA).is_file() and (path / "next/reward.memmap").is_file())


@expecting(_LAYOUT)
def open_torchrl(path: Path, *, time_dim: int | None = None) -> TorchRLMemmap:
    """The steps in a directory of memory maps, of one batch dimension or of several, or in a dumped replay buffer.

    Args:
        path: the directory.
        time_dim: which dimension of the batch is time; found out from the steps where not given.

    Raises:
        SourceNotFoundError: there is no such directory, or a file of it is missing.
        CorruptShardError: a leaf is missing, or is not what the metadata say.
        SourceError: it has no step; or nothing in it tells which dimension is time.
    """
    path = path.absolute()
    root = path / _STORAGE if (path / _BUFFER).is_file() else path
    _check_storage(path, root)
    batch, leaves = described(root)
    fields = ted_fields(leaves, str(root))
    kinds = {name: kind for name, kind in leaves.items() if kind is not None}
    stored = math.prod(batch)
    filled = _filled(root, batch)
    if not filled:
        raise SourceError(f"{path} has no step")
    recording, oldest = _recording(root, batch[0], filled)
    with opened(root, _used(fields, kinds), stored) as files:
        time = time_dimension(path, (filled, *batch[1:]), fields, files, time_dim)
        runs = lanes(batch, time, filled=filled, oldest=oldest)
        found = _episodes(files, fields, runs, (filled, *batch[1:])[time], recording)
    fields = fields.torn(found.torn)
    runs = runs if found.pieces is None else runs.picked(found.pieces)
    if not len(found.table):
        raise SourceError(f"{path} has no step")
    notes = {**told_beside(root), "format": "TorchRL's memmap", **without_outcome(found.table)}
    if len(batch) > 1:
        notes["time_dimension"] = time
    notes |= not_taken_note({**fields.not_taken, **_state_of_buffer(path, root)})
    bounds = shard_bounds(found.table.rows)
    kinds = {name: kinds[name] for name in (*fields.paths.values(), *fields.after.values())}
    return TorchRLMemmap(root, id_of(path), kinds, stored, runs, fields, notes, found.table, bounds, found.padding)


def _used(fields: TedFields, kinds: Mapping[str, RowType]) -> dict[str, RowType]:
    """The leaves of fields, and those that tell of episodes."""
    used = {path: kinds[path] for path in (*fields.paths.values(), *fields.after.values())}
    used |= {path: kinds[path] for path in _SCANNED if path in kinds}
    return used | ({INIT: kinds[INIT]} if fields.tells_resets else {})


def _episodes(
    leaves: Mapping[str, Leaf], fields: TedFields, runs: RowRuns, lane: int, recording: Recording
) -> FoundEpisodes:
    """The episodes of rows of lanes, each of so many."""
    told = (*_SCANNED, *([INIT] if fields.tells_resets else []))
    names = {name for name in told if name in leaves} | {*fields.after, *fields.after.values()}
    size, rows = batch_rows(fields.schema), runs.rows
    scan = EpisodeScan(fields.after, fields.decides)
    for start in range(0, rows, size):
        spans = list(runs.spans(start, min(start + size, rows)))
        batch = {
            name: np.concatenate([leaves[name].read(first, count, runs.stride) for first, count in spans])
            for name in names
        }
        numbers = np.arange(start, start + len(batch[next(iter(names))]))
        scan.add(batch, lane_starts=numbers % lane == 0)
    return scan.found(recording, stitch=True, cyclic=recording == Recording.WRAPPED)


def _check_storage(path: Path, root: Path) -> None:
    """Raises SourceError where a buffer's storage is no TensorDict of steps, and says what it is."""
    if (root / METADATA).is_file():
        return
    parts = sorted(part.name for part in root.iterdir() if part.name.isdecimal()) if root.is_dir() else []
    if parts:
        raise SourceError(
            f"{path} holds {len(parts)} storages, {', '.join(parts)}; expected one",
            hint=f"rlx convert {root / parts[0]} DST, and each of the others; rlx merge joins them",
        )
    if (root / _STORAGE_METADATA).is_file() and read_object(root / _STORAGE_METADATA).get("is_pytree"):
        raise SourceError(f"{path} holds a tree of tensors; expected a TensorDict of steps")


def _filled(root: Path, batch: Sequence[int]) -> int:
    """How many of the first dimension hold steps."""
    file = root / _STORAGE_METADATA
    if not file.exists():
        return batch[0]
    length, each = read_object(file).get("len"), math.prod(batch[1:])
    if type(length) is not int or not 0 <= length <= batch[0] * each:
        raise CorruptShardError(f"{file}: len: expected at most {batch[0] * each:,}, found {length!r:.80}")
    if each and length % each:
        raise CorruptShardError(f"{file}: len: expected a multiple of {each:,}, found {length:,}")
    return length // each if each else 0


def _recording(root: Path, capacity: int, filled: int) -> tuple[Recording, int]:
    """What is known of the steps before those that are stored, and which of the first dimension are the oldest."""
    if not (root / _STORAGE_METADATA).exists():
        return Recording.UNKNOWN, 0
    if filled < capacity:
        return Recording.COMPLETE, 0
    file = root.parent / _WRITER
    if not file.is_file():
        return Recording.WRAPPED, 0
    metadata = read_object(file)
    cursor, count = metadata.get("cursor"), metadata.get("write_count")
    if type(cursor) is not int or not 0 <= cursor <= capacity:
        raise CorruptShardError(f"{file}: cursor: expected at most {capacity:,}, found {cursor!r:.80}")
    is_complete = type(count) is int and count <= capacity and cursor % capacity == 0
    return (Recording.COMPLETE, 0) if is_complete else (Recording.WRAPPED, cursor % capacity)


def _state_of_buffer(path: Path, root: Path) -> dict[str, str]:
    """What a dumped buffer knows beside its steps: priorities, say."""
    if path == root:
        return {}
    return dict.fromkeys(sorted(entry.name for entry in path.iterdir() if entry.name not in _OF_BUFFER), NOT_OF_STEPS)
