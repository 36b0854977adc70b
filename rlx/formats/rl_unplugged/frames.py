"""Atari frames from their PNGs, every checksum verified.

libspng and libpng inflate row by row, which takes twice as long as libdeflate for a whole frame, and libspng skips the
checksum of the last chunk. So frames are checked and inflated here, one below the other into the stored blocks of one
tall PNG, whose filters libspng undoes; an empty row separates frames, as filters refer to the row above.
"""

import struct
from collections.abc import Sequence

import imagecodecs
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from rlx.formats.common.source import MalformedError

FRAME_SHAPE = (84, 84)
# An uncompressed frame has 7 kB; larger ones are other pictures, or hostile.
MAX_PNG_BYTES = 1 << 14
_HEIGHT, _WIDTH = FRAME_SHAPE
_ROW_BYTES = 1 + _WIDTH  # the filter's number comes first
_INFLATED_BYTES = _HEIGHT * _ROW_BYTES
_PLACE_BYTES = (_HEIGHT + 1) * _ROW_BYTES  # with the empty row
_STACKED_FRAMES = 32  # keeps the working set in the processor's cache
_BLOCK_FRAMES = 9  # a stored block of deflate has at most 65,535 bytes
_LAST_FILTER = 4

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")
_CRC = struct.Struct(">I")
_ZLIB_HEAD = b"\x78\x01"
_STORED = struct.Struct("<BHH")  # whether the block is the last, its length, and that inverted


def decode_frames(pngs: Sequence[bytes | memoryview], *, first: int = 0) -> NDArray[np.uint8]:
    """Return the frames [n, 84, 84] of n PNGs.

    Args:
        first: number of the first frame, for messages.

    Raises:
        MalformedError: a PNG is damaged, or has another size.
    """
    frames = np.empty((len(pngs), *FRAME_SHAPE), np.uint8)
    stack: _TallPng | None = None
    for start in range(0, len(pngs), _STACKED_FRAMES):
        batch = pngs[start : start + _STACKED_FRAMES]
        if stack is None or stack.count != len(batch):
            stack = _TallPng(len(batch))
        for number, png in enumerate(batch):
            try:
                _inflate(_image_data(png), stack.places[number])
            except MalformedError as exc:
                raise MalformedError(f"frame {first + start + number}: {exc}") from exc
        stack.check_filters(first + start)
        frames[start : start + len(batch)] = stack.decoded()
    return frames


class _TallPng:
    """A PNG of frames one below the other, whose rows are stored and not deflated.

    Attributes:
        places: memory of each frame's rows [84 * 85], each with its filter first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        blocks = [min(_BLOCK_FRAMES, count - first) for first in range(0, count, _BLOCK_FRAMES)]
        data_bytes = len(_ZLIB_HEAD) + len(blocks) * _STORED.size + count * _PLACE_BYTES + _CRC.size
        head = _head(count * (_HEIGHT + 1)) + _CHUNK.pack(data_bytes, b"IDAT") + _ZLIB_HEAD
        tail = bytes(_CRC.size) + bytes(_CRC.size) + _chunk(b"IEND")
        self._png = bytearray(len(head) + len(blocks) * _STORED.size + count * _PLACE_BYTES) + tail
        self._png[: len(head)] = head
        self._kind_at = len(head) - len(_ZLIB_HEAD) - 4
        room, at = memoryview(self._png), len(head)
        self._blocks: list[memoryview] = []
        self.places: list[memoryview] = []
        filters: list[int] = []
        for number, frames in enumerate(blocks):
            num_bytes = frames * _PLACE_BYTES
            is_last = number == len(blocks) - 1
            _STORED.pack_into(self._png, at, is_last, num_bytes, num_bytes ^ 0xFFFF)
            at += _STORED.size
            self._blocks.append(room[at : at + num_bytes])
            for place in range(at, at + num_bytes, _PLACE_BYTES):
                self.places.append(room[place : place + _INFLATED_BYTES])
                filters.append(place)
            at += num_bytes
        self._sum_at = at
        self._filters = np.array(filters)[:, None] + np.arange(_HEIGHT) * _ROW_BYTES

    def check_filters(self, first: int) -> None:
        """Raise MalformedError if a row has an unknown filter."""
        filters = np.frombuffer(self._png, np.uint8)[self._filters]
        if filters.max() > _LAST_FILTER:
            number = int(np.argmax(filters.max(axis=1) > _LAST_FILTER))
            found = filters[number].max()
            raise MalformedError(f"frame {first + number}: filter: expected at most {_LAST_FILTER}, found {found}")

    def decoded(self) -> NDArray[np.uint8]:
        """Return the frames [n, 84, 84]."""
        total = 1
        for block in self._blocks:
            total = isal_zlib.adler32(block, total)
        _CRC.pack_into(self._png, self._sum_at, total)
        end = self._sum_at + _CRC.size
        _CRC.pack_into(self._png, end, isal_zlib.crc32(memoryview(self._png)[self._kind_at : end]))
        frames: NDArray[np.uint8] = imagecodecs.spng_decode(self._png).reshape(-1, _HEIGHT + 1, _WIDTH)[:, :_HEIGHT]
        return frames


def _image_data(png: bytes | memoryview) -> bytes:
    """Return the deflated rows in a PNG, after checking its header and the checksums of its chunks."""
    if png[: len(_HEAD)] != _HEAD:
        raise MalformedError(f"expected a PNG of 84x84 8-bit grey, found {bytes(png[: len(_HEAD)]).hex()}")
    end = len(png)
    if end > MAX_PNG_BYTES:
        raise MalformedError(f"expected at most {MAX_PNG_BYTES:,} bytes, found {end:,}")
    at, kind, data = len(_HEAD), b"", []
    while kind != b"IEND":
        if end - at < _CHUNK.size + _CRC.size:
            raise MalformedError("the PNG is cut off")
        length, kind = _CHUNK.unpack_from(png, at)
        stop = at + _CHUNK.size + length
        if stop + _CRC.size > end:
            raise MalformedError(f"chunk {kind!r} of {length:,} bytes is cut off")
        found = isal_zlib.crc32(png[at + 4 : stop])
        (expected,) = _CRC.unpack_from(png, stop)
        if expected != found:
            raise MalformedError(f"crc32 of chunk {kind!r}: expected {expected:#010x}, found {found:#010x}")
        if kind == b"IDAT":
            data.append(png[at + _CHUNK.size : stop])
        at = stop + _CRC.size
    if at != end:
        raise MalformedError(f"trailing data after IEND: {end - at:,} bytes")
    return b"".join(data)


def _inflate(deflated: bytes, rows: memoryview) -> None:
    try:
        inflated = imagecodecs.deflate_decode(deflated, out=rows)
    except (imagecodecs.DeflateError, ValueError) as exc:
        raise MalformedError(f"expected {_INFLATED_BYTES:,} deflated bytes, found: {exc}") from exc
    if len(inflated) != _INFLATED_BYTES:
        raise MalformedError(f"expected {_INFLATED_BYTES:,} deflated bytes, found {len(inflated):,}")


def _chunk(kind_and_content: bytes) -> bytes:
    crc = isal_zlib.crc32(kind_and_content)
    return _CRC.pack(len(kind_and_content) - 4) + kind_and_content + _CRC.pack(crc)


def _head(height: int) -> bytes:
    # Bit depth 8, grey, deflate, the five filters, not interlaced.
    return _SIGNATURE + _chunk(b"IHDR" + struct.pack(">IIBBBBB", _WIDTH, height, 8, 0, 0, 0, 0))


_HEAD = _head(_HEIGHT)
