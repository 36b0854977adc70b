"""Sources of tables with one row per step and columns by TED path; rows of Arrow's columns."""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.fields import RowType, expecting, not_taken_note
from rlx.formats.common.pictures import (
    decode_picture,
    lossy_encoding,
    lossy_notes,
    picture_shape,
)
from rlx.formats.common.rows.episodes import PADDING, Batch, EpisodeTable, RowStream, ending_notes, shard_bounds
from rlx.formats.common.rows.scan import EpisodeScan, FoundEpisodes, RowRuns
from rlx.formats.common.rows.ted_fields import SCANNED, StreamColumns, TedFields, scanned_columns, ted_fields
from rlx.formats.common.skipping import whole
from rlx.formats.common.source import EpisodeGroups, MalformedError, batch_rows, block_steps, id_of
from rlx.schema import TEXT, Field, Role, Schema, is_action, is_observation
from rlx.store.foreign_types import pyarrow, row_type, to_rows
from rlx.wording import missing as is_missing

_SCANNED_ROWS = 4096


class Table(Protocol):
    """An open table of rows.

    Attributes:
        kinds: dtype and shape of the rows of every column, by TED path; None if they are neither numbers nor text.
        lossy: encoding of a column's pictures, by TED path; None if it is lossless.
    """

    kinds: Mapping[str, RowType | None]
    lossy: dict[str, str | None]

    @property
    def unfit(self) -> Mapping[str, str]:
        """Reason by TED path for every column whose rows are null or differ in shape."""

    def group_start(self, row: int) -> int:
        """Return the first row of the group that must be read for a row."""

    def batches(self, paths: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:
        """Yield rows of columns, at most ``size`` each, from ``group_start(row)`` on.

        A column that may be null has zeros there, and the key ``validity(path)`` [n] says which rows have a value.
        """


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table is read from. It can be pickled to another process.

    Args:
        root: directory of the files in ``names``.
    """

    path: Path
    root: Path
    names: tuple[str, ...]
    opened: Callable[[], AbstractContextManager[Table]]
    layout: str


@dataclass(frozen=True, slots=True)
class TableRun(EpisodeGroups):
    """One table.

    Args:
        runs: its rows, episode by episode; None if that is their order.
        padding: masked rows, which are left out.
    """

    place: TablePlace
    fields: TedFields
    notes: Mapping[str, Any]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]
    runs: RowRuns | None = None
    padding: int = 0

    @property
    def root(self) -> Path:
        """The directory to which the names of its files are relative."""
        return self.place.root

    @property
    def id(self) -> str:
        """Name of the file or directory."""
        return id_of(self.place.path)

    @property
    def schema(self) -> Schema:
        """Schema of a step."""
        return self.fields.schema

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (any file may have rows of any shard)
        """Return all files."""
        return self.place.names

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard."""
        if shard == 0 and self.padding:
            dropped[PADDING] += self.padding
        first, stop = self.first_episodes[shard : shard + 2]
        row = int(self.episodes.rows[:first].sum())
        paths = [*self.fields.paths.values(), *self.fields.after.values()]
        with expecting(self.place.layout), self.place.opened() as table:
            stream: RowStream | None = None
            for episode in self.episodes[first:stop]:
                if stream is None:
                    stream = row_stream(self.place.path, table, paths, self.schema, self.runs, row)
                columns = StreamColumns(stream, self.fields, row)
                if not (yield from whole(episode.name, episode.blocks(self.schema, columns, dropped), dropped)):
                    stream = None  # it may have ended there
                row += episode.rows


class Rows(Protocol):
    """Rows of columns that are read in order."""

    def group_start(self, row: int) -> int:
        """Return the first row of the group that must be read for a row."""

    def batches(self, paths: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:
        """Yield rows of columns, at most ``size`` each, from ``group_start(row)`` on."""


def row_stream(
    path: Path, table: Rows, paths: Sequence[str], schema: Schema, runs: RowRuns | None, row: int = 0
) -> RowStream:
    """Return the stream of a table's columns from a row on, in the order of ``runs``; None is that of the table.

    Rows in another order are gathered block by block, each from the groups that have its first to its last row.
    """
    if runs is None:
        return RowStream(path, table.batches(paths, batch_rows(schema), row), table.group_start(row))
    return RowStream(path, _gathered(path, table, paths, schema, runs, row), row)


def _gathered(
    path: Path, table: Rows, paths: Sequence[str], schema: Schema, runs: RowRuns, row: int
) -> Generator[Batch, None, None]:
    size = block_steps(schema)
    for start in range(row, runs.rows, size):
        spans = runs.spans(start, min(start + size, runs.rows))
        rows = np.concatenate([np.arange(first, first + count) for first, count in spans])
        order = np.argsort(rows)
        wanted, parts = rows[order], defaultdict[str, list[NDArray[Any]]](list)
        at = table.group_start(int(wanted[0]))
        with closing(table.batches(paths, batch_rows(schema), int(wanted[0]))) as batches:
            for batch in batches:
                count = len(next(iter(batch.values())))
                here = wanted[slice(*np.searchsorted(wanted, [at, at + count]))] - at
                for name, column in batch.items():
                    parts[name].append(column[here])
                at += count
                if at > wanted[-1]:
                    break
        if at <= wanted[-1]:
            raise CorruptShardError(f"{path}: expected {wanted[-1] + 1:,} rows, found {at:,}")
        place = np.argsort(order)
        yield {name: np.concatenate(part)[place] for name, part in parts.items()}


def open_table(place: TablePlace, notes: Mapping[str, Any]) -> TableRun:
    """Return the run of a table; raises SourceError if it has no step."""
    with expecting(place.layout), place.opened() as table:
        unfit = table.unfit
        kinds = {name: kind for name, kind in table.kinds.items() if name not in unfit}
        fields = ted_fields(kinds, str(place.path))
        found = _episodes(str(place.path), table, fields)
        if not len(found.table):
            raise SourceError(f"{place.path} has no step")
        fields = fields.torn(found.torn)
        lossy = lossy_notes({name: table.lossy.get(path) for name, path in fields.paths.items()})
    not_taken = not_taken_note({**fields.not_taken, **unfit})
    notes = {**notes, **ending_notes(found.table), **found.notes, **not_taken, **lossy}
    return TableRun(place, fields, notes, found.table, shard_bounds(found.table.rows), found.runs, found.padding)


def _episodes(place: str, table: Table, fields: TedFields) -> FoundEpisodes:
    names, locator = scanned_columns(fields, table.kinds)
    after = list(fields.after.values())
    size, scan, known = batch_rows(fields.schema), EpisodeScan(place, locator=locator), 0
    for batch in table.batches([*names, *after], size):
        recorded = _recorded(batch, after)
        known += int(recorded.sum())
        scan.add(batch, recorded)
    if known <= len((found := scan.found()).table):
        return found
    scan = EpisodeScan(place, fields.after, fields.decides, locator)
    for batch in table.batches([*names, *after, *fields.after], size):
        scan.add(batch, _recorded(batch, after))
    return scan.found()


def _recorded(batch: Batch, after: Sequence[str]) -> NDArray[np.bool_]:
    count = len(next(iter(batch.values())))
    valid = [batch.get(validity(path), np.ones(count, bool)) for path in after]
    return np.logical_and.reduce(valid) if valid else np.zeros(count, bool)


def validity(path: str) -> str:
    """Return the key of a batch that says which rows of a column have a value."""
    return f"{path} is there"


def is_needed(path: str) -> bool:
    """Return whether a column must have a value in every row: observations, actions, rewards and flags."""
    name = path.removeprefix("next/")
    return path in SCANNED or name == "reward" or is_observation(name) or is_action(name)


class ArrowFile(Protocol):
    """A file of Arrow's columns."""

    path: Path
    names: Sequence[str]

    def group_start(self, row: int) -> int:
        """Return the first row of the group that must be read for a row."""

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` rows each, from ``group_start(row)`` on."""


class ArrowTable:
    """The table of a file of Arrow's columns.

    Args:
        columns: TED path by the column's name, if they differ.
        left: reason for other data beside these columns, which are not read.
    """

    def __init__(
        self,
        file: ArrowFile,
        columns: Mapping[str, str] = MappingProxyType({}),
        left: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._file = file
        paths = Counter(columns.get(name, name) for name in file.names)
        several = {path for path, count in paths.items() if count > 1}
        if needed := sorted(path for path in several if is_needed(path)):
            raise CorruptShardError(f"{file.path}: {needed[0]}: expected one column, found {paths[needed[0]]}")
        self._left = {**left, **dict.fromkeys(several, "several columns have this name")}
        self._names = {path: name for name in file.names if (path := columns.get(name, name)) not in several}
        if missing := [name for name in columns if name not in file.names]:
            raise CorruptShardError(is_missing(f"{file.path}: {missing[0]}", file.names))
        self.lossy: dict[str, str | None] = {}
        self.kinds: Mapping[str, RowType | None] = self._kinds()

    def group_start(self, row: int) -> int:
        """Return the first row of the group that must be read for a row."""
        return self._file.group_start(row)

    def batches(self, paths: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:
        """Yield rows of columns; see ``Table``."""
        wanted = list(dict.fromkeys(paths))
        for batch in self._file.batches([self._names[path] for path in wanted], size, row):
            yield {key: rows for path in wanted for key, rows in self._rows(path, batch[self._names[path]]).items()}

    def _kinds(self) -> dict[str, RowType | None]:
        first = next(self._file.batches([*self._names.values()], 1), None)
        if first is None:
            raise SourceError(f"{self._file.path} has no step")
        columns = {path: first[name] for path, name in self._names.items()}
        kinds: dict[str, RowType | None] = {}
        for path, column in columns.items():
            shown = columns.get(path.removeprefix("next/"), column) if column.null_count else column
            kinds[path], self.lossy[path] = column_kind(shown, f"{self._file.path}: {self._names[path]}")
        return kinds

    @property
    def unfit(self) -> Mapping[str, str]:
        """Reason by TED path for every extra column whose rows are null or differ in shape; reads them in full.

        For observations, actions, rewards and flags, that is an error on reading.
        """
        kinds = self.kinds
        extra = {
            path: kind
            for path, kind in kinds.items()
            if kind is not None and not is_needed(path) and path.removeprefix("next/") not in kinds.keys() - {path}
        }
        found: dict[str, str] = {}
        for batch in self._file.batches([self._names[path] for path in extra], _SCANNED_ROWS) if extra else ():
            for path, (_, shape) in extra.items():
                column = batch[self._names[path]]
                if path not in found and (shape or column.null_count) and not is_picture_column(column):
                    try:
                        to_rows(column, shape)
                    except ValueError as exc:
                        found[path] = str(exc)
        after = {f"next/{path}": reason for path, reason in found.items() if f"next/{path}" in kinds}
        return {**found, **after, **self._left}

    def _rows(self, path: str, column: Any) -> Batch:
        dtype, shape = self.kinds.get(path) or ("", ())
        is_after = path.startswith("next/") and path.removeprefix("next/") in self.kinds
        rows = column_rows(
            column.drop_null() if is_after else column,
            (dtype, shape),
            f"{self._file.path}: {self._names[path]}",
            is_picture=is_picture_column(column),
        )
        if not is_after:
            return {path: rows}
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if not valid.all():
            spread = Field(dtype, shape, Role.OBSERVATION).zeros(len(column))
            spread[valid] = rows
            rows = spread
        return {path: rows, validity(path): valid}


def column_kind(column: Any, place: str) -> tuple[RowType | None, str | None]:
    """Return dtype and shape of an Arrow array's rows, and the encoding of its pictures if lossy, by the first row."""
    if not is_picture_column(column):
        return row_type(column) if len(column) else None, None
    content = picture_file(column[0]) if len(column) else None
    if content is None:
        return None, None
    try:
        return ("uint8", picture_shape(content)), lossy_encoding(content)
    except MalformedError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc


def column_rows(column: Any, kind: RowType, place: str, *, is_picture: bool) -> NDArray[Any]:
    """Return an Arrow array as rows [n, ...] of a dtype and shape; raises CorruptShardError for others."""
    column, (dtype, shape) = getattr(column, "storage", column), kind  # ``datasets`` has types of its own for arrays
    try:
        rows = picture_rows(column, shape) if is_picture else to_rows(column, shape)
    except ValueError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc
    if (found := TEXT if rows.dtype == object else rows.dtype.name) != dtype:
        raise CorruptShardError(f"{place}: expected {dtype}, found {found}")
    return rows


def is_picture_column(column: Any) -> bool:
    """Return whether an Arrow array has files of pictures, as the library ``datasets`` keeps them: bytes and path."""
    arrow, _ = pyarrow()
    if not arrow.types.is_struct(column.type):
        return False
    index = column.type.get_field_index("bytes")
    return index >= 0 and bool(arrow.types.is_binary(column.type.field(index).type))


def picture_file(cell: Any) -> bytes | None:
    """Return the file in a cell of a column of pictures; None for an empty cell, or one with only a path."""
    content = cell.as_py()
    content = content.get("bytes") if isinstance(content, dict) else content
    return content if isinstance(content, bytes) else None


def picture_rows(column: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the pictures [n, *shape] of a column; raises MalformedError if one has another shape."""
    pictures = np.empty((len(column), *shape), np.uint8)
    for row, cell in enumerate(column):
        content = picture_file(cell)
        if content is None:
            raise MalformedError(f"expected a picture's file in every row, found {cell.as_py()!r:.80}")
        pictures[row] = decode_picture(content, shape)
    return pictures
