"""How the rows of a field are stored: the interface of stores, writers and readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.files.remote_files import AnyPath
from rlx.schema import Field
from rlx.store.codec import Codec

Rows = NDArray[np.generic]


class ArrayWriter(Protocol):
    """Writer that appends the rows of one field to its files."""

    def append(self, rows: Rows) -> None:
        """Add [n, *shape] rows."""

    def finish(self) -> None:
        """Write the remaining rows and close the files."""

    def abandon(self) -> None:
        """Close the files without finishing them; does nothing after ``finish``."""


class ArrayReader(Protocol):
    """Reader of the rows of one field of one shard."""

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Return the rows [n, *shape] at these indices, all of them in range, in the order asked for.

        Raises:
            CorruptDatasetError: a chunk is damaged.
        """

    def read_range(self, start: int, stop: int) -> Rows:
        """Return the rows [stop - start, *shape] from start to stop."""

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows [n, *shape] of one run or more, each from a start to a stop, one run after the other."""

    def release(self) -> None:
        """Release the memory of rows read so far: for readers that move on and do not return.

        The pages of a mapped file would else stay with the process until it has all of the file.
        """

    def check_length(self) -> None:
        """Raise CorruptDatasetError if a mapped file has been cut since it was opened."""


class Store(Protocol):
    """Layout of the arrays of a shard on disk."""

    name: str

    def writer(
        self, directory: Path, name: str, field: Field, codec: Codec, dictionary: bytes, threads: int = 1
    ) -> ArrayWriter:
        """Return a writer of one field, compressed by the codec in that number of threads if its rows are large."""

    def seal(self, directory: Path, names: Sequence[str]) -> None:
        """Write the metadata of a directory of finished arrays."""

    def small_file(self, name: str, field: Field) -> str:
        """Return path of the file with the rows of an array of small rows, below the shard."""

    def length(self, directory: AnyPath, name: str, field: Field) -> int:
        """Return rows that the file of an array of small rows has room for.

        Raises:
            CorruptDatasetError: the file is missing, or holds a part of a row.
        """

    def check(self, directory: AnyPath, name: str, field: Field, rows: int) -> None:
        """Raise CorruptDatasetError unless the metadata of an array match the dtype, the shape and the number of
        rows."""

    def reader(self, directory: AnyPath, name: str, field: Field, rows: int) -> ArrayReader:
        """Return a reader of one field with ``rows`` rows.

        Raises:
            CorruptDatasetError: a file is missing, too short, or of another layout.
        """
