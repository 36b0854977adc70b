"""Turning rows into independently decodable chunks of bytes and back: zstd with and without a dictionary, lz4, none."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import compress
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.fork import on_fork
from rlx.store.codec import Codec
from rlx.store.dictionary import dictionary_metadata, zstandard_dictionary
from rlx.store.native.kernel import Encoder, Kernel, Numbers, RowArrays, Search, kernel
from rlx.store.native.libzstd import Digested
from rlx.store.native.memory import empty_rows

Bytes = bytes | memoryview
_MIN_WINDOW_BYTES = 1024
# Against a dictionary of whole frames, a greedy search among more matches is faster and compresses better than the
# library's own parameters (docs/performance_details.md). Other levels keep those.
_GREEDY: Mapping[str, int] = MappingProxyType(
    {"strategy": zstandard.STRATEGY_GREEDY, "min_match": 6, "target_length": 8}
)
_SEARCHES = MappingProxyType({6: {**_GREEDY, "search_log": 5}, **{n: {**_GREEDY, "search_log": 6} for n in (7, 8, 9)}})
_MAX_RATIO = 1 << 16  # of a frame to its compressed bytes, at most
_SHORT_FRAME = zstandard.ZstdCompressor().compress(b"0")


def decompressed(frame: bytes, expected: int) -> bytes:
    """Return the ``expected`` bytes that a zstd frame of another file than a shard's holds."""
    # A damaged size must not fill the memory.
    if expected > len(frame) * _MAX_RATIO:
        raise ValueError(f"expected {expected:,} bytes in {len(frame):,}")
    try:
        found = zstandard.frame_content_size(frame)
        if found != expected:
            raise ValueError(f"expected {expected:,} bytes, found {found:,}")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=max(1, expected))
    except zstandard.ZstdError as exc:
        raise ValueError(str(exc)) from exc


class ChunkCodec(Protocol):
    """Codec of chunks of equal size; any of them can be decoded without the others."""

    chunk_bytes: int

    def encode(self, rows: NDArray[np.uint8]) -> Sequence[Bytes]:
        """Return one encoded chunk for each row of [n, chunk_bytes]."""

    def decode(self, chunks: Sequence[Bytes]) -> NDArray[np.uint8]:
        """Return the rows [n, chunk_bytes] of n encoded chunks.

        Raises:
            CorruptDatasetError: a chunk is damaged.
        """

    def metadata(self) -> list[dict[str, Any]]:
        """Return the codecs of a chunk, after ``bytes``, as zarr v3 names them."""


def row_of(arrays: RowArrays, number: int) -> NDArray[np.uint8]:
    """Return one of the rows of arrays, which are numbered one array after the other."""
    for array in arrays:
        if 0 <= number < len(array):
            row: NDArray[np.uint8] = array[number]
            return row
        number -= len(array)
    raise IndexError(f"rows end {number:,} rows before the one that is asked for")


def most_bytes(chunk_bytes: int, count: int) -> int:
    """Return an upper limit of the encoded size of chunks: no codec adds more than a 128th and a header."""
    return count * (chunk_bytes + (chunk_bytes >> 7) + 256)


@lru_cache(maxsize=64)
def chunk_codec(codec: Codec, chunk_bytes: int, dictionary: bytes = b"") -> ChunkCodec:
    """Return the codec for chunks of ``chunk_bytes``; the dictionary is ``zstd-dict``'s.

    The same arguments give the same object, so that all shards of a dataset decode against one digested dictionary.
    """
    match codec.name:
        case "zstd-dict":
            return ZstdChunks(chunk_bytes, codec.level, dictionary)
        case "zstd":
            return ZstdChunks(chunk_bytes, codec.level)
        case "lz4":
            return Lz4Chunks(chunk_bytes, codec.level)
        case _:
            return RawChunks(chunk_bytes)


