"""Rows of several columns that can only be read in order, kept for as long as a block needs them."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError

Batch = Mapping[str, NDArray[Any]]


class RowStream:
    """Reader of rows in order: none may come before those of the last call.

    Args:
        path: where the rows lie.
        batches: columns of as many rows each.
        first: number of the first row of the first batch.
    """

    def __init__(self, path: Path, batches: Generator[Batch, None, None], first: int = 0) -> None:
        self.path = path
        self._batches = batches
        self._batches_held: list[Batch] = []
        self._start = self._stop = first

    @property
    def held(self) -> int:
        """Rows that are in memory."""
        return self._stop - self._start

    def skip_to(self, row: int) -> None:
        """Forget the rows before one, those that have not come yet too."""
        self._forget(row)
        while self._stop <= row and (batch := next(self._batches, None)) is not None:
            self._take(batch)
            self._forget(row)

    def rows(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Return rows [stop - start, ...] of a column; those before ``start`` are forgotten.

        Raises:
            CorruptShardError: there are fewer.
        """
        self._forget(start)
        return self.peek(column, start, stop)

    def peek(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Read like ``rows``, but keep earlier rows: other columns may still be asked for them."""
        while self._stop < stop:
            batch = next(self._batches, None)
            if batch is None:
                raise CorruptShardError(f"{self.path}: expected {stop:,} rows, found {self._stop:,}")
            self._take(batch)
        pieces, at = [], self._start
        for batch in self._batches_held:
            pieces.append(batch[column][max(0, start - at) : max(0, stop - at)])
            at += _length(batch)
        return np.concatenate(pieces)

    def _take(self, batch: Batch) -> None:
        self._batches_held.append(batch)
        self._stop += _length(batch)

    def _forget(self, row: int) -> None:
        while self._batches_held and self._start + _length(self._batches_held[0]) <= row:
            self._start += _length(self._batches_held.pop(0))

    def close(self) -> None:
        """Let go of what the batches are read from."""
        self._batches.close()

    def finish(self) -> None:
        """Read the rest, so that all of it is verified."""
        for _ in self._batches:
            pass


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())))
