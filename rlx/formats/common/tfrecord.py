"""Records of TFRecord files, gzipped or plain: read one at a time, each proved by its checksums, and written.

A record is a little-endian length, its masked crc32c, the data, their masked crc32c. Nothing of it is
believed before it is checked, and memory grows with what the file really holds, not with what it claims to
hold.
"""

import gzip
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import google_crc32c
from isal import igzip, isal_zlib

from rlx.errors import CorruptShardError, SourceNotFoundError

# Half a million frames' worth: twenty times the longest episode of the layouts that come as TFRecord.
MAX_RECORD_BYTES = 1 << 29
_MAX_INFLATION = 1032  # deflate's best: 258 bytes from two bits
_PIECE_BYTES = 1 << 20
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_GZIP_MAGIC = b"\x1f\x8b"
_GUNZIP_ERRORS = (EOFError, gzip.BadGzipFile, cast(type[Exception], isal_zlib.error))


def records(path: Path) -> Iterator[bytes]:
    """Yield the data of every record in the file, in order.

    Raises:
        SourceNotFoundError: the file does not exist.
        CorruptShardError: the file is empty, cut off or longer than its records, or a checksum is wrong.
    """
    try:
        file = path.open("rb")
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

    def records(self) -> Iterator[bytes]:
        while header := self._read(_HEADER.size):
            yield self._record(header)
            self._number += 1

    def _record(self, header: bytes) -> bytes:
        self._need(_HEADER.size, len(header), "header")
        length, claimed = _HEADER.unpack(header)
        self._compare(claimed, google_crc32c.value(header[:8]), "length")
        if length > self._limit:
            raise self._corrupt(f"length: expected at most {self._limit:,} bytes, found {length:,}")
        data, crc = self._data(length)
        footer = self._read(_FOOTER.size)
        self._need(_FOOTER.size, len(footer), "checksum")
        self._compare(_FOOTER.unpack(footer)[0], crc, "data")
        return data

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
    """Yield the bytes of one record.

    Args:
        size: of its data.
        pieces: the data.
    """
    length = struct.pack("<Q", size)
    yield length + _FOOTER.pack(masked(google_crc32c.value(length)))
    crc = 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
        yield piece
    yield _FOOTER.pack(masked(crc))


def masked(crc: int) -> int:
    """Return the checksum as TFRecord stores it: turned and shifted, so that a checksum of checksums stays good.

    Example:
        >>> hex(masked(google_crc32c.value(b"")))
        '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