class ZstdChunks:
    """Zstandard frames (RFC 8878), against a dictionary if there is one.

    Args:
        worth: the dictionary is searched, which takes twice as long as a lookup, if that saves more than
            ``1 / worth`` of the bytes.
    """

    def __init__(self, chunk_bytes: int, level: int, dictionary: bytes = b"", *, worth: int = 32) -> None:
        self.worth = worth
        self.chunk_bytes = chunk_bytes
        self.level = level
        self.dictionary = dictionary
        self._local = threading.local()  # neither side of the zstandard library may be shared between threads
        self._renew_lock()
        on_fork(self, ZstdChunks._renew_lock)
        self._digested: zstandard.ZstdCompressionDict | None = None
        self._digested_for: dict[Kernel, Digested | None] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), worth=self.worth), (self.chunk_bytes, self.level, self.dictionary)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _digest(self) -> zstandard.ZstdCompressionDict | None:
        """Return the dictionary for decoding: megabytes, which all threads share."""
        with self._lock:
            if self._digested is None and self.dictionary:
                digested = zstandard_dictionary(self.dictionary)
                # The library digests it when it is first used, and two threads must not do that at once.
                zstandard.ZstdDecompressor(dict_data=digested).decompress(_SHORT_FRAME)
                self._digested = digested
            return self._digested

    def digested_for(self, compiled: Kernel) -> Digested | None:
        """Return the dictionary for decoding by the kernel; None without one. All threads share it."""
        with self._lock:
            if compiled not in self._digested_for:
                self._digested_for[compiled] = compiled.digested(self.dictionary)
            return self._digested_for[compiled]

    @property
    def _compressor(self) -> zstandard.ZstdCompressor:
        if not hasattr(self._local, "compressor"):
            self._local.compressor = self._new_compressor()
        compressor: zstandard.ZstdCompressor = self._local.compressor
        return compressor

    def _new_compressor(self) -> zstandard.ZstdCompressor:
        if not self.dictionary:
            return zstandard.ZstdCompressor(level=self.level)
        trained = zstandard_dictionary(self.dictionary)
        trained.precompute_compress(compression_params=self._parameters)
        return zstandard.ZstdCompressor(compression_params=self._parameters, dict_data=trained)

    @property
    def _parameters(self) -> zstandard.ZstdCompressionParameters:
        # Without the id of the dictionary, which stands beside it: 4 bytes of every frame.
        settings = {"write_dict_id": 0, **_SEARCHES.get(self.level, {})}
        return zstandard.ZstdCompressionParameters.from_level(
            self.level, source_size=self.chunk_bytes, dict_size=len(self.dictionary), **settings
        )

    def _encoder(self, compiled: Kernel) -> Encoder:
        encoder: Encoder | None = getattr(self._local, "encoder", None)
        if encoder is None or encoder.kernel is not compiled:
            search = None
            if self.dictionary:
                found = self._parameters
                search = Search(*(getattr(found, field[0]) for field in Search._fields_))
            encoder = Encoder(compiled, self.chunk_bytes, self.level, self.dictionary, search, self.worth)
            self._local.encoder = encoder
        return encoder

    @property
    def _decompressor(self) -> zstandard.ZstdDecompressor:
        if not hasattr(self._local, "decompressor"):
            window = max(1 << (self.chunk_bytes - 1).bit_length(), _MIN_WINDOW_BYTES)
            self._local.decompressor = zstandard.ZstdDecompressor(dict_data=self._digest(), max_window_size=window)
        decompressor: zstandard.ZstdDecompressor = self._local.decompressor
        return decompressor

    def encode(self, rows: NDArray[np.uint8]) -> Sequence[Bytes]:
        """Return one zstd frame for each row."""
        if not len(rows):
            return []
        segments = np.empty((len(rows), 2), "<u8")
        segments[:, 0] = np.arange(len(rows), dtype=np.uint64) * self.chunk_bytes
        segments[:, 1] = self.chunk_bytes
        buffer = zstandard.BufferWithSegments(np.ascontiguousarray(rows).data.cast("B"), segments.tobytes())
        encoded = self._compressor.multi_compress_to_buffer(buffer, threads=0)
        return [encoded[i].tobytes() for i in range(len(encoded))]

    def encode_rows(
        self, arrays: RowArrays, rows: Numbers, like: Numbers, out: NDArray[np.uint8], sizes: NDArray[np.int32]
    ) -> int:
        """Encode rows of arrays into ``out``, as ``Encoder.encode`` does, whose search finds other matches."""
        if (compiled := kernel()) is not None:
            return self._encoder(compiled).encode(arrays, rows, like, out, sizes)
        content = [row_of(arrays, row).tobytes() for row in rows.tolist()]
        is_new = [
            other < 0 or row != row_of(arrays, other).tobytes()
            for row, other in zip(content, like.tolist(), strict=True)
        ]
        joined = b"".join(compress(content, is_new))
        encoded = self.encode(np.frombuffer(joined, np.uint8).reshape(-1, self.chunk_bytes))
        sizes[:] = 0
        sizes[is_new] = [len(frame) for frame in encoded]
        ends = np.cumsum(sizes, dtype=np.int64)
        count = int(np.searchsorted(ends, len(out), side="right"))
        fitting = b"".join(encoded[: sum(is_new[:count])])
        out[: len(fitting)] = np.frombuffer(fitting, np.uint8)
        return count

    def decode(self, chunks: Sequence[Bytes]) -> NDArray[np.uint8]:
        """Return the rows of the zstd frames."""
        return self.decode_run(chunks, len(chunks))

    def decode_run(self, pieces: Sequence[Bytes], count: int) -> NDArray[np.uint8]:
        """Return the rows of zstd frames, decoded by one call straight into one array.

        The size that a damaged frame claims is never allocated: it must fit the rest of the array.

        Args:
            pieces: bytes of the file that, put together, are these frames.
        """
        # A damaged index may claim any length for every piece; what they add up to is checked before it is allocated.
        most = most_bytes(self.chunk_bytes, count)
        if sum(map(len, pieces)) > most:
            expected = f"{count} chunks of {self.chunk_bytes:,} bytes"
            raise CorruptDatasetError(
                f"compressed chunks of more than {most:,} bytes are longer than {expected} can be"
            )
        frames = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        rows = empty_rows(count, self.chunk_bytes)
        try:
            with self._decompressor.stream_reader(frames, read_across_frames=True) as reader:
                found = reader.readinto(rows.reshape(-1)) + len(reader.read(1))
        except zstandard.ZstdError as exc:
            raise CorruptDatasetError(f"a compressed chunk is damaged: {exc}") from exc
        if found != rows.size:
            raise CorruptDatasetError(f"compressed chunks hold {found:,} bytes, expected {rows.size:,}")
        return rows

    def metadata(self) -> list[dict[str, Any]]:
        """Return the standard ``zstd`` codec, or ``rlx.zstd_dict`` with its dictionary."""
        if not self.dictionary:
            return [{"name": "zstd", "configuration": {"level": self.level, "checksum": False}}]
        return [dictionary_metadata(self.level, self.dictionary)]


