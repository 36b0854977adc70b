"""Parquet files read in batches of rows; every error names the file.

Several files are read as one, in order, as the hub's library ``datasets`` writes them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.files.disk import check_readable, listed
from rlx.formats.common.source import begins_with, damage
from rlx.store.foreign_types import arrow_file, pyarrow
from rlx.wording import first_of
from rlx.wording import missing as is_missing

_BUFFER_BYTES = 2**18
MAGIC = b"PAR1"
# train-00000-of-00003.parquet, perhaps with a hash; 0000.parquet of the hub's own conversions.
_NUMBERED = re.compile(r"(?:(?P<split>.+?)-)?(?P<number>\d{5})-of-(?P<count>\d{5})(?:-[0-9a-f]+)?")
# part-00000-1f2e-c000.snappy.parquet of Spark, part.0.parquet of Dask, shard_10.parquet.
_PART = re.compile(
    r"(?P<split>.+?)[-_.](?P<number>\d+)(-[0-9a-f-]+)?([-.]c\d+)?(\.(snappy|zstd|gz|gzip|lz4|lz4raw|brotli))?"
)
_MAX_FILES = 100_000
_SHOWN = 20


class ParquetFile:
    """An open file.

    Attributes:
        groups: [g + 1] first row of every row group, and the number of rows.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self._file = file
        metadata = file.metadata
        self.groups = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(file.num_row_groups))])
        self.rows = int(self.groups[-1])
        self.names: Sequence[str] = file.schema_arrow.names

    def group_start(self, row: int) -> int:
        """Return the first row of the row group that has a row."""
        return int(self.groups[self._group(row)])

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` rows each, from the start of the row group that has a row."""
        for name in names:
            if (count := self.names.count(name)) > 1:
                raise CorruptShardError(f"{self.path}: {name}: {count} columns have this name")
            if not count:
                raise CorruptShardError(is_missing(f"{self.path}: {name}", self.names))
        groups, wanted = range(self._group(row), self._file.num_row_groups), list(dict.fromkeys(names))
        with translated(self.path):
            for batch in self._file.iter_batches(batch_size=size, row_groups=groups, columns=wanted):
                # pyarrow also finds columns whose names begin with this one and a dot.
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield {name: columns[name] for name in wanted}

    def record_batches(self, size: int) -> Iterator[Any]:
        """Yield Arrow record batches of all columns, of at most ``size`` rows each."""
        with translated(self.path):
            yield from self._file.iter_batches(batch_size=size)

    def note(self, key: str) -> bytes | None:
        """Return the file's metadata under a key; None if absent."""
        said: bytes | None = (self._file.schema_arrow.metadata or {}).get(key.encode())
        return said

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self.groups, row, side="right")) - 1


def is_parquet(path: Path) -> bool:
    """Return whether a path is a file that begins like Parquet, even if it is damaged."""
    return begins_with(path, MAGIC)


@contextmanager
def opened(path: Path) -> Iterator[ParquetFile]:
    """Yield the open file."""
    check_readable(path)
    _, parquet = pyarrow()
    with ExitStack() as stack:
        with translated(path):
            raw = stack.enter_context(arrow_file(path))
            texts = _text_columns(parquet.read_metadata(raw).schema)
            # By default, pyarrow reads ahead and keeps all requested row groups, and copies a long text for every row.
            file = parquet.ParquetFile(raw, buffer_size=_BUFFER_BYTES, pre_buffer=False, read_dictionary=texts)
            found = ParquetFile(path, stack.enter_context(file))
        yield found


def _text_columns(schema: Any) -> list[str]:
    """Return the names of columns of texts; pyarrow has no dictionaries within lists."""
    columns = (schema.column(number) for number in range(len(schema)))
    return [column.name for column in columns if column.path == column.name and column.logical_type.type == "STRING"]


def translated(path: Path) -> AbstractContextManager[None]:
    """Translate pyarrow's errors for a damaged file to CorruptShardError."""
    arrow, _ = pyarrow()
    return damage(path, arrow.ArrowException, OSError, ValueError, LookupError)


class ParquetParts:
    """Files of the same columns, read one after the other; each is open only while it is read.

    Args:
        path: of the dataset, for messages.

    Attributes:
        groups: [g + 1] first row of every row group, and the number of rows.
    """

    def __init__(self, path: Path, parts: Sequence[Path]) -> None:
        self._parts = parts
        starts, groups = [0], [np.zeros(1, np.int64)]
        self.names: Sequence[str] = ()
        for part in parts:
            with opened(part) as file:
                if starts[1:] and file.names != self.names:
                    raise CorruptShardError(
                        f"{part}: expected the columns of {parts[0].name}, {', '.join(self.names)[:200]}, "
                        f"found {', '.join(file.names)[:200]}"
                    )
                self.names = file.names
                groups.append(starts[-1] + file.groups[1:])
                starts.append(starts[-1] + file.rows)
        self._starts, self.groups = np.array(starts), np.concatenate(groups)
        self.rows = int(starts[-1])
        self.path = parts[0] if len(parts) == 1 else path

    def group_start(self, row: int) -> int:
        """Return the first row of the row group that has a row."""
        return int(self.groups[np.searchsorted(self.groups, row, side="right") - 1])

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` rows each, from the start of the row group that has a row."""
        number = min(int(np.searchsorted(self._starts, row, side="right")), len(self._parts)) - 1
        first = int(self._starts[number])
        for place, part in enumerate(islice(self._parts, number, None)):
            with opened(part) as file:
                self.path = part
                yield from file.batches(names, size, row - first if place == 0 else 0)


def files_of(path: Path, table: str) -> list[Path]:
    """Return the Parquet files in a directory, its ``data``, or the splits of its ``table``; empty for LeRobot's.

    They are in the order of the numbers in their names.
    """
    if not path.is_dir() or (path / "meta").exists():
        return []
    names = ("*.parquet", "data/*.parquet", f"{table}/*/*.parquet")
    found = next(filter(None, (listed(path, name)[:_MAX_FILES] for name in names)), [])
    return [file for file in found if file.is_file()]


def parts_of(path: Path, split: str | None, table: str) -> tuple[Path, ...]:
    """Return the files of a dataset in order: the file itself, or those of one split of a directory.

    Args:
        table: directory with a directory of files for each split.

    Raises:
        SourceNotFoundError: there are no files, or one of a numbered series is missing.
        SourceError: the split is unknown, or not given and there are several.
    """
    if not path.is_dir():
        return (path,)
    splits: dict[str, list[Path]] = defaultdict(list)
    for file in files_of(path, table):
        splits[file.parent.name if file.parent.parent == path / table else _split_of(file)].append(file)
    if not splits:
        raise SourceNotFoundError(f"{path} has no *.parquet")
    shown = first_of(splits, _SHOWN)
    if split is None and len(splits) > 1:
        raise SourceError(f"{path} has several splits: {shown}", hint=f"`from_` parquet:split={next(iter(splits))}")
    chosen = next(iter(splits)) if split is None else split
    splits |= {file.stem: [file] for file in chain(*splits.values()) if file.stem == split and split not in splits}
    if chosen not in splits:
        raise SourceError(f"{path} has no split {chosen}, found {shown}")
    _check_series(path, splits[chosen])
    return tuple(splits[chosen])


def _split_of(file: Path) -> str:
    if (found := _NUMBERED.fullmatch(file.stem) or _PART.fullmatch(file.stem)) is not None:
        return found["split"] or "all"
    return "all" if file.stem.isdecimal() else file.stem


def _check_series(path: Path, files: Sequence[Path]) -> None:
    parts = [match for file in files if (match := _PART.fullmatch(file.stem)) is not None]
    found = [match for file in files if (match := _NUMBERED.fullmatch(file.stem)) is not None]
    if not found and not parts:
        return
    counts = {int(match["count"]) for match in found}
    numbers = {int(match["number"]) for match in found or parts}
    if len(counts) > 1 or len(numbers) < len(files):
        raise SourceError(f"{path}: expected one series of numbered files, found {files[0].name} and {files[-1].name}")
    if not counts:
        return
    count = counts.pop()
    missing = next((number for number in range(min(count, _MAX_FILES)) if number not in numbers), None)
    if missing is not None:
        raise SourceNotFoundError(f"{path}: number {missing} of {count} files is missing, found {files[0].name}")
