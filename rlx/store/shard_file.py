"""One file of independently compressed chunks, then their index, then its crc32c.

This is the file of zarr v3's ``sharding_indexed`` codec with the index at the end: (offset, length) of every chunk as
little-endian u64, then the crc32c of the index as little-endian u32.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.files.disk import written_file
from rlx.files.remote_files import AnyPath, RemotePath, local, remote
from rlx.schema import Field
from rlx.store.array import ArrayReader, Rows
from rlx.store.chunk_codec import Bytes, ChunkCodec, ZstdChunks, most_bytes
from rlx.store.native.mapping import MappedFile, MemoryFile
from rlx.store.raw_file import close_quietly

INDEX_ENTRY_BYTES = 16
CRC_BYTES = 4
# A read of this size is worth asking the kernel for read-ahead.
_LONG_BYTES = 1 << 16
# What one thread encodes at a time, and how many such parts may wait for each thread: 8 MiB.
_PART_BYTES = 2**20
_WAITING_PARTS = 8


class ShardFileWriter:
    """Writer of rows to a shard file, ``chunk`` rows a chunk; the last chunk is filled up with zeros.

    With several threads, rows are encoded while the caller makes the next ones, and must not change before ``close``.
    """

    def __init__(self, path: Path, field: Field, codec: ChunkCodec, chunk: int, threads: int = 1) -> None:
        self._path = path
        self._codec = codec
        self._chunk = chunk
        self._dtype = np.dtype(field.dtype).newbyteorder("<")
        self._row_bytes = field.row_bytes
        self._file: BinaryIO | None = None
        self._lengths: list[int] = []
        self._left = np.empty((0, self._row_bytes), np.uint8)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode") if threads > 1 else None
        self._encoded: deque[Future[Sequence[Bytes]]] = deque()
        self.rows = 0

    def append(self, rows: Rows) -> None:
        """Add [n, *shape] rows."""
        if not len(rows):
            return
        self.rows += len(rows)
        raw = np.ascontiguousarray(rows, self._dtype).reshape(len(rows), -1).view(np.uint8)
        if len(self._left):
            raw = np.concatenate([self._left, raw])
        whole = len(raw) - len(raw) % self._chunk
        self._write(raw[:whole])
        self._left = raw[whole:].copy()

    def _write(self, raw: NDArray[np.uint8]) -> None:
        if not len(raw):
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = written_file(self._path)
        chunks = raw.reshape(-1, self._chunk * self._row_bytes)
        if self._pool is None:
            self._put(self._codec.encode(chunks))
            return
        part = max(1, _PART_BYTES // chunks.shape[1])
        for start in range(0, len(chunks), part):
            self._encoded.append(self._pool.submit(self._codec.encode, chunks[start : start + part]))
        self._drain(_WAITING_PARTS * self._threads)

    def _drain(self, waiting: int = 0) -> None:
        while len(self._encoded) > waiting:
            self._put(self._encoded.popleft().result())

    def _put(self, encoded: Sequence[Bytes]) -> None:
        assert self._file is not None
        self._lengths += [len(chunk) for chunk in encoded]
        self._file.writelines(encoded)

    def close(self) -> None:
        """Write the last chunk and the index."""
        if len(self._left):
            filling = np.zeros((self._chunk - len(self._left), self._row_bytes), np.uint8)
            self._write(np.concatenate([self._left, filling]))
        self._drain()
        self._stop()
        if self._file is None:
            return
        lengths = np.array(self._lengths, "<u8")
        index = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1).tobytes()
        self._file.write(index + google_crc32c.value(index).to_bytes(CRC_BYTES, "little"))
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._stop()
        close_quietly(self._file)

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class ChunkReader(ArrayReader):
    """Reader of rows of a shard file that decodes requested chunks only."""

    def __init__(self, path: AnyPath, field: Field, codec: ChunkCodec, chunk: int) -> None:
        self._path = path
        self._dtype = np.dtype(field.dtype).newbyteorder("<")
        self._shape = field.shape
        self.codec = codec
        self.chunk = chunk

    @abstractmethod
    def _located(self, chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return [n, 2] offset and length of these chunks."""

    @abstractmethod
    def _pieces(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of the file in these ranges; too few of them where one points past the end."""

    def read(self, rows: NDArray[np.int64]) -> Rows:
        """Return the rows at these indices."""
        if self.chunk == 1:
            return self._typed(self._decode(rows))
        chunks, inverse = np.unique(rows // self.chunk, return_inverse=True)
        decoded = self._typed(self._decode(chunks))
        return decoded.take(inverse * self.chunk + rows % self.chunk, axis=0)

    def read_range(self, start: int, stop: int) -> Rows:
        """Return the rows from start to stop."""
        first = start // self.chunk
        chunks = np.arange(first, -(-stop // self.chunk) if stop > start else first)
        return self._typed(self._decode(chunks))[start - first * self.chunk :][: stop - start]

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> Rows:
        """Return the rows of these runs."""
        return self.read(np.concatenate([np.arange(start, stop) for start, stop in runs]))

    def _decode(self, chunks: NDArray[np.int64]) -> NDArray[np.uint8]:
        located = self._located(chunks)
        try:
            if isinstance(self.codec, ZstdChunks):
                return self.codec.decode_run(self._pieces(_joined(located)), len(located))
            return self.codec.decode(self._pieces([(start, start + length) for start, length in located.tolist()]))
        except CorruptDatasetError as exc:
            raise CorruptDatasetError(f"{self._path} is damaged: {exc}") from exc

    def _typed(self, decoded: NDArray[np.uint8]) -> Rows:
        return decoded.reshape(-1).view(self._dtype).reshape(-1, *self._shape)


def _joined(located: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Return where chunks begin and end, with chunks that are adjacent in the file taken as one."""
    starts, stops = located[:, 0], located[:, 0] + located[:, 1]
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts = starts[np.concatenate([[0], breaks])[: len(starts)]].tolist()
    lasts = stops[np.concatenate([breaks - 1, [-1]])[: len(stops)]].tolist()
    return list(zip(firsts, lasts, strict=True))


class ShardFileReader(ChunkReader):
    """Reader of rows of a shard file through a memory map.

    Args:
        file: the file to read instead of a map, if it is remote.

    Attributes:
        index: [chunks, 2] offset and length of every chunk.
    """

    def __init__(
        self, path: AnyPath, field: Field, codec: ChunkCodec, *, chunk: int, rows: int, file: MemoryFile | None = None
    ) -> None:
        super().__init__(path, field, codec, chunk)
        self.file = memoryview(b"")
        self.index = np.empty((0, 2), "<u8")
        if rows:
            self._map(path, -(-rows // chunk), file)

    def _map(self, path: AnyPath, chunks: int, file: MemoryFile | None) -> None:
        index_bytes = chunks * INDEX_ENTRY_BYTES + CRC_BYTES
        try:
            mapped = file if (here := local(path)) is None else MappedFile(here)
            assert mapped is not None
            self._mapped = mapped
        except ValueError as exc:
            raise CorruptDatasetError(f"{path} is empty, expected an index of {index_bytes:,} bytes") from exc
        # A step is a hundredth of what the kernel would read around it.
        self._mapped.read_at_random()
        self.file = self._mapped.memory
        if len(self.file) < index_bytes:
            raise CorruptDatasetError(f"{path} has {len(self.file):,} bytes, expected an index of {index_bytes:,}")
        index = self.file[len(self.file) - index_bytes : len(self.file) - CRC_BYTES]
        self.index = np.frombuffer(index, "<u8").reshape(chunks, 2)

    def release(self) -> None:
        """Give back the pages that were read; they stay in the kernel's cache."""
        if len(self.file):
            self._mapped.release()

    def check_length(self) -> None:
        """Raise CorruptDatasetError if the file has been cut since it was opened."""
        if len(self.file):
            self._mapped.check_length()

    def _located(self, chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        located = self.index[chunks]
        start, length = located.T
        size = np.uint64(len(self.file))
        if ((length > size) | (start > size - np.minimum(length, size))).any():
            raise CorruptDatasetError(f"{self._path} is damaged: its index points past the end of its file")
        return located

    def _pieces(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        for first, last in ranges:
            if _LONG_BYTES <= last - first <= len(self.file) - first:
                self._mapped.read_soon(first, last)
        return [self.file[first:last] for first, last in ranges]


class RangedShardReader(ChunkReader):
    """Reader of rows of a shard file by ranges of bytes; of the index, too, it fetches only the needed part."""

    def __init__(self, path: RemotePath, field: Field, codec: ChunkCodec, *, chunk: int, rows: int) -> None:
        super().__init__(path, field, codec, chunk)
        self.path, self.rows = path, rows
        self._index_start = 0
        if rows:
            index_bytes = -(-rows // chunk) * INDEX_ENTRY_BYTES + CRC_BYTES
            self._index_start = path.length - index_bytes
            if self._index_start < 0:
                raise CorruptDatasetError(f"{path} has {path.length:,} bytes, expected an index of {index_bytes:,}")

    def _located(self, chunks: NDArray[np.int64]) -> NDArray[np.uint64]:
        starts = (self._index_start + chunks * INDEX_ENTRY_BYTES).tolist()
        entries = self.path.pieces([(start, start + INDEX_ENTRY_BYTES) for start in starts])
        located = np.frombuffer(b"".join(entries), "<u8").reshape(-1, 2)
        # A damaged index may claim any length: it is checked before all that is fetched.
        most, claimed = most_bytes(self.codec.chunk_bytes, len(chunks)), sum(located[:, 1].tolist())
        if claimed > most:
            raise CorruptDatasetError(f"{self._path} is damaged: {len(chunks)} chunks of {claimed:,} bytes")
        return located

    def _pieces(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self.path.pieces(ranges)


def shard_reader(
    path: AnyPath, field: Field, codec: ChunkCodec, *, chunk: int, rows: int
) -> ShardFileReader | RangedShardReader:
    """Return a reader of a shard file, here or far away."""
    if (far := remote(path)) is not None:
        return RangedShardReader(far, field, codec, chunk=chunk, rows=rows)
    return ShardFileReader(path, field, codec, chunk=chunk, rows=rows)
