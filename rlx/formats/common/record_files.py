"""Files of records: TFRecord, gzipped or plain, and ArrayRecord.

A record of TFRecord is a little-endian length, its masked crc32c, the data, their masked crc32c. Lengths are checked
before they are used, and memory grows with the data in the file, not with the lengths that it claims.

ArrayRecord is a file of Riegeli: chunks, interrupted by a header of 24 bytes at every 64 KiB. The package
``array-record`` reads it after the sizes that its chunks claim were checked.
"""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import google_crc32c
from isal import igzip, isal_zlib

from rlx.errors import CorruptShardError, SourceNotFoundError, imported
from rlx.files.disk import check_readable, opened_file
from rlx.formats.common.source import begins_with, damage

# Half a million frames' worth: twenty times the longest episode of the layouts that come as TFRecord.
MAX_RECORD_BYTES = 1 << 29
_MAX_INFLATION = 1032  # deflate's best: 258 bytes from two bits
_PIECE_BYTES = 1 << 20
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_GZIP_MAGIC = b"\x1f\x8b"
_GUNZIP_ERRORS = (EOFError, gzip.BadGzipFile, cast(type[Exception], isal_zlib.error))
_ARRAY_RECORD_ERRORS = (RuntimeError, ValueError, IndexError)
# Random access, without threads that read ahead.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
ARRAY_RECORD = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
_BLOCK_BYTES, _BLOCK_HEADER_BYTES = 2**16, 24
_USABLE_BYTES = _BLOCK_BYTES - _BLOCK_HEADER_BYTES
_CHUNK_HEADER = struct.Struct("<8xQ8xB7sQ")  # bytes of data, type, records, bytes of the records


def records(path: Path) -> Iterator[bytes]:
    """Yield the data of every record of a TFRecord file, in order; raises CorruptShardError for a damaged one."""
    return (read() for read in record_reads(path))


