"""Parquet read with care: rows in batches, and every failure of the library names the file."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import CorruptShardError
from rlx.files.disk import check_readable
from rlx.store.arrow import pyarrow

_BUFFER_BYTES = 2**18
_MAGIC = b"PAR1"


class ParquetFile:
    """An open file.

    Attributes:
        path: of the file.
        rows: in it.
        names: of its columns.
    """

    def __init__(self, path: Path, file: Any) -> None:
        self.path = path
        self._file = file
        metadata = file.metadata
        self._groups = np.cumsum([0, *(metadata.row_group(number).num_rows for number in range(file.num_row_groups))])
        self.rows = int(self._groups[-1])
        self.names: Sequence[str] = file.schema_arrow.names

    def group_start(self, row: int) -> int:
        """Return first row of the row group that has a row."""
        return int(self._groups[self._group(row)])

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` rows each, from the start of the row group that has a row.

        Raises:
            CorruptShardError: a column is missing, or cannot be decoded.
        """
        if missing := [name for name in names if name not in self.names]:
            raise CorruptShardError(f"{self.path}: {missing[0]} is missing")
        groups, wanted = range(self._group(row), self._file.num_row_groups), list(dict.fromkeys(names))
        with translated(self.path):
            for batch in self._file.iter_batches(batch_size=size, row_groups=groups, columns=wanted):
                # By the dots in its name a column is also found that only begins like it.
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield {name: columns[name] for name in wanted}

    def is_uniform(self, name: str) -> bool:
        """Return whether the file itself says that every row of a column has a value, and lists are all as long."""
        arrow, _ = pyarrow()
        kind, metadata = self._file.schema_arrow.field(name).type, self._file.metadata
        while arrow.types.is_fixed_size_list(kind):
            kind = kind.value_type
        if arrow.types.is_nested(kind):
            return False
        with translated(self.path):
            paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
            columns = [number for number, path in enumerate(paths) if path == name or path.startswith(f"{name}.")]
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            statistics = [group.column(number).statistics for group in groups for number in columns]
            return all(one is not None and one.has_null_count and not one.null_count for one in statistics)

    def note(self, key: str) -> bytes | None:
        """Return the file's metadata under a key."""
        said: bytes | None = (self._file.schema_arrow.metadata or {}).get(key.encode())
        return said

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self._groups, row, side="right")) - 1


def is_parquet(path: Path) -> bool:
    """Return whether a path is that of a file that begins like Parquet, whole or damaged."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def opened(path: Path) -> Iterator[ParquetFile]:
    """Yield the open file.

    Raises:
        SourceNotFoundError: none was found.
        FileAccessError: it cannot be read.
        CorruptShardError: it is no Parquet, or shorter than it was written.
        MissingExtraError: pyarrow is not installed.
    """
    check_readable(path)
    _, parquet = pyarrow()
    with translated(path):
        texts = _text_columns(parquet.read_metadata(path).schema)
        # Else pyarrow reads ahead all requested row groups and keeps them, and a long text once for every row.
        file = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, read_dictionary=texts)
    try:
        with translated(path):
            found = ParquetFile(path, file)
        yield found
    finally:
        file.close()


def _text_columns(schema: Any) -> list[str]:
    """Return names of the columns that are texts themselves; pyarrow has no dictionaries within lists."""
    columns = (schema.column(number) for number in range(len(schema)))
    return [column.name for column in columns if column.path == column.name and column.logical_type.type == "STRING"]


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Make what pyarrow raises where a file is damaged an error that names it."""
    arrow, _ = pyarrow()
    try:
        yield
    except (arrow.ArrowException, OSError, ValueError, LookupError) as exc:
        raise CorruptShardError(f"{path} is damaged: {str(exc).splitlines()[0][:200]}") from exc
