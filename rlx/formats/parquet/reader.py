"""Parquet files of steps: one row per step with columns by TED path, or one row per episode.

Rows of episodes are those of jat-project/jat-dataset on the Hugging Face hub: columns are lists with an entry per step,
``image_observations`` (files of pictures), ``continuous_observations``, ``discrete_observations`` or
``text_observations``; ``discrete_actions`` or ``continuous_actions``; ``rewards``. Neither the observation after the
last action nor why an episode ended is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.fields import (
    NOT_A_ROW_PER_STEP,
    NOT_NUMBERS_OR_TEXT,
    ExtraFields,
    check_field,
    expecting,
    missing_field,
    not_taken_note,
    with_flags,
)
from rlx.formats.common.parquet_file import ParquetParts, files_of, is_parquet, opened, parts_of
from rlx.formats.common.pictures import lossy_notes
from rlx.formats.common.provenance import KEY, read_notes
from rlx.formats.common.rows.episodes import EpisodeTable, shard_bounds, without_outcome
from rlx.formats.common.rows.table import (
    COLUMN_PATHS,
    ArrowTable,
    Table,
    TablePlace,
    TableRun,
    column_kind,
    column_rows,
    is_picture_column,
    open_table,
)
from rlx.formats.common.source import EpisodeGroups, id_of
from rlx.formats.parquet.known import (
    JOINED,
    NOTES,
    JoinedRows,
    JoinedTable,
    StepRows,
    UnrewardedTable,
    is_gymrec,
    is_joined,
    is_unrewarded,
    parts_beside,
)
from rlx.schema import FLAGS, Field, Role, Schema

REWARDS = "rewards"
_ENDINGS = {"_observations": "observation", "_actions": "action"}
_LAYOUT = (
    "expected Parquet of one row per episode: columns image_observations or continuous_observations, discrete_actions "
    "or continuous_actions, rewards, each a list with an entry per step"
)
_SCANNED_ROWS = 16
_STEPS_LAYOUT = (
    "expected Parquet of one row per step: columns observation, action, next/reward, next/terminated, next/truncated, "
    "numbers or lists of as many numbers in every row"
)


def recognises(path: Path) -> bool:
    """Return whether a path is Parquet, or a directory of such files; pyarrow need not be installed."""
    return is_parquet(path) or any(map(is_parquet, files_of(path, JOINED)[:1]))


def open_parquet(path: Path, split: str | None = None, **columns: str) -> TableRun | EpisodeRows:
    """Return the dataset in a Parquet file, or in the files of a directory.

    Args:
        split: which of several splits of the directory.
        columns: names of columns that are not TED paths, by the options of the format; requires one row per step.
    """
    with expecting(_STEPS_LAYOUT):
        parts = parts_of(path, split, JOINED)
    if not columns and _has_episodes(parts[0]):
        return _open_episodes(path, parts)
    named = {column: COLUMN_PATHS[option] for option, column in columns.items()}
    with expecting(_STEPS_LAYOUT), opened(parts[0]) as file:
        notes = {**read_notes(file.note(KEY)), "format": "Parquet"}
        notes |= NOTES if not columns and is_unrewarded(file.names) else {}
        root, beside = parts[0].parent, list[list[Path]]()
        if not columns and is_joined(file.names):
            root, beside = root.parent.parent, parts_beside(parts[0])
    place = TablePlace(
        path,
        root,
        tuple(str(part.relative_to(root)) for part in chain(parts, *beside)),
        partial(_opened_steps, path, parts, beside, named),
        _STEPS_LAYOUT,
    )
    return open_table(place, notes)


@contextmanager
def _opened_steps(
    path: Path, parts: tuple[Path, ...], beside: Sequence[Sequence[Path]], columns: Mapping[str, str]
) -> Iterator[Table]:
    file = ParquetParts(path, parts)
    if not columns and is_gymrec(file.names):
        yield ArrowTable(StepRows(file))
    elif beside:
        yield JoinedTable(JoinedRows(file, *beside))
    elif not columns and is_unrewarded(file.names):
        yield UnrewardedTable(file)
    else:
        yield ArrowTable(file, columns)


@dataclass(frozen=True, slots=True)
class EpisodeRows(EpisodeGroups):
    """The files of one dataset."""

    path: Path
    parts: tuple[Path, ...]
    schema: Schema
    notes: Mapping[str, Any]
    columns: Mapping[str, str]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]

    @property
    def root(self) -> Path:
        """The directory of the files."""
        return self.parts[0].parent

    @property
    def id(self) -> str:
        """Name of the file or directory."""
        return id_of(self.path)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (any file may have rows of any shard)
        """Return all files."""
        return [part.name for part in self.parts]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard."""
        first, stop = self.first_episodes[shard : shard + 2]
        with expecting(_LAYOUT):
            file = ParquetParts(self.path, self.parts)
            row = file.group_start(first)
            for batch in file.batches(list(self.columns.values()), 1, first):
                if row >= stop:
                    return
                if row >= first:
                    episode = self.episodes[row]
                    columns = _Columns(self, file.path, batch, row, episode.rows)
                    yield from episode.blocks(self.schema, columns, dropped)
                row += 1
            if row < stop:
                raise CorruptShardError(f"{self.path}: expected {stop:,} episodes, found {row:,}")


