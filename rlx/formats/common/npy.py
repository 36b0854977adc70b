"""Arrays in the ``.npy`` format: headers, matched by a pattern and never evaluated, and streams of compressed files."""

import gzip
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

import numpy as np
from isal import igzip, isal_zlib
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.files.disk import opened_file
from rlx.formats.common.fields import RowType
from rlx.formats.common.source import MalformedError
from rlx.schema import TEXT

_MAX_BYTES = 10_000
_MAGIC = re.compile(rb"\x93NUMPY[\x01\x02]\x00")
# Python 2, which wrote some of these files, puts an L after long integers.
_HEADER = re.compile(
    r"\{'descr': '([<|][biuf]\d{1,2}|<U[1-9]\d{0,8}|\|S[1-9]\d{0,8})', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,18}L?, ?){0,8}(?:\d{1,18}L?)?)\), \} *\n"
)
# Deflate packs at most 258 bytes into two bits: a file can hold no more than this many times its size.
_MAX_RATIO = 1032
# Fits the processor's cache: inflating into larger pieces halves the speed.
_PIECE_BYTES = 256 * 1024
# 64 million actions: a file of Dopamine has one million.
_MAX_SMALL_BYTES = 2**28
_TEXTS = "US"
_FAILURES = (
    *(EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error),
    cast(type[Exception], isal_zlib.error),
)


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of a file with an array of little-endian numbers, or texts."""
    file = io.BytesIO()
    described = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


def read_header(read: Callable[[int], bytes], *, text: bool = False) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of the array in a stream, and leave the stream at the first value.

    Args:
        read: returns this many of the next bytes.
        text: whether the array may have texts.

    Raises:
        MalformedError: this is not a C-ordered array of numbers, or texts.
    """
    magic = read(8)
    if not _MAGIC.fullmatch(magic):
        raise MalformedError(f"expected an npy array of version 1 or 2, found {magic!r}")
    length = int.from_bytes(read(2 if magic[6] == 1 else 4), "little")
    if length > _MAX_BYTES:
        raise MalformedError(f"expected a header of at most {_MAX_BYTES:,} bytes, found {length:,}")
    header = read(length).decode("latin1")
    match = _HEADER.fullmatch(header)
    if match is None or (match[2] == "True" and match[3].count(",") > 1) or (match[1][1] in "US" and not text):
        raise MalformedError(f"expected the npy header of a C-ordered array of numbers, found {header[:80].strip()!r}")
    try:
        dtype = np.dtype(match[1])
    except (TypeError, ValueError) as exc:
        raise MalformedError(f"expected a type that numpy knows, found {match[1]!r}") from exc
    return dtype, tuple(int(n) for n in re.findall(r"\d+", match[3]))


class NpyStream:
    """The rows of one array, in order. Damage raises CorruptShardError.

    Args:
        place: of the array, for messages.
        file: the decompressed ``.npy`` file; not closed before ``close`` or the end of the ``with`` block.
        packed: bytes of the compressed file.
        text: whether the array may have texts.

    Attributes:
        row: the next row to read.
    """

    def __init__(self, place: str, file: IO[bytes], packed: int, *, text: bool = False) -> None:
        self.place = place
        self.row = 0
        self._file = file
        try:
            self.dtype, self.shape = self._read_header(packed * _MAX_RATIO, text=text)
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, even before its end."""
        self._file.close()

    @property
    def kind(self) -> RowType:
        """Dtype and shape of a row, as a schema has them."""
        return (TEXT if self.dtype.kind in _TEXTS else self.dtype.name), self.shape[1:]

    @property
    def count(self) -> int:
        """Rows of the array; 0 for a single number."""
        return self.shape[0] if self.shape else 0

    def read(self, count: int) -> NDArray[Any]:
        """Return the next rows [count, ...]; texts are objects of type ``str``."""
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        self.read_into(rows)
        if self.dtype.kind not in _TEXTS:
            return rows
        try:
            texts = (np.char.decode(rows, "utf-8") if self.dtype.kind == "S" else rows).astype(object)
            "".join(texts.flat).encode()  # fails if one is not Unicode
        except ValueError as exc:
            raise self.corrupt("Unicode text", str(exc)) from exc
        return texts

    def read_into(self, out: NDArray[Any]) -> None:
        """Fill ``out`` [n, *shape[1:]], which is contiguous and of the array's dtype, with the next n
        rows."""
        self._fill(out.reshape(-1).view(np.uint8))
        self.row += len(out)

    def skip_to(self, row: int) -> None:
        """Skip to ``row``, which must not be before ``self.row``."""
        piece = np.empty(_PIECE_BYTES, np.uint8)
        left = (row - self.row) * math.prod(self.shape[1:]) * self.dtype.itemsize
        while left:
            self._fill(piece[: min(left, len(piece))])
            left -= min(left, len(piece))
        self.row = row

    def finish(self) -> None:
        """Skip the rest and check that the file ends there, with the right checksum and length."""
        self.skip_to(self.count)
        self._check_end()

    def read_all(self) -> NDArray[Any]:
        """Return the whole array of numbers, whose checksum is verified; requires that no row was read."""
        array = np.empty(self.shape, self.dtype)
        self._fill(array.reshape(-1).view(np.uint8))
        self._check_end()
        return array

    def corrupt(self, expected: str, found: str) -> CorruptShardError:
        """Return the error of an array that is not as expected."""
        return CorruptShardError(f"{self.place}: expected {expected}, found {found}")

    def _read_header(self, most: int, *, text: bool) -> tuple[np.dtype[Any], tuple[int, ...]]:
        try:
            dtype, shape = read_header(self._read, text=text)
        except MalformedError as exc:
            raise CorruptShardError(f"{self.place}: {exc}") from exc
        if math.prod(shape) * dtype.itemsize > most:
            raise self.corrupt(f"at most {most:,} bytes", f"a claim of {dtype}{list(shape)}")
        return dtype, shape

    def _check_end(self) -> None:
        if self._read(1):
            raise self.corrupt(f"an array {list(self.shape)}", "trailing data")

    def _read(self, size: int) -> bytes:
        with self._translated():
            return self._file.read(size)

    def _fill(self, buffer: NDArray[np.uint8]) -> None:
        done = 0
        while done < len(buffer):
            with self._translated():
                count = self._file.readinto(buffer[done : done + _PIECE_BYTES].data)  # type: ignore[attr-defined]
            if not count:
                raise self.corrupt(f"{len(buffer) - done:,} more bytes", "the end of the array")
            done += count

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as exc:
            raise self.corrupt("a whole compressed file", str(exc)) from exc


def gzipped(path: Path) -> NpyStream:
    """Return the stream of a gzipped array of numbers; raises SourceNotFoundError if the file is missing."""
    try:
        raw = opened_file(path)
    except FileNotFoundError as exc:
        raise SourceNotFoundError(f"{path} is missing") from exc
    file: Any = igzip.IGzipFile(fileobj=raw)  # type: ignore[no-untyped-call]
    file.myfileobj = raw  # which it closes with itself
    return NpyStream(f"{path} is corrupt", file, path.stat().st_size)


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in a gzipped ``.npy`` file; raises CorruptShardError if it is larger than 256 MiB."""
    with gzipped(path) as stream:
        claimed = math.prod(stream.shape) * stream.dtype.itemsize
        if claimed > _MAX_SMALL_BYTES:
            raise stream.corrupt(f"an array of at most {_MAX_SMALL_BYTES:,} bytes", f"{claimed:,}")
        return stream.read_all()