class Lz4Chunks:
    """LZ4 blocks after their length, as numcodecs and so zarr's ``numcodecs.lz4`` write them."""

    def __init__(self, chunk_bytes: int, level: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.level = level

    def encode(self, rows: NDArray[np.uint8]) -> Sequence[Bytes]:
        """Return one lz4 block for each row."""
        from numcodecs import lz4  # 0.3 s that only this codec needs

        return [lz4.compress(np.ascontiguousarray(row), self.level) for row in rows]

    def decode(self, chunks: Sequence[Bytes]) -> NDArray[np.uint8]:
        """Return the rows of the lz4 blocks."""
        from numcodecs import lz4

        rows = np.empty((len(chunks), self.chunk_bytes), np.uint8)
        for row, chunk in zip(rows, chunks, strict=True):
            if len(chunk) < 4 or int.from_bytes(chunk[:4], "little") != self.chunk_bytes:
                raise CorruptDatasetError(f"a compressed chunk is damaged: expected {self.chunk_bytes} bytes in it")
            try:
                lz4.decompress(chunk, row)
            except (RuntimeError, ValueError) as exc:
                raise CorruptDatasetError(f"a compressed chunk is damaged: {exc}") from exc
        return rows

    def metadata(self) -> list[dict[str, Any]]:
        """Return zarr's name for it."""
        return [{"name": "numcodecs.lz4", "configuration": {"acceleration": self.level}}]


class RawChunks:
    """Codec that leaves chunks unchanged."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes

    def encode(self, rows: NDArray[np.uint8]) -> Sequence[Bytes]:
        """Return the rows' own bytes."""
        return [row.tobytes() for row in rows]

    def decode(self, chunks: Sequence[Bytes]) -> NDArray[np.uint8]:
        """Return the rows of the chunks."""
        if any(len(chunk) != self.chunk_bytes for chunk in chunks):
            raise CorruptDatasetError(f"a chunk is damaged: expected {self.chunk_bytes} bytes in it")
        return np.frombuffer(bytearray().join(chunks), np.uint8).reshape(len(chunks), self.chunk_bytes)

    def metadata(self) -> list[dict[str, Any]]:
        """Return an empty list."""
        return []
