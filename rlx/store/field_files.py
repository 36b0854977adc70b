"""The open files of a field, over all shards: rows of many shards are read by one call."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlx.schema import Field
from rlx.store.array import ArrayReader, Rows
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.native.gather import FileTable, gather, gather_kernel
from rlx.store.native.kernel import kernel
from rlx.store.native.memory import empty_rows
from rlx.store.raw_file import RawFileReader
from rlx.store.shard_file import ShardFileReader

Indices = NDArray[np.int64]


def runs(shard: Indices, local: Indices, run: int) -> tuple[Indices, Indices]:
    """Return [run * n] the shards and the numbers of rows: the first rows of all runs, then the second ones."""
    return (shard, local) if run == 1 else (np.tile(shard, run), np.add.outer(np.arange(run), local).reshape(-1))


class FieldFiles:
    """The open files of one field, by shard. Without the compiled functions, shards are read one by one instead.

    Files are added while others read. To close files, make a new table with ``without``: readers of this one
    keep its maps alive.

    Attributes:
        is_direct: whether ``read`` reads all files opened so far: of rows of numbers, or of chunks of one row that zstd
            compressed.
    """

    def __init__(self, field: Field, shards: int) -> None:
        self.is_direct = not field.is_text and field.row_bytes > 0 and gather_kernel() is not None
        self._field, self._row_bytes = field, field.row_bytes
        self._dtype = field.numpy_dtype.newbyteorder("<")
        self._kernel, self._table = kernel(), FileTable(shards, field.row_bytes)
        self._is_open, self._closed = np.zeros(shards, bool), shards
        self._is_compressed: bool | None = None

    def lacks(self, shard: Indices) -> list[int]:
        """Return which of these shards [n] are not open."""
        if not self._closed:
            return []
        is_open = self._is_open[shard]
        return [] if is_open.all() else np.unique(shard[~is_open]).tolist()

    def add(self, number: int, reader: ArrayReader) -> None:
        """Add the file of a shard."""
        if not self.is_direct:
            pass
        elif isinstance(reader, RawFileReader) and not self._is_compressed:
            self._table.add(number, reader.file)
            self._is_compressed = False
        elif (
            self._kernel is not None
            and isinstance(reader, ShardFileReader)
            and isinstance(reader.codec, ZstdChunks)
            and reader.chunk == 1
            and self._is_compressed is not False
        ):
            self._table.add(number, reader.file, len(reader.index), reader.codec.digested_for(self._kernel))
            self._is_compressed = True
        else:
            self.is_direct = False
        was_closed = not self._is_open[number]
        self._is_open[number] = True  # from now on others read it
        self._closed -= was_closed

    def without(self, numbers: Sequence[int]) -> "FieldFiles":
        """Return a table in which these shards are closed."""
        files = FieldFiles(self._field, len(self._is_open))
        files.is_direct, files._is_compressed = self.is_direct, self._is_compressed
        files._kernel, files._table = self._kernel, self._table.without(numbers)
        files._is_open = self._is_open.copy()
        files._is_open[numbers] = False
        files._closed = int((~files._is_open).sum())
        return files

    def read(self, shard: Indices, local: Indices, run: int = 1) -> Rows:
        """Return rows [run * n, *shape] of open shards, as ``runs`` numbers them.

        Args:
            shard: [n] the shard of each run.
            local: [n] the first of its rows.
            run: consecutive rows of each.
        """
        if self._is_compressed and self._kernel is not None:
            rows = empty_rows(run * len(local), self._row_bytes)
            self._kernel.read(self._table, shard, local, rows, run)
            return rows.reshape(-1).view(self._dtype).reshape(-1, *self._field.shape)
        copied = np.empty((run * len(local), *self._field.shape), self._dtype)
        gather(self._table, shard, local, copied, run)
        return copied
