"""A Parquet file of episodes, one a row, as jat-project/jat-dataset on the Hugging Face hub has them.

Columns are lists with an entry per step: ``image_observations`` (files of pictures), ``continuous_observations``,
``discrete_observations`` or ``text_observations``; ``discrete_actions`` or ``continuous_actions``; ``rewards``. Neither
the observation after the last action nor why an episode ended is recorded.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.formats.common.fields import (
    NOT_A_ROW_PER_STEP,
    NOT_NUMBERS_OR_TEXT,
    ExtraFields,
    RowType,
    check_field,
    expecting,
    missing_field,
    not_taken_note,
)
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.pictures import MalformedPictureError, picture_shape
from rlx.formats.common.rows.episodes import EpisodeTable, shard_bounds, without_outcome
from rlx.formats.common.rows.table import is_picture_column, picture_file, picture_rows
from rlx.formats.common.source import OneFile
from rlx.schema import TEXT, Field, Role, Schema
from rlx.store.arrow import row_type, to_rows

REWARDS = "rewards"
_ENDINGS = {"_observations": "observation", "_actions": "action"}
_LAYOUT = (
    "expected Parquet of a row an episode: columns image_observations or continuous_observations, discrete_actions or "
    "continuous_actions, rewards, each a list with an entry per step"
)
_SCANNED_ROWS = 16


@dataclass(frozen=True, slots=True)
class EpisodeRows(OneFile):
    """One file.

    Args:
        root: its directory.
        file_name: its name there.
        schema: what one step holds.
        notes: the columns that were left out, and what is not recorded.
        columns: that of every field but the flags.
        episodes: those of all rows.
        first_episodes: first episode of every shard, and the number of episodes.
    """

    schema: Schema
    notes: Mapping[str, Any]
    columns: Mapping[str, str]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]

    def shards(self) -> Sequence[int]:
        """Return groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: it is damaged, or a list has NaN in it, or more or fewer entries than rewards.
        """
        first, stop = self.first_episodes[shard : shard + 2]
        with expecting(_LAYOUT), opened(self.path) as file:
            row = file.group_start(first)
            for batch in file.batches(list(self.columns.values()), 1, first):
                if row >= stop:
                    return
                if row >= first:
                    episode = self.episodes[row]
                    columns = _Columns(self, batch, row, episode.rows)
                    yield from episode.blocks(self.schema, columns, dropped)
                row += 1
            if row < stop:
                raise CorruptShardError(f"{self.path}: expected {stop:,} episodes, found {row:,}")


class _Columns:
    """The lists of one episode."""

    def __init__(self, source: EpisodeRows, batch: Mapping[str, Any], row: int, steps: int) -> None:
        self._source = source
        self._lists: dict[str, Any] = {}
        for name, column in source.columns.items():
            cell = batch[column][0]
            self._lists[name] = cell.values if cell.is_valid else None
            found = 0 if self._lists[name] is None else len(self._lists[name])
            if found != steps:
                raise CorruptShardError(
                    f"{source.path}: {column}: expected {steps:,} entries in row {row}, found {found:,}"
                )

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field, column = self._source.schema[name], self._source.columns[name]
        part, place = self._lists[name].slice(start, stop - start), f"{self._source.path}: {column}"
        try:
            rows = picture_rows(part, field.shape) if is_picture_column(part) else to_rows(part, field.shape)
        except ValueError as exc:
            raise CorruptShardError(f"{place}: {exc}") from exc
        if (found := TEXT if rows.dtype == object else rows.dtype.name) != field.dtype:
            raise CorruptShardError(f"{place}: expected {field.dtype}, found {found}")
        check_field(name, field, rows, place, start)
        return rows

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        raise NotImplementedError


def has_episodes(path: Path) -> bool:
    """Return whether a Parquet file has the columns of a row an episode; damaged files have none."""
    try:
        with opened(path) as file:
            return REWARDS in file.names and "next/reward" not in file.names
    except SourceError:
        return False


@expecting(_LAYOUT)
def open_episodes(path: Path) -> EpisodeRows:
    """Return the dataset in a Parquet file of a row an episode.

    Raises:
        CorruptShardError: a column is missing or is not of entries per step.
        SourceError: it has no step.
    """
    with opened(path) as file:
        lengths = _lengths(file)
        if not sum(lengths):
            raise SourceError(f"{path} has no step")
        fields, extras = _fields(file, next(row for row, length in enumerate(lengths) if length))
    if (missing := missing_field(fields)) is not None:
        raise CorruptShardError(f"{path}: {missing} is missing")
    try:
        schema = Schema(fields | {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")})
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{path}: {exc}") from exc
    numbers = [number for number, length in enumerate(lengths) if length]
    episodes = EpisodeTable(
        lengths, number=np.arange(len(lengths)), terminated=False, truncated=False, final_recorded=False
    )
    notes = {
        "format": "Parquet",
        "terminated": "unrecorded",
        "truncation": "unrecorded",
        **without_outcome(episodes[number] for number in numbers),
        **not_taken_note(extras.not_taken),
    }
    return EpisodeRows(path.parent, path.name, schema, notes, extras.keys, episodes, shard_bounds(lengths))


def _lengths(file: ParquetFile) -> list[int]:
    """Return steps of every episode."""
    lengths: list[int] = []
    for batch in file.batches([REWARDS], _SCANNED_ROWS):
        if not hasattr(batch[REWARDS], "value_lengths"):
            raise CorruptShardError(f"{file.path}: {REWARDS}: expected a list per row, found {batch[REWARDS].type}")
        lengths += [length or 0 for length in batch[REWARDS].value_lengths().to_pylist()]
    return lengths


def _fields(file: ParquetFile, row: int) -> tuple[dict[str, Field], ExtraFields]:
    """Return the fields of the lists of one row, and why the other columns are not taken."""
    batches = file.batches(file.names, 1, row)
    first = next(islice(batches, row - file.group_start(row), None))
    steps, extras = len(first[REWARDS][0].values), ExtraFields(("terminated", "truncated"))
    counts = Counter(_ENDINGS[ending] for name in file.names if (ending := _ending(name)) is not None)
    for name in file.names:
        column = first[name]
        if not hasattr(column, "value_lengths") or not column[0].is_valid:
            extras.leave(name, NOT_A_ROW_PER_STEP)
            continue
        kind = _kind(column[0].values, f"{file.path}: {name}")
        if len(column[0].values) != steps and _ending(name) is None:
            extras.leave(name, NOT_A_ROW_PER_STEP)
        elif kind is None:
            extras.leave(name, NOT_NUMBERS_OR_TEXT)
        else:
            extras.add(name, _field_name(name, counts), kind, _role(name))
    return dict(extras.fields), extras


def _kind(values: Any, place: str) -> RowType | None:
    if not is_picture_column(values):
        return row_type(values) if len(values) else None
    try:
        content = picture_file(values[0]) if len(values) else None
        return None if content is None else ("uint8", picture_shape(content))
    except MalformedPictureError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc


def _ending(name: str) -> str | None:
    return next((ending for ending in _ENDINGS if name.endswith(ending)), None)


def _field_name(name: str, counts: Mapping[str, int]) -> str:
    """Return the name of the field: ``observation``, or ``observation/image`` where there are several."""
    if name == REWARDS:
        return "reward"
    if (ending := _ending(name)) is None:
        return name
    group = _ENDINGS[ending]
    return group if counts[group] == 1 else f"{group}/{name.removesuffix(ending)}"


def _role(name: str) -> Role:
    if name == REWARDS:
        return Role.NEXT
    return Role.OBSERVATION if _ending(name) == "_observations" else Role.STEP
