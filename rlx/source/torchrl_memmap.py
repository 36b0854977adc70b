"""A directory of TED steps as ``TensorDict.memmap`` writes it: TorchRL's datasets, storages and what rlx writes so."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.schema import Schema
from rlx.source.episode_table import EpisodeTable
from rlx.source.expected_layout import expecting
from rlx.source.extra_fields import RowType, not_taken_note
from rlx.source.finite import check_field
from rlx.source.json_file import read_object
from rlx.source.one_file import id_of
from rlx.source.protocol import batch_rows
from rlx.source.provenance import told_beside
from rlx.source.row_episodes import shard_bounds, without_outcome
from rlx.source.ted_rows import (
    DONE,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    TedFields,
    scan_following,
    ted_fields,
)

_METADATA = "meta.json"
# Says how many of its rows a storage of TorchRL has filled.
_STORAGE = "storage_metadata.json"
_MAX_DEPTH = 16
_MAX_SIZE = 2**48
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBERS = """
bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64
"""
_DTYPES = {f"torch.{name}": name for name in _NUMBERS.split()}
_LAYOUT = (
    "expected what TensorDict.memmap writes: meta.json, observation.memmap, action.memmap, next/reward.memmap, "
    "next/terminated.memmap, next/truncated.memmap, as many rows in each as meta.json says"
)


@dataclass(frozen=True, slots=True)
class TorchRLMemmap:
    """One directory.

    Args:
        root: the directory.
        kinds: dtype and shape of the rows of every memory map, by TED path.
        rows: of every memory map; those that belong to no episode hold nothing.
        fields: what they hold.
        notes: what rlx noted of the data when it wrote them, and what was left out.
        episodes: those of all rows.
        first_episodes: first episode of every shard, and the number of episodes.
    """

    root: Path
    kinds: Mapping[str, RowType]
    rows: int
    fields: TedFields
    notes: Mapping[str, Any]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]

    @property
    def id(self) -> str:
        """Name of the directory."""
        return id_of(self.root)

    @property
    def schema(self) -> Schema:
        """What one step holds."""
        return self.fields.schema

    def shards(self) -> Sequence[int]:
        """Groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (every file has rows of every shard)
        """The memory maps of all fields."""
        return [f"{path}.memmap" for path in (*self.fields.paths.values(), *self.fields.after.values())]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The steps of a shard.

        Raises:
            SourceNotFoundError: a file is missing.
            CorruptShardError: one has not the length that it should have, or has NaN in it.
        """
        first, stop = self.first_episodes[shard : shard + 2]
        row = int(self.episodes.rows[:first].sum())
        paths = (*self.fields.paths.values(), *self.fields.after.values())
        with expecting(_LAYOUT), _opened(self.root, {path: self.kinds[path] for path in paths}, self.rows) as leaves:
            for episode in self.episodes[first:stop]:
                yield from episode.blocks(self.schema, _Columns(leaves, self.fields, row), dropped)
                row += episode.rows


class _Columns:
    """The rows of an episode that begins at a row of the memory maps."""

    def __init__(self, leaves: "Mapping[str, _Leaf]", fields: TedFields, first: int) -> None:
        self._leaves = leaves
        self._fields = fields
        self._first = first

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        return self._read(name, self._fields.paths[name], start, stop).reshape(-1, *self._fields.schema[name].shape)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        return self._read(name, self._fields.after[name], row, row + 1)

    def _read(self, name: str, path: str, start: int, stop: int) -> NDArray[np.generic]:
        leaf = self._leaves[path]
        rows = leaf.read(self._first + start, self._first + stop)
        check_field(name, self._fields.schema[name], rows, leaf.place, self._first + start)
        return rows


class _Leaf:
    """The rows of one leaf.

    They are read, not mapped: the pages of a map would stay with this process until all of the file is there.

    Args:
        place: where it lies, for messages.
        file: of the size that its rows have; buffered.
        kind: dtype and shape of a row.
    """

    def __init__(self, place: str, file: BufferedReader, kind: RowType) -> None:
        self.place = place
        self._file = file
        self._dtype, self._shape = kind
        self._row_bytes = _row_bytes(kind)

    def read(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [stop - start, ...]."""
        rows = np.empty((stop - start, *self._shape), self._dtype)
        self._file.seek(start * self._row_bytes)
        if (found := self._file.readinto(rows.reshape(-1).view(np.uint8).data)) != rows.nbytes:
            raise CorruptShardError(f"{self.place}: expected {rows.nbytes:,} bytes from row {start:,}, found {found:,}")
        return rows


def recognises(path: Path) -> bool:
    """Whether a directory is a TensorDict of steps."""
    return (path / _METADATA).is_file() and (path / "next/reward.memmap").is_file()


