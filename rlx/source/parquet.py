"""A Parquet file of steps: a row a step, columns by TED path."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.schema import Schema
from rlx.source.hdf5_file import id_of
from rlx.source.protocol import block_steps
from rlx.source.provenance import KEY, told_notes
from rlx.source.row_episodes import RowEpisode, shard_bounds
from rlx.source.row_stream import Batch, RowStream
from rlx.source.ted_rows import (
    DONE,
    EPISODE,
    FROM_RESET,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    EpisodeScan,
    RowType,
    TedFields,
    scan_following,
    ted_fields,
)
from rlx.store.arrow import pyarrow, row_type, to_rows

_MAGIC = b"PAR1"
_SCANNED = (TERMINATED, TRUNCATED, DONE, TRAJECTORY, EPISODE, FROM_RESET)
_SCANNED_ROWS = 2**12
_BUFFER_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Parquet:
    """One file.

    Args:
        root: its directory.
        file_name: its name there.
        fields: what its columns hold.
        notes: what rlx noted of the data when it wrote the file, and what was left out.
        episodes: those of all rows.
        first_episodes: first episode of every shard, and the number of episodes.
    """

    root: Path
    file_name: str
    fields: TedFields
    notes: Mapping[str, Any]
    episodes: tuple[RowEpisode, ...]
    first_episodes: tuple[int, ...]

    @property
    def id(self) -> str:
        """Name of the file."""
        return id_of(self.root / self.file_name)

    @property
    def schema(self) -> Schema:
        """What one step holds."""
        return self.fields.schema

    def shards(self) -> Sequence[int]:
        """Groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (all shards lie in one file)
        """The one file."""
        return [self.file_name]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The steps of a shard.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: it is damaged, or has NaN or nulls in it.
        """
        first, stop = self.first_episodes[shard : shard + 2]
        row = sum(episode.rows for episode in self.episodes[:first])
        paths = [*self.fields.paths.values(), *self.fields.after.values()]
        with _opened(self.root / self.file_name) as file:
            batches = file.batches(paths, row, block_steps(self.schema))
            stream = RowStream(file.path, batches, file.group_start(row))
            for episode in self.episodes[first:stop]:
                yield from episode.blocks(self.schema, _Columns(stream, self.fields, row), dropped)
                row += episode.rows


class _Columns:
    """The rows of an episode that begins at a row of the stream."""

    def __init__(self, stream: RowStream, fields: TedFields, first: int) -> None:
        self._stream = stream
        self._fields = fields
        self._first = first

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        rows = self._stream.rows(self._fields.paths[name], self._first + start, self._first + stop)
        return rows.reshape(len(rows), *self._fields.schema[name].shape)

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        return self._stream.peek(self._fields.after[name], self._first + row, self._first + row + 1)


def recognises(path: Path) -> bool:
    """Whether a file is Parquet of steps; it is not where pyarrow is not installed."""
    if not path.is_file() or path.stat().st_size < len(_MAGIC):
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def open_parquet(path: Path) -> Parquet:
    """The dataset in a Parquet file.

    Raises:
        SourceNotFoundError: there is no such file.
        CorruptShardError: a column is missing, or the file is damaged.
        SourceError: it has no step.
        MissingExtraError: pyarrow is not installed.
    """
    with _opened(path) as file:
        kinds = file.kinds()
        fields = ted_fields(kinds, str(path))
        notes = {**file.told(), "format": "Parquet"}
        episodes = _episodes(file, fields, [name for name in _SCANNED if kinds.get(name)])
    if fields.left_out:
        notes["left_out"] = list(fields.left_out)
    return Parquet(path.parent, path.name, fields, notes, tuple(episodes), shard_bounds(one.rows for one in episodes))


def _episodes(file: "_File", fields: TedFields, flags: Sequence[str]) -> list[RowEpisode]:
    after = list(fields.after.values())
    scan, known = EpisodeScan(), 0
    for batch in file.batches([*flags, *after], 0, _SCANNED_ROWS):
        recorded = _recorded(batch, after)
        known += int(recorded.sum())
        scan.add(batch, recorded)
    if known <= len(scan.episodes()):
        return scan.episodes()
    rows = file.batches([*flags, *after, *fields.after], 0, block_steps(fields.schema))
    return scan_following(rows, fields.after, lambda batch: _recorded(batch, after))


def _recorded(batch: Batch, after: Sequence[str]) -> NDArray[np.bool_]:
    """[n] whether all of what was seen after each row is in the row."""
    count = len(next(iter(batch.values())))
    valid = [batch[_validity(path)] for path in after]
    return np.logical_and.reduce(valid) if valid else np.zeros(count, bool)


class _File:
    """An open file; every failure of the library names it."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self._file = file
        metadata = file.metadata
        self._groups = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(file.num_row_groups))])

    def group_start(self, row: int) -> int:
        """First row of the row group that a row lies in."""
        return int(self._groups[self._group(row)])

    def kinds(self) -> dict[str, RowType | None]:
        """Dtype and shape of the rows of every column; none where they are no numbers."""
        with _translated(self.path):
            first = next(self._file.iter_batches(batch_size=1), None)
        if first is None or not len(first):
            raise SourceError(f"{self.path} has no step")
        columns = dict(zip(first.schema.names, first.columns, strict=True))
        return {
            name: row_type(columns.get(name.removeprefix("next/"), column) if column.null_count else column)
            for name, column in columns.items()
        }

    def batches(self, paths: Sequence[str], row: int, size: int) -> Generator[Batch, None, None]:
        """Columns of at most ``size`` rows each, from the start of the row group on that a row lies in.

        Of columns that may be null where nothing was recorded, which rows have something, and zeros elsewhere.
        """
        kinds = self.kinds()
        groups = range(self._group(row), self._file.num_row_groups)
        with _translated(self.path):
            for batch in self._file.iter_batches(
                batch_size=size, row_groups=groups, columns=list(dict.fromkeys(paths))
            ):
                yield {
                    key: rows
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                    for key, rows in self._rows(name, column, kinds[name], name.removeprefix("next/") in kinds).items()
                }

    def told(self) -> Mapping[str, Any]:
        """What rlx noted of the data."""
        return told_notes((self._file.schema_arrow.metadata or {}).get(KEY.encode()))

    def _rows(self, name: str, column: Any, kind: RowType | None, has_root: bool) -> Batch:
        dtype, shape = kind or ("", ())
        is_after = has_root and name.startswith("next/")
        try:
            rows = to_rows(column.drop_null() if is_after else column, shape)
        except ValueError as exc:
            raise CorruptShardError(f"{self.path}: {name}: {exc}") from exc
        if rows.dtype != dtype:
            raise CorruptShardError(f"{self.path}: {name}: expected {dtype}, found {rows.dtype}")
        if not is_after:
            return {name: rows}
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if not valid.all():
            spread = np.zeros((len(column), *shape), dtype)
            spread[valid] = rows
            rows = spread
        return {name: rows, _validity(name): valid}

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self._groups, row, side="right")) - 1


def _validity(path: str) -> str:
    return f"{path} is there"


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    """The open file.

    Raises:
        SourceNotFoundError: there is none.
        CorruptShardError: it is no Parquet, or shorter than it was written.
    """
    if not path.is_file():
        raise SourceNotFoundError(f"{path} is missing")
    _, parquet = pyarrow()
    with _translated(path):
        file = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES)
    try:
        yield _File(path, file)
    finally:
        file.close()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Makes what pyarrow raises where a file is damaged an error that names it."""
    arrow, _ = pyarrow()
    try:
        yield
    except (arrow.ArrowException, OSError, ValueError, LookupError) as exc:
        raise CorruptShardError(f"{path} is damaged: {str(exc).splitlines()[0][:200]}") from exc
