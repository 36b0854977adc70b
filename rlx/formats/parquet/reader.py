"""Parquet files of steps: one row per step with columns by TED path, or columns of other projects (``known``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SourceError
from rlx.formats.common.fields import expecting
from rlx.formats.common.parquet_file import ParquetParts, opened, parts_of
from rlx.formats.common.provenance import KEY, read_notes
from rlx.formats.common.rows.episodes import EPISODES_WITHOUT_STEP
from rlx.formats.common.rows.table import Table, TablePlace, TableRun, open_table
from rlx.formats.parquet import JOINED
from rlx.formats.parquet.known import has_episodes, is_joined, list_lengths, notes_of, parts_beside, table_of
from rlx.formats.registry import COLUMN_PATHS

_EPISODES_LAYOUT = (
    "expected Parquet of one row per episode: columns image_observations or continuous_observations, discrete_actions "
    "or continuous_actions, rewards, each a list with an entry per step"
)
_STEPS_LAYOUT = (
    "expected Parquet of one row per step: columns observation, action, next/reward, next/terminated, next/truncated, "
    "numbers, or lists of one length in every row"
)


def open_parquet(path: Path, split: str | None = None, **columns: str) -> TableRun:
    """Return the dataset in a Parquet file, or in the files of a directory.

    Args:
        split: which of several splits of the directory.
        columns: names of columns, by option; for tables of one row per step.
    """
    with expecting(_STEPS_LAYOUT):
        parts = parts_of(path, split, JOINED)
    layout = _EPISODES_LAYOUT if not columns and _has_episodes(parts[0]) else _STEPS_LAYOUT
    named = {column: COLUMN_PATHS[option] for option, column in columns.items()}
    with expecting(layout), opened(parts[0]) as file:
        notes = {**read_notes(file.note(KEY)), "format": "Parquet"}
        notes |= notes_of(file.names) if not columns else {}
        root, beside = parts[0].parent, list[list[Path]]()
        if not columns and is_joined(file.names):
            root, beside = root.parent.parent, parts_beside(parts[0])
        lengths = list_lengths(ParquetParts(path, parts)) if layout == _EPISODES_LAYOUT else None
        if lengths is not None and (count := int((lengths == 0).sum())):
            notes[EPISODES_WITHOUT_STEP] = count
    place = TablePlace(
        path,
        root,
        tuple(str(part.relative_to(root)) for part in chain(parts, *beside)),
        partial(_opened_steps, path, parts, beside, named, lengths),
        layout,
    )
    return open_table(place, notes)


@contextmanager
def _opened_steps(
    path: Path,
    parts: tuple[Path, ...],
    beside: Sequence[Sequence[Path]],
    columns: Mapping[str, str],
    lengths: NDArray[np.int64] | None,
) -> Iterator[Table]:
    yield table_of(ParquetParts(path, parts), columns, beside, lengths)


def _has_episodes(path: Path) -> bool:
    """Return whether a Parquet file has one row per episode; False if it is damaged."""
    try:
        with opened(path) as file:
            return has_episodes(file.names)
    except SourceError:
        return False