@expecting(_LAYOUT)
def open_torchrl(path: Path) -> TorchRLMemmap:
    """The steps in a directory of memory maps, of one batch dimension or of several.

    Raises:
        SourceNotFoundError: there is no such directory, or a file of it is missing.
        CorruptShardError: a leaf is missing, or is not what the metadata say.
        SourceError: it has no step.
    """
    path = path.absolute()
    batch, leaves = _described(path)
    fields = ted_fields(leaves, str(path))
    used = [*fields.paths.values(), *fields.after.values()]
    used += [name for name in (TERMINATED, TRUNCATED, DONE, TRAJECTORY) if leaves.get(name)]
    kinds = {name: kind for name in used if (kind := leaves[name]) is not None}
    stored = _filled(path, math.prod(batch))
    if not stored:
        raise SourceError(f"{path} has no step")
    with _opened(path, kinds, math.prod(batch)) as opened:
        episodes = _episodes(opened, fields, stored, batch[-1] if len(batch) > 1 else None)
    notes = {**told_beside(path), "format": "TorchRL's memmap", **without_outcome(episodes)}
    notes |= not_taken_note(fields.not_taken)
    bounds = shard_bounds(episodes.rows)
    return TorchRLMemmap(path, kinds, math.prod(batch), fields, notes, episodes, bounds)


def _episodes(leaves: Mapping[str, _Leaf], fields: TedFields, rows: int, lane: int | None) -> EpisodeTable:
    """The episodes of the first rows."""
    names = (TERMINATED, TRUNCATED, DONE, TRAJECTORY, *fields.after, *fields.after.values())
    scanned = {name: leaves[name] for name in names if name in leaves}
    size = batch_rows(fields.schema)

    def batches() -> Iterator[Mapping[str, NDArray[Any]]]:
        for start in range(0, rows, size):
            yield {name: leaf.read(start, min(start + size, rows)) for name, leaf in scanned.items()}

    def recorded(batch: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        return np.full(len(next(iter(batch.values()))), bool(fields.after))

    return scan_following(batches(), fields.after, recorded, lane=lane)


def _described(root: Path) -> tuple[tuple[int, ...], dict[str, RowType | None]]:
    """Shape of the batch, and dtype and shape of the rows of every leaf; none where they are no numbers."""
    batch = _shape(read_object(root / _METADATA).get("shape"), root / _METADATA)
    if not batch:
        raise CorruptShardError(f"{root / _METADATA}: shape: expected a batch of steps, found {list(batch)}")
    return batch, dict(_leaves(root, "", batch, 0))


def _leaves(directory: Path, prefix: str, batch: tuple[int, ...], depth: int) -> Iterator[tuple[str, RowType | None]]:
    if depth > _MAX_DEPTH:
        raise CorruptShardError(f"{directory}: expected directories at most {_MAX_DEPTH} deep")
    for name, described in read_object(directory / _METADATA).items():
        if not isinstance(described, dict):
            continue
        path = prefix + name
        if not _NAME.fullmatch(name):
            # Whatever file it would be read from: a name may lead out of the directory.
            yield path, None
        elif "type" in described:
            if (directory / name / _METADATA).is_file():
                yield from _leaves(directory / name, f"{path}/", batch, depth + 1)
            else:
                yield path, None
        else:
            yield path, _kind(described, batch, f"{directory / _METADATA}: {name}")


def _kind(described: Mapping[str, Any], batch: tuple[int, ...], place: str) -> RowType | None:
    dtype = _DTYPES.get(str(described.get("dtype")))
    if dtype is None or described.get("is_nested"):
        return None
    shape = _shape(described.get("shape"), place)
    if shape[: len(batch)] != batch:
        raise CorruptShardError(f"{place}: shape: expected {list(batch)} and what a step has, found {list(shape)}")
    return dtype, shape[len(batch) :]


def _shape(found: Any, place: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(size) is int and 0 <= size < _MAX_SIZE for size in found):
        raise CorruptShardError(f"{place}: shape: expected a list of numbers, found {found!r:.80}")
    return tuple(found)


def _filled(root: Path, rows: int) -> int:
    """How many of the rows hold steps."""
    if not (root / _STORAGE).exists():
        return rows
    length = read_object(root / _STORAGE).get("len")
    if type(length) is not int or not 0 <= length <= rows:
        raise CorruptShardError(f"{root / _STORAGE}: len: expected at most {rows:,}, found {length!r:.80}")
    return length


@contextmanager
def _opened(root: Path, kinds: Mapping[str, RowType], rows: int) -> Iterator[Mapping[str, _Leaf]]:
    """The leaves of these dtypes and shapes, open."""
    with ExitStack() as stack:
        leaves = {}
        for path, kind in kinds.items():
            file = stack.enter_context(_checked(root, path, kind, rows).open("rb"))
            leaves[path] = _Leaf(f"{root}: {path}", file, kind)
        yield leaves


def _checked(root: Path, path: str, kind: RowType, rows: int) -> Path:
    """The file of a leaf, which is there and has so many rows."""
    dtype, shape = kind
    file = root / f"{path}.memmap"
    if not file.is_file():
        raise SourceNotFoundError(f"{file} is missing")
    if not file.resolve().is_relative_to(root.resolve()):
        raise CorruptShardError(f"{file}: leads out of {root}")
    expected, found = rows * _row_bytes(kind), file.stat().st_size
    if found != expected:
        raise CorruptShardError(f"{file}: expected {expected:,} bytes for {dtype}{[rows, *shape]}, found {found:,}")
    return file


def _row_bytes(kind: RowType) -> int:
    dtype, shape = kind
    return math.prod(shape) * np.dtype(dtype).itemsize
