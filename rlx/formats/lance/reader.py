"""A Lance dataset of steps: one row per step, columns by TED path or as the options name them."""

import re
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlx.errors import CorruptShardError, RlxError, SourceNotFoundError
from rlx.files.disk import check_readable, file_error, opened_file, refusal
from rlx.files.location import checked_name
from rlx.formats.common.fields import expecting
from rlx.formats.common.provenance import read_notes_beside
from rlx.formats.common.rows.table import ArrowTable, Table, TablePlace, TableRun, open_table
from rlx.formats.lance import DATA, FORMAT, LAYOUT, VERSIONS, checked, lance
from rlx.formats.registry import COLUMN_PATHS

# Offsets of the columns' metadata, of its table and of the buffers' table; lengths of the tables; version.
_FOOTER = struct.Struct("<QQQIIHH4s")
_ENTRY_BYTES = 16
# Lance reads up to two gigabytes ahead by default.
_BUFFER_BYTES = 2**24


class LanceFile:
    """An open dataset."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self.path = path
        self.names: Sequence[str] = dataset.schema.names
        self._dataset = dataset

    def group_start(self, row: int) -> int:
        """Return the row itself: Lance can read from any row."""
        return row

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` rows each, from a row on."""
        wanted = list(dict.fromkeys(names))
        with _translated(self.path):
            scanned = self._dataset.to_batches(
                columns=wanted,
                batch_size=size,
                offset=row,
                scan_in_order=True,
                batch_readahead=1,
                fragment_readahead=1,
                io_buffer_size=_BUFFER_BYTES,
            )
            for batch in scanned:
                yield {name: batch.column(name) for name in wanted}

    def files(self) -> dict[str, int | None]:
        """Return the bytes of every data file by name; None if the manifest does not state them."""
        found: dict[str, int | None] = {}
        for fragment in self._dataset.get_fragments():
            for file in (*fragment.data_files(), *filter(None, [fragment.deletion_file()])):
                name = file if isinstance(file, str) else f"{DATA}/{file.path}"
                if getattr(file, "base_id", None) is not None:
                    raise CorruptShardError(f"{self.path}: {name}: expected data below the directory, found elsewhere")
                found[checked_name(name)] = getattr(file, "file_size_bytes", None)
        return found


@expecting(LAYOUT)
def open_lance(path: Path, **columns: str) -> TableRun:
    """Return the dataset in a Lance directory; ``columns`` are names of columns by option."""
    path = path.absolute()
    named = {column: COLUMN_PATHS[option] for option, column in columns.items()}
    with _file(path) as file:
        files = file.files()
    place = TablePlace(path, path, tuple(files), partial(_opened, path, named, files), LAYOUT)
    return open_table(place, {**read_notes_beside(path), "format": "Lance"})


@contextmanager
def _opened(path: Path, columns: Mapping[str, str], files: Mapping[str, int | None]) -> Iterator[Table]:
    for name, expected in files.items():
        check_readable(path / name)
        if expected and (size := (path / name).stat().st_size) != expected:
            raise CorruptShardError(f"{path / name}: expected {expected:,} bytes, found {size:,}")
        if name.startswith(f"{DATA}/"):
            _check_footer(path / name)
    with _file(path) as file:
        yield ArrowTable(file, columns)


def _check_footer(path: Path) -> None:
    """Raise CorruptShardError unless the tables of a data file are inside it, else Lance allocates them or aborts."""
    size = path.stat().st_size - _FOOTER.size
    with opened_file(path) as file:
        file.seek(max(size, 0))
        footer = file.read()
    if len(footer) < _FOOTER.size:
        return  # Lance raises an error
    _, columns, buffers, num_buffers, num_columns, *version, magic = _FOOTER.unpack(footer)
    if magic == b"LANC" and version >= [0, 3]:  # older files have another footer
        for start, count in ((columns, num_columns), (buffers, num_buffers)):
            if start + count * _ENTRY_BYTES > size:
                raise CorruptShardError(f"{path}: expected at most {size:,} bytes of tables, found {count:,} entries")


@contextmanager
def _file(path: Path) -> Iterator[LanceFile]:
    module = lance()
    if not path.is_dir():
        raise SourceNotFoundError(f"{path} is missing")
    if not FORMAT.recognises(path):
        raise SourceNotFoundError(f"{path / VERSIONS} has no *.manifest")
    for file_of_dataset in path.glob("_*/*"):  # manifests, transactions, deletions
        check_readable(file_of_dataset)
    name = checked(path)
    with _translated(path):
        file = LanceFile(path, module.dataset(name))
    yield file


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Translate errors of Lance, and panics of its Rust code, to CorruptShardError."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except (OSError, ValueError, RuntimeError, LookupError) as exc:
        raise _damaged(path, exc) from exc
    except BaseException as exc:
        if type(exc).__name__ != "PanicException":
            raise
        raise _damaged(path, exc) from exc


def _damaged(path: Path, cause: BaseException) -> RlxError:
    if (refused := refusal(cause)) is not None:
        named = re.search(rf"{re.escape(str(path))}/[^:\n]*", str(cause))
        return file_error(refused, path if named is None else named[0], "read")
    return CorruptShardError(f"{path} is damaged: {str(cause).partition(chr(10))[0][:200]}")