class _Columns:
    def __init__(self, source: EpisodeRows, path: Path, batch: Mapping[str, Any], row: int, steps: int) -> None:
        self._source = source
        self._path = path
        self._lists: dict[str, Any] = {}
        for name, column in source.columns.items():
            cell = batch[column][0]
            self._lists[name] = cell.values if cell.is_valid else None
            found = 0 if self._lists[name] is None else len(self._lists[name])
            if found != steps:
                raise CorruptShardError(f"{path}: {column}: expected {steps:,} entries in row {row}, found {found:,}")

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field, column = self._source.schema[name], self._source.columns[name]
        part, place = self._lists[name].slice(start, stop - start), f"{self._path}: {column}"
        rows = column_rows(part, (field.dtype, field.shape), place, is_picture=is_picture_column(part))
        check_field(name, field, rows, place, start)
        return rows

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        raise NotImplementedError


def _has_episodes(path: Path) -> bool:
    """Return whether a Parquet file of a dataset has one row per episode; damaged files do not."""
    try:
        with opened(path) as file:
            return REWARDS in file.names and "next/reward" not in file.names and not is_gymrec(file.names)
    except SourceError:
        return False


@expecting(_LAYOUT)
def _open_episodes(path: Path, parts: tuple[Path, ...]) -> EpisodeRows:
    file = ParquetParts(path, parts)
    lengths = _lengths(file)
    if not sum(lengths):
        raise SourceError(f"{path} has no step")
    fields, extras, lossy = _fields(file, next(row for row, length in enumerate(lengths) if length))
    if (missing := missing_field(fields)) is not None:
        raise CorruptShardError(f"{path}: {missing} is missing")
    schema = with_flags(fields, str(path))
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
        **lossy,
    }
    return EpisodeRows(path, parts, schema, notes, extras.keys, episodes, shard_bounds(lengths))


def _lengths(file: ParquetParts) -> list[int]:
    lengths: list[int] = []
    for batch in file.batches([REWARDS], _SCANNED_ROWS):
        if not hasattr(batch[REWARDS], "value_lengths"):
            raise CorruptShardError(f"{file.path}: {REWARDS}: expected a list per row, found {batch[REWARDS].type}")
        lengths += [length or 0 for length in batch[REWARDS].value_lengths().to_pylist()]
    return lengths


def _fields(file: ParquetParts, row: int) -> tuple[dict[str, Field], ExtraFields, dict[str, list[str]]]:
    """Return the fields of the lists of one row, why the other columns are not taken, and the notes of lossy ones."""
    batches = file.batches(file.names, 1, row)
    first = next(islice(batches, row - file.group_start(row), None))
    steps, extras = len(first[REWARDS][0].values), ExtraFields(FLAGS)
    encodings: dict[str, str | None] = {}
    counts = Counter(_ENDINGS[ending] for name in file.names if (ending := _ending(name)) is not None)
    for name in file.names:
        column = first[name]
        if not hasattr(column, "value_lengths") or not column[0].is_valid:
            extras.leave(name, NOT_A_ROW_PER_STEP)
            continue
        kind, encoding = column_kind(column[0].values, f"{file.path}: {name}")
        if len(column[0].values) != steps and _ending(name) is None:
            extras.leave(name, NOT_A_ROW_PER_STEP)
        elif kind is None:
            extras.leave(name, NOT_NUMBERS_OR_TEXT)
        elif extras.add(name, _field_name(name, counts), kind, _role(name)):
            encodings[_field_name(name, counts)] = encoding
    return dict(extras.fields), extras, lossy_notes(encodings)


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
