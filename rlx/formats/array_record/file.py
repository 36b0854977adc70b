"""ArrayRecord files, read by the package ``array-record`` after the sizes that their chunks claim were checked.

The file is one of Riegeli: chunks, interrupted by a header of 24 bytes at every 64 KiB.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from rlx.errors import CorruptShardError, MissingExtraError
from rlx.files.disk import check_readable

MAX_RECORD_BYTES = 2**29
# Random access, without threads that read ahead.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_SIGNATURE = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
_BLOCK_BYTES, _BLOCK_HEADER_BYTES = 2**16, 24
_USABLE_BYTES = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
_CHUNK_HEADER = struct.Struct("<8xQ8xB7sQ")  # bytes of data, type, records, bytes of the records


def array_record() -> ModuleType:
    """Return the module of the package ``array-record``.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        from array_record.python import array_record_module  # noqa: PLC0415  (an extra)
    except ImportError as exc:
        raise MissingExtraError(
            "array_record needs array-record, which is not installed", hint="pip install 'rlx[array-record]'"
        ) from exc
    module: ModuleType = array_record_module
    return module


def is_array_record(path: Path) -> bool:
    """Return whether a path is that of a file that begins like ArrayRecord, whole or damaged."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


class RecordFile:
    """An open file.

    Attributes:
        path: of the file.
        count: records in it.
    """

    def __init__(self, path: Path, reader: Any) -> None:
        self.path = path
        self.count = int(reader.num_records())
        self._reader = reader

    def read(self, number: int) -> bytes:
        """Return a record.

        Raises:
            CorruptShardError: its checksum is wrong.
        """
        with _translated(self.path):
            (record,) = self._reader.read([number])
        return bytes(record)


@contextmanager
def opened(path: Path) -> Iterator[RecordFile]:
    """Yield the open file.

    Raises:
        SourceNotFoundError: the file does not exist.
        FileAccessError: it cannot be read.
        CorruptShardError: it is no ArrayRecord, cut off, without records, or claims more than such files hold.
        MissingExtraError: array-record is not installed.
    """
    check_readable(path)
    module = array_record()
    _check_claims(path)
    with _translated(path):
        reader = module.ArrayRecordReader(str(path), _OPTIONS)
        if not reader.num_records():
            reader.close()  # raises what is wrong with the index of its records
            raise CorruptShardError(f"{path} has no record")
    try:
        yield RecordFile(path, reader)
    finally:
        with suppress(RuntimeError):  # which the failed read has raised before
            reader.close()


def _check_claims(path: Path) -> None:
    """Raise CorruptShardError unless every chunk is in the file, and its records are of a usual size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            raise CorruptShardError(f"{path}: expected ArrayRecord, found another beginning")
        position = 0
        while position < size:
            header = _unblocked(file, position, _CHUNK_HEADER.size)
            if len(header) < _CHUNK_HEADER.size:
                raise CorruptShardError(f"{path} is damaged: cut off in the header of a chunk at byte {position:,}")
            data, _, records, decoded = _CHUNK_HEADER.unpack(header)
            end = max(
                _with_overhead(position, _CHUNK_HEADER.size + data),
                _boundary(position + int.from_bytes(records, "little")),
            )
            if end > size or decoded > MAX_RECORD_BYTES:
                raise CorruptShardError(
                    f"{path} is damaged: expected a chunk of at most {size - position:,} bytes at byte {position:,}, "
                    f"with records of at most {MAX_RECORD_BYTES:,}, found {end - position:,} with {decoded:,}"
                )
            position = end


def _unblocked(file: BinaryIO, position: int, count: int) -> bytes:
    """Return bytes of a chunk, without the headers of blocks between them."""
    found = b""
    while count:
        position += max(0, _BLOCK_HEADER_BYTES - position % _BLOCK_BYTES)
        file.seek(position)
        part = file.read(min(count, _BLOCK_BYTES - position % _BLOCK_BYTES))
        if not part:
            return found
        found, position, count = found + part, position + len(part), count - len(part)
    return found


def _with_overhead(position: int, size: int) -> int:
    """Return where a chunk of this many bytes ends, with the headers of blocks in it."""
    blocks = (size + (position + _USABLE_BYTES - 1) % _BLOCK_BYTES) // _USABLE_BYTES
    return position + size + blocks * _BLOCK_HEADER_BYTES


def _boundary(position: int) -> int:
    """Return the first place at or after a position where a chunk may end."""
    left = _BLOCK_BYTES - 1 - (position + _BLOCK_BYTES - 1) % _BLOCK_BYTES
    return position + max(0, left - (_USABLE_BYTES - 1))


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as exc:
        reason = str(exc).partition("\n")[0][:200]
        raise CorruptShardError(f"{path} is damaged: {reason or 'it cannot be read'}") from exc
