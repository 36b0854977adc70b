"""Raw files: rows back to back, little-endian, uncompressed, read through a memory map or by ranges of bytes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError, DatasetError, FileAccessError
from rlx.files.disk import at_once, file_error, opened_file, written_file
from rlx.files.remote_files import AnyPath, RemotePath, length_of, local, remote
from rlx.schema import Field
from rlx.store.array import ArrayReader, Rows
from rlx.store.native.mapping import MappedFile, MemoryFile

_LARGE_BYTES = 1 << 20
_PAGE_BYTES = resource.getpagesize()


class RawFileWriter:
    """Writer of rows to one file. The file exists from the first row on, so an empty field has none."""

    def __init__(self, path: Path, field: Field) -> None:
        self._path = path
        self._dtype = np.dtype(field.dtype).newbyteorder("<")
        self._file: BinaryIO | None = None
        self.rows = 0

    def append(self, rows: Rows) -> None:
        """Add [n, *shape] rows."""
        if not len(rows):
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = written_file(self._path)
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        close_quietly(self._file)


class RawFileReader(ArrayReader):
    """Reader of rows of a raw file through a memory map.

    Args:
        file: the file to read instead of a map, if it is remote.
    """

    def __init__(self, path: AnyPath, field: Field, rows: int, file: MemoryFile | None = None) -> None:
        dtype = np.dtype(field.dtype).newbyteorder("<")
        shape = (rows, *field.shape)
        expected = rows * field.row_bytes
        self._mapped: MappedFile | MemoryFile | None = None
        if expected == 0:
            self._array: NDArray[Any] = np.empty(shape, dtype)
            return
        try:
            self._mapped = file if (here := local(path)) is None else MappedFile(here)
            assert self._mapped is not None
        except ValueError as exc:
            raise CorruptDatasetError(f"{path} has 0 bytes, expected {expected:,}") from exc
        if (found := len(self._mapped.memory)) != expected:
            raise CorruptDatasetError(f"{path} has {found:,} bytes, expected {expected:,}")
        if field.row_bytes < _PAGE_BYTES:
            # A row is a hundredth or less of what the kernel would read around it.
            self._mapped.read_at_random()
        self._array = np.frombuffer(self._mapped.memory, dtype).reshape(shape)

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Return the rows at these indices."""
        return self._array.take(rows, axis=0)

    def read_range(self, start: int, stop: int) -> Rows:
        """Return the rows from start to stop, copied."""
        return self._array[start:stop].copy()

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows of these runs."""
        return np.concatenate([self._array[start:stop] for start, stop in runs])

    @property
    def file(self) -> memoryview:
        """The bytes of the file."""
        return memoryview(b"") if self._mapped is None else self._mapped.memory

    def release(self) -> None:
        """Give back the pages that were read; they stay in the kernel's cache."""
        if self._mapped is not None:
            self._mapped.release()

    def check_length(self) -> None:
        """Raise CorruptDatasetError if the file has been cut since it was opened."""
        if self._mapped is not None:
            self._mapped.check_length()


class RangedRawReader(ArrayReader):
    """Reader of rows of a raw file by ranges of bytes."""

    def __init__(self, path: RemotePath, field: Field, rows: int) -> None:
        self.path, self.rows = path, rows
        self._dtype = np.dtype(field.dtype).newbyteorder("<")
        self._shape = field.shape
        self._row_bytes = field.row_bytes
        expected = rows * field.row_bytes
        if expected and path.length != expected:
            raise CorruptDatasetError(f"{path} has {path.length:,} bytes, expected {expected:,}")

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Return the rows at these indices."""
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        firsts = rows[np.concatenate([[0], breaks])[: len(rows)].astype(np.int64)]
        lasts = rows[np.concatenate([breaks - 1, [-1]])[: len(rows)].astype(np.int64)]
        return self._read(list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)), len(rows))

    def read_range(self, start: int, stop: int) -> Rows:
        """Return the rows from start to stop."""
        return self.read_runs([(start, max(start, stop))])

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows of these runs."""
        return self._read(runs, sum(stop - start for start, stop in runs))

    def _read(self, runs: Sequence[tuple[int, int]], count: int) -> Rows:
        size = self._row_bytes
        if not count * size:
            return np.empty((count, *self._shape), self._dtype)
        pieces = self.path.pieces([(start * size, stop * size) for start, stop in runs])
        return np.frombuffer(bytearray().join(pieces), self._dtype).reshape(count, *self._shape)


def raw_reader(path: AnyPath, field: Field, rows: int) -> RawFileReader | RangedRawReader:
    """Return a reader of a raw file, here or far away."""
    if (far := remote(path)) is not None:
        return RangedRawReader(far, field, rows)
    return RawFileReader(path, field, rows)


def raw_length(path: AnyPath, field: Field) -> int:
    """Return rows in a raw file, which must exist."""
    try:
        found = length_of(path)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise CorruptDatasetError(f"{path} is missing") from exc
    if found % field.row_bytes:
        raise CorruptDatasetError(f"{path} has {found:,} bytes, expected a multiple of {field.row_bytes:,}")
    return found // field.row_bytes


def read_small(path: AnyPath, max_bytes: int) -> bytes:
    """Return a whole file of limited size."""
    found = length_of(path)
    if found > max_bytes:
        raise CorruptDatasetError(f"{path} is damaged: expected at most {max_bytes:,} bytes")
    if (here := local(path)) is None:
        return path.read_bytes()
    with opened_file(here) as file:
        return file.read()


def close_quietly(file: BinaryIO | None) -> None:
    """Close a file that will be deleted, without flushing its buffer to a full disk."""
    if file is not None:
        with suppress(OSError, DatasetError):
            file.close()


def check_size(path: str, expected: int) -> None:
    """Raise CorruptDatasetError unless the file exists and has exactly the expected size."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise CorruptDatasetError(f"{path} is missing: expected {expected:,} bytes") from exc
    except OSError as exc:
        raise file_error(exc, path) from exc
    if not S_ISREG(found.st_mode):
        raise CorruptDatasetError(f"{path} is not a regular file: expected {expected:,} bytes")
    if found.st_size != expected:
        raise CorruptDatasetError(f"{path} has {found.st_size:,} bytes, expected {expected:,}")


def check_sizes(directory: str, sizes: Iterable[tuple[str, int]]) -> None:
    """Raise CorruptDatasetError unless these files exist below a directory and have exactly these sizes."""
    for name, expected in sizes:
        path = f"{directory}/{name}"
        try:
            is_right = os.stat(path).st_size == expected
        except OSError:
            is_right = False
        if not is_right:
            check_size(path, expected)


def read_whole(path: str, size: int) -> bytes | None:
    """Return the bytes of a file of this size; None if it has another, or cannot be read."""
    try:
        descriptor = at_once(path, os.O_RDONLY)
    except (OSError, FileAccessError):
        return None
    try:
        if size > _LARGE_BYTES and os.fstat(descriptor).st_size != size:
            return None  # before that much memory is asked for, which a manifest may claim
        content = os.read(descriptor, size + 1)
        while 0 < len(content) < size and (more := os.read(descriptor, size + 1 - len(content))):
            content += more
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content if len(content) == size else None
