"""Where the rows of a field are in memory, over all shards: rows of many shards are gathered by one numpy call."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.schema import Field
from rlx.store.array import ArrayReader, Rows
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.kernel import FileTable, Kernel, address, kernel
from rlx.store.memory import empty_rows
from rlx.store.raw_file import FIRST_ADDRESS, MEMORY, RawFileReader, rows_at
from rlx.store.shard_file import INDEX_ENTRY_BYTES, ShardFileReader

Indices = NDArray[np.int64]
_ENTRY = np.dtype([("start", "<i8"), ("length", "<i8")])


def runs(shard: Indices, local: Indices, run: int) -> tuple[Indices, Indices]:
    """Return [run * n] the shards and the numbers of rows: the first rows of all runs, then the second ones."""
    return (shard, local) if run == 1 else (np.tile(shard, run), np.add.outer(np.arange(run), local).reshape(-1))


class FieldFiles:
    """The open files of one field, by shard.

    Files are added while others read. To close files, make a new table with ``without``: readers of this one
    keep its maps alive.

    Attributes:
        is_direct: whether all files opened so far have rows of numbers, or chunks of one row that zstd compressed.
    """

    def __init__(self, field: Field, shards: int) -> None:
        self.is_direct = not field.is_text and field.row_bytes > 0
        self._field, self._row_bytes = field, field.row_bytes
        self._dtype = field.numpy_dtype.newbyteorder("<")
        self._window = np.dtype((np.void, field.row_bytes or 1))
        self._first = np.zeros(shards, np.int64)  # place of the first row, or of its entry in the index; 0: not open
        self._data = np.zeros(shards, np.int64)  # place of the file of compressed rows
        self._size = np.zeros(shards, np.int64)
        self._rows = np.zeros(shards, np.int64)
        self._codec = np.zeros(shards, np.int64)
        self._codecs: list[ZstdChunks] = []
        self._readers: list[ArrayReader | None] = [None] * shards
        self._closed = shards
        self._tables: dict[tuple[Kernel, int], tuple[FileTable, tuple[Indices, ...]]] = {}

    def lacks(self, shard: Indices) -> list[int]:
        """Return which of these shards [n] are not open."""
        if not self._closed:
            return []
        first = self._first[shard]
        return [] if first.all() else np.unique(shard[first == 0]).tolist()

    def add(self, number: int, reader: ArrayReader) -> None:
        """Add the file of a shard."""
        self._readers[number] = reader
        if isinstance(reader, RawFileReader):
            place = reader.place
        elif isinstance(reader, ShardFileReader) and isinstance(reader.codec, ZstdChunks) and reader.chunk == 1:
            place, self._data[number], self._size[number] = reader.index_place, reader.place, len(reader.file)
            self._rows[number] = len(reader.index)
            if reader.codec not in self._codecs:
                self._codecs.append(reader.codec)
            self._codec[number] = self._codecs.index(reader.codec)
        else:
            self.is_direct = False
            place = 1
        was_closed = not self._first[number]
        self._first[number] = place  # from now on others read it
        self._closed -= was_closed

    def without(self, numbers: Sequence[int]) -> "FieldFiles":
        """Return a table in which these shards are closed."""
        table = FieldFiles(self._field, len(self._first))
        table.is_direct, table._codecs = self.is_direct, self._codecs
        # Copied, because a shard that is opened again is mapped elsewhere.
        for name in ("_first", "_data", "_size", "_rows", "_codec"):
            setattr(table, name, getattr(self, name).copy())
        table._readers = self._readers.copy()
        table._first[numbers] = 0
        table._closed = int((table._first == 0).sum())
        for number in numbers:
            table._readers[number] = None
        return table

    @property
    def copies_repeats(self) -> bool:
        """Whether a row that is asked for twice is read once and copied, or was not decoded anyway."""
        return self.is_direct and (not self._codecs or kernel() is not None)

    def read(self, shard: Indices, local: Indices, run: int = 1) -> Rows:
        """Return rows [run * n, *shape] of open shards, as ``runs`` numbers them.

        Args:
            shard: [n] the shard of each run.
            local: [n] the first of its rows.
            run: consecutive rows of each.
        """
        compiled = kernel() if self._codecs else None
        if compiled is not None:
            rows = empty_rows(run * len(local), self._row_bytes)
            compiled.read(self._table(compiled), shard, local, rows)
        else:
            shard, local = runs(shard, local, run)
            rows = (
                self._decoded_in_python(shard, local)
                if self._codecs
                else rows_at(self._first[shard] + local * self._row_bytes, self._window)
            )
        return rows.reshape(-1).view(self._dtype).reshape(-1, *self._field.shape)

    def _table(self, compiled: Kernel) -> int:
        key = (compiled, len(self._codecs))
        if key not in self._tables:
            digested = np.array([codec.digested_for(compiled) for codec in self._codecs[: key[1]]], np.uint64)
            arrays = (self._data, self._size, self._rows, self._codec, digested.view(np.int64))
            table = FileTable(FIRST_ADDRESS, *map(address, arrays), self._row_bytes)
            # The table has addresses of the arrays. Of two threads that make it, both use that of the first.
            self._tables.setdefault(key, (table, arrays))
        return ctypes.addressof(self._tables[key][0])

    def _decoded_in_python(self, shard: Indices, local: Indices) -> NDArray[np.uint8]:
        codec = self._codec[shard]
        if len(self._codecs) == 1 or (codec == codec[0]).all():
            chunks: ZstdChunks = self._codecs[codec[0]]
            return chunks.decode_run(self._pieces(shard, local), len(local))
        # Of merged datasets, every one has a dictionary of its own.
        rows = np.empty((len(local), self._row_bytes), np.uint8)
        for number in np.unique(codec).tolist():
            at = np.flatnonzero(codec == number)
            rows[at] = self._codecs[number].decode_run(self._pieces(shard[at], local[at]), len(at))
        return rows

    def _pieces(self, shard: Indices, local: Indices) -> list[memoryview]:
        """Return the compressed rows, those that are adjacent in memory in one piece."""
        entries = rows_at(self._first[shard] + local * INDEX_ENTRY_BYTES, _ENTRY)
        start, length = entries["start"], entries["length"]
        if (start < 0).any() or (length < 0).any() or (start > self._size[shard] - length).any():
            raise CorruptDatasetError("the index of compressed rows points past the end of its file")
        start = start + self._data[shard]
        stop = start + length
        apart = start[1:] != stop[:-1]
        if not apart.all():
            begins, ends = np.ones((2, len(start)), bool)
            begins[1:] = ends[:-1] = apart
            start, stop = start[begins], stop[ends]
        return [MEMORY[first:last] for first, last in zip(start.tolist(), stop.tolist(), strict=True)]