def record_reads(path: Path) -> Iterator[Callable[[], bytes]]:
    """Yield, for every record of a TFRecord file, what returns its data, or raises CorruptShardError if it is damaged.

    Raises:
        SourceNotFoundError: no file was found.
        CorruptShardError: it is damaged so that the next record cannot be found.
    """
    try:
        file = opened_file(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        raise SourceNotFoundError(f"{path} does not exist, expected a TFRecord file") from exc
    with file:
        magic = file.read(len(_GZIP_MAGIC))
        size = file.seek(0, 2)
        file.seek(0)
        if magic != _GZIP_MAGIC:
            yield from _Reader(path, file, size).records()
            return
        with igzip.GzipFile(fileobj=file) as unzipped:  # type: ignore[no-untyped-call]
            yield from _Reader(path, unzipped, size * _MAX_INFLATION).records()


class _Reader:
    """Reader of records from one stream that can hold at most ``limit`` bytes."""

    def __init__(self, path: Path, stream: BinaryIO | gzip.GzipFile, limit: int) -> None:
        self._path = path
        self._stream = stream
        self._limit = min(limit, MAX_RECORD_BYTES)
        self._number = 0
        if limit == 0:
            raise CorruptShardError(f"{path} is empty, expected a TFRecord file")

    def records(self) -> Iterator[Callable[[], bytes]]:
        while header := self._read(_HEADER.size):
            data, crc, claimed = self._record(header)
            yield partial(self._checked, data, claimed, crc)
            self._number += 1

    def _checked(self, data: bytes, claimed: int, crc: int) -> bytes:
        self._compare(claimed, crc, "data")
        return data

    def _record(self, header: bytes) -> tuple[bytes, int, int]:
        self._need(_HEADER.size, len(header), "header")
        length, claimed = _HEADER.unpack(header)
        self._compare(claimed, google_crc32c.value(header[:8]), "length")
        if length > self._limit:
            raise self._corrupt(f"length: expected at most {self._limit:,} bytes, found {length:,}")
        data, crc = self._data(length)
        footer = self._read(_FOOTER.size)
        self._need(_FOOTER.size, len(footer), "checksum")
        return data, crc, _FOOTER.unpack(footer)[0]

    def _data(self, length: int) -> tuple[bytes, int]:
        pieces: list[bytes] = []
        crc = 0
        for missing in range(length, 0, -_PIECE_BYTES):
            size = min(missing, _PIECE_BYTES)
            piece = self._read(size)
            self._need(size, len(piece), "data")
            crc = google_crc32c.extend(crc, piece)
            pieces.append(piece)
        return b"".join(pieces), crc

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except _GUNZIP_ERRORS as exc:
            raise self._corrupt(f"expected a whole gzip stream, found: {exc}") from exc

    def _need(self, expected: int, found: int, what: str) -> None:
        if found != expected:
            raise self._corrupt(f"{what}: expected {expected:,} more bytes, found {found:,} before the file's end")

    def _compare(self, claimed: int, crc: int, what: str) -> None:
        found = masked(crc)
        if claimed != found:
            raise self._corrupt(f"masked crc32c of its {what}: expected {claimed:#010x}, found {found:#010x}")

    def _corrupt(self, problem: str) -> CorruptShardError:
        return CorruptShardError(f"{self._path} is corrupt: record {self._number}: {problem}")


def framed(size: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of one TFRecord of ``size`` bytes of data."""
    length = struct.pack("<Q", size)
    yield length + _FOOTER.pack(masked(google_crc32c.value(length)))
    crc = 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
        yield piece
    yield _FOOTER.pack(masked(crc))


def masked(crc: int) -> int:
    """Return the checksum as TFRecord stores it: rotated and shifted, so that data with checksums can be checksummed.

    Example:
        >>> hex(masked(google_crc32c.value(b"")))
        '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def array_record() -> Any:
    """Return the module of the package ``array-record``; raises MissingExtraError if it is not installed."""
    return imported("array_record.python.array_record_module", "array_record needs array-record", "array-record")


def is_array_record(path: Path) -> bool:
    """Return whether a path is a file that begins like ArrayRecord, even if it is damaged."""
    return begins_with(path, ARRAY_RECORD)


class RecordFile:
    """An open ArrayRecord file."""

    def __init__(self, path: Path, reader: Any) -> None:
        self.path = path
        self.count = int(reader.num_records())
        self._reader = reader

    def read(self, number: int) -> bytes:
        """Return a record; raises CorruptShardError if it is damaged."""
        with damage(self.path, *_ARRAY_RECORD_ERRORS):
            (record,) = self._reader.read([number])
        return bytes(record)


@contextmanager
def opened(path: Path) -> Iterator[RecordFile]:
    """Yield the open ArrayRecord file; raises CorruptShardError if it is damaged or has no record."""
    check_readable(path)
    module = array_record()
    _check_claims(path)
    with damage(path, *_ARRAY_RECORD_ERRORS):
        reader = module.ArrayRecordReader(os.fsencode(path), _OPTIONS)
        if not reader.num_records():
            reader.close()  # raises an error if the index of records is damaged
            raise CorruptShardError(f"{path} has no record")
    try:
        yield RecordFile(path, reader)
    finally:
        with suppress(RuntimeError):  # already raised by the failed read
            reader.close()


def _check_claims(path: Path) -> None:
    """Raise CorruptShardError unless every chunk is inside the file, with records of at most ``MAX_RECORD_BYTES``."""
    size = path.stat().st_size
    with opened_file(path) as file:
        if file.read(len(ARRAY_RECORD)) != ARRAY_RECORD:
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
    blocks = (size + (position + _USABLE_BYTES - 1) % _BLOCK_BYTES) // _USABLE_BYTES
    return position + size + blocks * _BLOCK_HEADER_BYTES


def _boundary(position: int) -> int:
    """Return the first position at or after this one where a chunk may end."""
    left = _BLOCK_BYTES - 1 - (position + _BLOCK_BYTES - 1) % _BLOCK_BYTES
    return position + max(0, left - (_USABLE_BYTES - 1))
