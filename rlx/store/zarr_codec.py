"""The frame codec as a zarr v3 codec, so that plain ``zarr.open`` reads it wherever rlx is installed.

zarr finds it through the entry point ``zarr.codecs``; rlx itself reads and writes shard files without zarr.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import zstandard
from zarr.abc.codec import BytesBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer

from rlx.store.chunk_codec import dictionary_metadata, parse_dictionary


@dataclass(frozen=True)
class ZstdDictCodec(BytesBytesCodec):
    """Zstandard frames against a raw-content dictionary of reference frames.

    Args:
        level: compression level.
        dictionary: the raw content: the bytes of the reference frames, one after the other.
    """

    level: int
    dictionary: bytes
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the codec that ``zarr.json`` describes."""
        level, dictionary = parse_dictionary(data["configuration"])
        return cls(level, dictionary)

    def to_dict(self) -> dict[str, Any]:
        """Return the codec as it stands in ``zarr.json``."""
        return dictionary_metadata(self.level, self.dictionary)

    def _trained(self) -> zstandard.ZstdCompressionDict:
        return zstandard.ZstdCompressionDict(self.dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        size = int(np.prod(chunk_spec.shape, dtype=np.int64)) * chunk_spec.dtype.to_native_dtype().itemsize
        frame = chunk_data.to_bytes()
        decoded = zstandard.ZstdDecompressor(dict_data=self._trained()).decompress(frame, max_output_size=size)
        return chunk_spec.prototype.buffer.from_bytes(decoded)

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        compressor = zstandard.ZstdCompressor(level=self.level, dict_data=self._trained())
        return chunk_spec.prototype.buffer.from_bytes(compressor.compress(chunk_data.to_bytes()))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size is unknown before encoding."""
        raise NotImplementedError
