"""A Parquet file of steps: a row a step with columns by TED path, or a row an episode."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rlx.formats.common.fields import expecting
from rlx.formats.common.parquet_file import is_parquet, opened
from rlx.formats.common.provenance import KEY, read_notes
from rlx.formats.common.rows.table import COLUMN_PATHS, ArrowTable, Table, TablePlace, TableRun, open_table
from rlx.formats.parquet.episodes import EpisodeRows, has_episodes, open_episodes

_LAYOUT = (
    "expected Parquet of a row a step: columns observation, action, next/reward, next/terminated, next/truncated, "
    "numbers or lists of as many numbers in every row"
)


def recognises(path: Path) -> bool:
    """Return whether a file is Parquet; pyarrow need not be installed."""
    return is_parquet(path)


def open_parquet(path: Path, **columns: str) -> TableRun | EpisodeRows:
    """Return the dataset in a Parquet file.

    Args:
        path: of the file.
        columns: names of columns that are not TED paths, by the options of the format; the file has a row a step then.

    Raises:
        SourceNotFoundError: the file does not exist.
        CorruptShardError: a column is missing, or the file is damaged.
        SourceError: it has no step.
        MissingExtraError: pyarrow is not installed.
    """
    if not columns and has_episodes(path):
        return open_episodes(path)
    named = {column: COLUMN_PATHS[option] for option, column in columns.items()}
    with expecting(_LAYOUT), opened(path) as file:
        notes = {**read_notes(file.note(KEY)), "format": "Parquet"}
    place = TablePlace(path, path.parent, (path.name,), partial(_opened, path, named), _LAYOUT)
    return open_table(place, notes)


@contextmanager
def _opened(path: Path, columns: Mapping[str, str]) -> Iterator[Table]:
    with opened(path) as file:
        yield ArrowTable(file, columns)
