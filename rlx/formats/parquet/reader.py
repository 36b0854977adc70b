"""A Parquet file of steps: a row a step, columns by TED path."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.fields import RowType, expecting, not_taken_note
from rlx.formats.common.parquet_file import ParquetFile, is_parquet, opened
from rlx.formats.common.provenance import KEY, read_notes
from rlx.formats.common.rows.episodes import Batch, EpisodeTable, RowStream, shard_bounds, without_outcome
from rlx.formats.common.rows.scan import EpisodeScan, FoundEpisodes, scan_following
from rlx.formats.common.rows.ted_fields import SCANNED, StreamColumns, TedFields, ted_fields
from rlx.formats.common.source import OneFile, batch_rows
from rlx.schema import TEXT, Field, Role, Schema, is_action, is_observation
from rlx.store.arrow import row_type, to_rows

_LAYOUT = (
    "expected Parquet of a row a step: columns observation, action, next/reward, next/terminated, next/truncated, "
    "numbers or lists of as many numbers in every row"
)
_SCANNED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Parquet(OneFile):
    """One file.

    Args:
        root: its directory.
        file_name: its name there.
        kinds: dtype and shape of the rows of every column.
        fields: what they hold.
        notes: the notes that rlx wrote into the file, and the columns that were left out.
        episodes: those of all rows.
        first_episodes: first episode of every shard, and the number of episodes.
    """

    kinds: Mapping[str, RowType | None]
    fields: TedFields
    notes: Mapping[str, Any]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]

    @property
    def schema(self) -> Schema:
        """Schema of a step."""
        return self.fields.schema

    def shards(self) -> Sequence[int]:
        """Return groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: it is damaged, or has NaN or nulls in it.
        """
        first, stop = self.first_episodes[shard : shard + 2]
        row = int(self.episodes.rows[:first].sum())
        paths = [*self.fields.paths.values(), *self.fields.after.values()]
        with expecting(_LAYOUT), opened(self.path) as file:
            batches = _batches(file, self.kinds, paths, batch_rows(self.schema), row)
            stream = RowStream(file.path, batches, file.group_start(row))
            for episode in self.episodes[first:stop]:
                stream.skip_to(row)
                yield from episode.blocks(self.schema, StreamColumns(stream, self.fields, row), dropped)
                row += episode.rows


def recognises(path: Path) -> bool:
    """Return whether a file is Parquet; pyarrow need not be installed."""
    return is_parquet(path)


@expecting(_LAYOUT)
def open_parquet(path: Path) -> Parquet:
    """Return the dataset in a Parquet file.

    Raises:
        SourceNotFoundError: the file does not exist.
        CorruptShardError: a column is missing, or the file is damaged.
        SourceError: it has no step.
        MissingExtraError: pyarrow is not installed.
    """
    with opened(path) as file:
        kinds = _kinds(file)
        unfit = _unfit(file, kinds)
        kinds = {name: kind for name, kind in kinds.items() if name not in unfit}
        fields = ted_fields(kinds, str(path))
        found = _episodes(file, kinds, fields)
        episodes, fields = found.table, fields.torn(found.torn)
        notes = {**read_notes(file.note(KEY)), "format": "Parquet", **without_outcome(episodes)}
    notes |= not_taken_note({**fields.not_taken, **unfit})
    return Parquet(path.parent, path.name, kinds, fields, notes, episodes, shard_bounds(episodes.rows))


def _episodes(file: ParquetFile, kinds: Mapping[str, RowType | None], fields: TedFields) -> FoundEpisodes:
    flags, after = [name for name in fields.scanned if kinds.get(name)], list(fields.after.values())
    scan, known = EpisodeScan(), 0
    for batch in _batches(file, kinds, [*flags, *after], batch_rows(fields.schema)):
        recorded = _recorded(batch, after)
        known += int(recorded.sum())
        scan.add(batch, recorded)
    if known <= len((found := scan.found()).table):
        return found
    rows = _batches(file, kinds, [*flags, *after, *fields.after], batch_rows(fields.schema))
    return scan_following(rows, fields.after, fields.decides, lambda batch: _recorded(batch, after))


def _recorded(batch: Batch, after: Sequence[str]) -> NDArray[np.bool_]:
    """Return [n] whether each row holds all observations after it."""
    count = len(next(iter(batch.values())))
    valid = [batch[_validity(path)] for path in after]
    return np.logical_and.reduce(valid) if valid else np.zeros(count, bool)


def _kinds(file: ParquetFile) -> dict[str, RowType | None]:
    """Return dtype and shape of the rows of every column; none where they are neither numbers nor text."""
    columns = next(file.batches(file.names, 1), None)
    if columns is None:
        raise SourceError(f"{file.path} has no step")
    return {
        name: row_type(columns.get(name.removeprefix("next/"), column) if column.null_count else column)
        for name, column in columns.items()
    }


def _unfit(file: ParquetFile, kinds: Mapping[str, RowType | None]) -> dict[str, str]:
    """Return reason for every further column that has no value of one shape in every row; that takes a look at all of
    them.

    Observations, actions, rewards and flags have one, or reading them is an error.
    """
    extra = {
        name: kind
        for name, kind in kinds.items()
        if kind is not None and not _is_needed(name) and name.removeprefix("next/") not in kinds.keys() - {name}
    }
    found: dict[str, str] = {}
    doubtful = [name for name in extra if not file.is_uniform(name)]
    for batch in file.batches(doubtful, _SCANNED_ROWS) if doubtful else ():
        for name, column in batch.items():
            if name not in found:
                try:
                    to_rows(column, extra[name][1])
                except ValueError as exc:
                    found[name] = str(exc)
    return found | {f"next/{name}": reason for name, reason in found.items() if f"next/{name}" in kinds}


def _is_needed(path: str) -> bool:
    name = path.removeprefix("next/")
    return path in SCANNED or name == "reward" or is_observation(name) or is_action(name)


def _batches(
    file: ParquetFile, kinds: Mapping[str, RowType | None], paths: Sequence[str], size: int, row: int = 0
) -> Generator[Batch, None, None]:
    """Yield rows of columns, from the start of the row group that has a row.

    Of columns that may be null where nothing was recorded, which rows have something, and zeros elsewhere.
    """
    for batch in file.batches(paths, size, row):
        yield {
            key: rows for name, column in batch.items() for key, rows in _rows(file.path, name, column, kinds).items()
        }


def _rows(path: Path, name: str, column: Any, kinds: Mapping[str, RowType | None]) -> Batch:
    dtype, shape = kinds.get(name) or ("", ())
    is_after = name.startswith("next/") and name.removeprefix("next/") in kinds
    try:
        rows = to_rows(column.drop_null() if is_after else column, shape)
    except ValueError as exc:
        raise CorruptShardError(f"{path}: {name}: {exc}") from exc
    found = TEXT if rows.dtype == object else rows.dtype.name
    if found != dtype:
        raise CorruptShardError(f"{path}: {name}: expected {dtype}, found {found}")
    if not is_after:
        return {name: rows}
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all():
        spread = Field(dtype, shape, Role.OBSERVATION).zeros(len(column))
        spread[valid] = rows
        rows = spread
    return {name: rows, _validity(name): valid}


def _validity(path: str) -> str:
    return f"{path} is there"
