"""HDF5 files written piece by piece; a full disk raises an error and does not crash the process."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from rlx.errors import ExportError
from rlx.formats.common.exporter import Experience, Piece, pieces
from rlx.formats.common.pictures import Arranged
from rlx.formats.common.provenance import KEY
from rlx.progress import Progress
from rlx.schema import TEXT, Schema

_CHUNK_BYTES = 2**16
# Smaller rows gain little, and every reader is fastest where nothing is compressed.
_MIN_GZIP_ROW_BYTES = 1024
_GZIP_LEVEL = 1
_REFERENCE_BYTES = 16  # to a text, which is elsewhere in the file
PieceWriter: TypeAlias = Callable[[Piece], None]


class Hdf5Output:
    """A file that is being written."""

    def __init__(self, file: h5py.File, disk: "Disk") -> None:
        self.file = file
        self._disk = disk

    def sign(self, said: Mapping[str, Any]) -> None:
        """Write the provenance into an attribute of the file, which other readers ignore."""
        self.file.attrs[KEY] = json.dumps(said, sort_keys=True)

    def writer(self, columns: Iterable["Column"], schema: Schema, count: int, number: int = 0) -> PieceWriter:
        """Create datasets of ``count`` rows; return the function that adds a piece to all of them.

        Args:
            number: of the episode, which replaces ``{}`` in the paths.
        """
        datasets = []
        for column in columns:
            field, path = schema[column.name], column.path.format(number)
            shape = field.shape if column.arranged is None else column.arranged.shape
            datasets.append((column, self.rows(path, count, shape, column.dtype or field.dtype)))

        def write(piece: Piece) -> None:
            for column, rows in datasets:
                rows.append(column.rows(piece))

        return write

    def rows(
        self, name: str, count: int, shape: Sequence[int], dtype: DTypeLike, *, growing: bool = False
    ) -> "RowWriter":
        """Return a dataset of ``count`` rows, to be filled from the first to the last.

        Rows of a kilobyte and more are gzipped, in chunks of about 64 kB.

        Args:
            name: path in the file.
            growing: whether the format wants a resizable dataset.
        """
        is_text, growing = dtype == TEXT, growing and 0 not in shape  # what has no values has no chunks
        row_bytes = max(1, (_REFERENCE_BYTES if is_text else np.dtype(dtype).itemsize) * int(np.prod(shape)))
        large = row_bytes >= _MIN_GZIP_ROW_BYTES and not is_text
        chunk = (max(1, min(count, _CHUNK_BYTES // row_bytes)), *shape) if large or growing else None
        dataset = self.file.create_dataset(
            name,
            (count, *shape),
            h5py.string_dtype() if is_text else dtype,
            chunks=chunk,
            maxshape=(None, *shape) if growing else None,
            compression="gzip" if large else None,
            compression_opts=_GZIP_LEVEL if large else None,
        )
        return RowWriter(dataset, self._disk)


class RowWriter:
    """Writer of the rows of one dataset, in order."""

    def __init__(self, dataset: h5py.Dataset, disk: "Disk") -> None:
        self._dataset = dataset
        self._disk = disk
        self._filled = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Write the next rows [n, ...]; raises ExportError for a text with NUL."""
        if rows.dtype == object and any("\0" in text for text in rows.flat):
            raise ExportError(f"HDF5 cannot hold a text with a NUL in it, found one in {self._dataset.name}")
        stop = self._filled + len(rows)
        self._dataset[self._filled : stop] = rows.reshape(len(rows), *self._dataset.shape[1:])
        self._filled = stop
        self._disk.check()


@dataclass(frozen=True, slots=True)
class Column:
    """A dataset of a row per step, filled from a field.

    Args:
        path: in the file; ``{}`` stands for the number of the episode.
        is_after: whether it holds the field's value after each step.
        arranged: how the rows are arranged there, if not as in the field.
        dtype: of the rows there, if not the field's.
    """

    path: str
    name: str
    is_after: bool = False
    arranged: Arranged | None = None
    dtype: str | None = None

    def rows(self, piece: Piece) -> NDArray[Any]:
        """Return [n, ...] the rows that a piece adds."""
        rows = piece.next(self.name) if self.is_after else piece.rows(self.name)
        return rows if self.arranged is None else self.arranged.arrange(rows)


def write_episodes(experience: Experience, begin: Callable[[Piece], PieceWriter], progress: Progress) -> None:
    """Write trajectories piece by piece.

    Args:
        begin: returns, for the first piece of a trajectory, the function that writes each of its pieces.
    """
    for piece in pieces(experience.blocks(), experience.schema):
        if piece.start == 0:
            write = begin(piece)
        write(piece)
        progress.advance("steps", piece.steps)


@contextmanager
def created(path: Path, *, track_order: bool = False) -> Iterator[Hdf5Output]:
    """Create a file, closed with the context; the same rows give the same bytes. A full disk raises OSError."""
    with path.open("xb+", buffering=0) as raw:
        disk = Disk(raw)
        try:
            with h5py.File(disk, "w", track_order=track_order) as file:
                yield Hdf5Output(file, disk)
        finally:
            # Before HDF5 raises an error of its own.
            disk.check()


class Disk(io.RawIOBase):
    """A file that hides failed writes from HDF5, which cannot close a file after one.

    Writes to a closed file seem to succeed too: HDF5 flushes an interrupted ``h5py.File`` later.
    """

    def __init__(self, raw: io.FileIO | BinaryIO) -> None:
        self._raw: Any = raw
        self._failure: OSError | ValueError | None = None  # ValueError: the file is closed

    def check(self) -> None:
        """Raise the error of the first failed write, if any."""
        if self._failure is not None:
            raise self._failure

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to an offset in the file."""
        try:
            return int(self._raw.seek(offset, whence))
        except (OSError, ValueError) as exc:  # seeking writes the buffer first
            self._failure = self._failure or exc
            return 0

    def tell(self) -> int:
        """Return the offset in the file."""
        try:
            return int(self._raw.tell())
        except ValueError:
            return 0

    def readinto(self, buffer: Any, /) -> int | None:
        """Read from the file."""
        found: int | None = self._raw.readinto(buffer)
        return found

    def write(self, data: Any, /) -> int:
        """Write to the file, as long as nothing has failed."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self._failure is None:
                rest = rest[self._raw.write(rest) :]
        except (OSError, ValueError) as exc:
            self._failure = exc
        return size

    def flush(self) -> None:
        """Do nothing: nothing is buffered here.

        HDF5 may close a file while an exception propagates; Python then finds no inherited methods.
        """

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file."""
        try:
            if self._failure is None:
                return int(self._raw.truncate(size))
        except (OSError, ValueError) as exc:
            self._failure = exc
        return size or 0
