"""Arrays in the ``.npy`` format: headers, which are matched and never evaluated, and gzipped files read as streams."""

import gzip
import io
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from isal import igzip, igzip_lib
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError

_MAX_BYTES = 10_000
_MAGIC = re.compile(rb"\x93NUMPY[\x01\x02]\x00")
# Python 2, which wrote some of these files, puts an L after long integers.
_HEADER = re.compile(
    r"\{'descr': '([<|][biuf]\d{1,2}|<U[1-9]\d{0,8}|\|S[1-9]\d{0,8})', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,18}L?, ?){0,8}(?:\d{1,18}L?)?)\), \} *\n"
)
# Deflate packs at most 258 bytes into two bits: a file can hold no more than this many times its size.
MAX_RATIO = 1032
# Fits the processor's cache: inflating into larger pieces halves the speed.
_PIECE_BYTES = 256 * 1024
# 64 million actions: a file of Dopamine has one million.
_MAX_SMALL_BYTES = 2**28


def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the beginning of a file with an array of little-endian numbers, or texts."""
    file = io.BytesIO()
    described = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue()


class MalformedNpyError(ValueError):
    """The bytes are no ``.npy`` array of numbers."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def read_header(read: Callable[[int], bytes], *, text: bool = False) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of the array that a stream holds, which is left at the first of its values.

    Args:
        read: returns the next bytes of the stream, as many as asked for.
        text: whether the array may be one of texts.
    """
    magic = read(8)
    if not _MAGIC.fullmatch(magic):
        raise MalformedNpyError("an npy array of version 1 or 2", repr(magic))
    length = int.from_bytes(read(2 if magic[6] == 1 else 4), "little")
    if length > _MAX_BYTES:
        raise MalformedNpyError(f"a header of at most {_MAX_BYTES:,} bytes", f"{length:,}")
    header = read(length).decode("latin1")
    match = _HEADER.fullmatch(header)
    if match is None or (match[2] == "True" and match[3].count(",") > 1) or (match[1][1] in "US" and not text):
        raise MalformedNpyError("the npy header of a C-ordered array of numbers", repr(header[:80].strip()))
    try:
        dtype = np.dtype(match[1])
    except (TypeError, ValueError) as exc:
        raise MalformedNpyError("a type that numpy knows", repr(match[1])) from exc
    return dtype, tuple(int(n) for n in re.findall(r"\d+", match[3]))


class NpyStream:
    """The rows of one gzipped ``.npy`` file, in order, from the first on.

    Args:
        path: the file; not closed before ``close`` or the end of the ``with`` block.

    Attributes:
        row: the next row that ``read_into`` gives.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.row = 0
        try:
            self._file = igzip.IGzipFile(path, "rb")  # type: ignore[no-untyped-call]
        except FileNotFoundError as exc:
            raise SourceNotFoundError(f"{path} is missing") from exc
        try:
            self.dtype, self.shape = self._read_header()
            self._check_claim()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, whatever is left in it."""
        self._file.close()

    def read_into(self, out: NDArray[Any]) -> None:
        """Fill ``out`` [n, *shape[1:]], which is contiguous and of the array's dtype, with the next n
        rows."""
        self._fill(out.reshape(-1).view(np.uint8))
        self.row += len(out)

    def skip_to(self, row: int) -> None:
        """Skip the rows before ``row``, which is not before the present one."""
        piece = np.empty(_PIECE_BYTES, np.uint8)
        left = (row - self.row) * self._row_bytes
        while left:
            self._fill(piece[: min(left, len(piece))])
            left -= min(left, len(piece))
        self.row = row

    def finish(self) -> None:
        """Skip the rest and check that the file ends there, with the right checksum and length."""
        self.skip_to(self.shape[0])
        self._check_end()

    def read_all(self) -> NDArray[Any]:
        """Return the whole array, its checksum verified."""
        array = np.empty(self.shape, self.dtype)
        self._fill(array.reshape(-1).view(np.uint8))
        self._check_end()
        return array

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def _read_header(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        try:
            return read_header(self._read)
        except MalformedNpyError as exc:
            raise self._corrupt(exc.expected, exc.found) from exc

    def _check_claim(self) -> None:
        claimed = math.prod(self.shape) * self.dtype.itemsize
        packed = self.path.stat().st_size
        if claimed > packed * MAX_RATIO:
            raise self._corrupt(
                f"at most {packed * MAX_RATIO:,} bytes in {packed:,} of gzip", f"a claim of {claimed:,}"
            )

    def _check_end(self) -> None:
        with self._translated():
            more = self._file.read(1)
        if more:
            raise self._corrupt(f"an array of shape {list(self.shape)}", "trailing data")

    def _read(self, size: int) -> bytes:
        buffer = np.empty(size, np.uint8)
        self._fill(buffer)
        return buffer.tobytes()

    def _fill(self, buffer: NDArray[np.uint8]) -> None:
        done = 0
        while done < len(buffer):
            with self._translated():
                count = self._file.readinto(buffer[done : done + _PIECE_BYTES].data)
            if not count:
                raise self._corrupt(f"{len(buffer) - done:,} more bytes", "the end of the array")
            done += count

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, gzip.BadGzipFile, igzip_lib.IsalError) as exc:  # type: ignore[misc]
            raise self._corrupt("a whole gzip file", str(exc)) from exc

    def _corrupt(self, expected: str, found: str) -> CorruptShardError:
        return CorruptShardError(f"{self.path} is corrupt: expected {expected}, found {found}")


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in a small gzipped ``.npy`` file; raises as ``NpyStream`` does, also for a large one."""
    with NpyStream(path) as stream:
        claimed = math.prod(stream.shape) * stream.dtype.itemsize
        if claimed > _MAX_SMALL_BYTES:
            raise CorruptShardError(
                f"{path} is corrupt: expected an array of at most {_MAX_SMALL_BYTES:,} bytes, found {claimed:,}"
            )
        return stream.read_all()
