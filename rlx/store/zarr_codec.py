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

from rlx.store.dictionary import dictionary_metadata, parse_dictionary, zstandard_dictionary


@dataclass(frozen=True)
class ZstdDictCodec(BytesBytesCodec):
    """Zstandard frames against a dictionary of reference frames, with entropy tables or without.

    Args:
        dictionary: entropy tables, if there are any, then the bytes of the reference frames.
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

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        size = int(np.prod(chunk_spec.shape, dtype=np.int64)) * chunk_spec.dtype.to_native_dtype().itemsize
        frame = chunk_data.to_bytes()
        decompressor = zstandard.ZstdDecompressor(dict_data=zstandard_dictionary(self.dictionary))
        decoded = decompressor.decompress(frame, max_output_size=size)
        return chunk_spec.prototype.buffer.from_bytes(decoded)

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        compressor = zstandard.ZstdCompressor(
            level=self.level, dict_data=zstandard_dictionary(self.dictionary), write_dict_id=False
        )
        return chunk_spec.prototype.buffer.from_bytes(compressor.compress(chunk_data.to_bytes()))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise: the size is unknown before encoding."""
        raise NotImplementedError
