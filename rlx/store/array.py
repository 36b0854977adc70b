"""How the rows of a field are stored: the interfaces of writers and readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.generic]


class ArrayWriter(Protocol):
    """Writer that appends the rows of one field to its files."""

    def append(self, rows: Rows) -> None:
        """Add [n, *shape] rows."""

    def finish(self) -> None:
        """Write the remaining rows and close the files."""

    def abandon(self) -> None:
        """Close the files without finishing them; does nothing after ``finish``."""


class ArrayReader(ABC):
    """Reader of the rows of one field of one shard."""

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Return the rows [n, *shape] at these indices, all of them in range, in the order asked for.

        Raises:
            CorruptDatasetError: a chunk is damaged.
        """

    @abstractmethod
    def read_range(self, start: int, stop: int) -> Rows:
        """Return the rows [stop - start, *shape] from start to stop."""

    @abstractmethod
    def read_runs(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows [n, *shape] of one run or more, each from a start to a stop, one run after the other."""

    def release(self) -> None:  # noqa: B027  (most readers hold none)
        """Release the memory of rows read so far, if any is held: for readers that read every row once.

        Otherwise the process would keep the pages of a mapped file, in the end all of them.
        """

    def check_length(self) -> None:  # noqa: B027  (fetched bytes are checked later)
        """Raise CorruptDatasetError if a mapped file has been cut since it was opened."""
