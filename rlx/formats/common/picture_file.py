"""Pictures from PNG and JPEG files of a size that is known beforehand: nothing is decoded that claims another."""

import struct

import imagecodecs
import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">4x4sIIBB")
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by PNG's colour types
_JPEG = b"\xff\xd8\xff"
_JPEG_WITHOUT_SIZE = frozenset({0xC4, 0xC8, 0xCC, *range(0xD0, 0xD8), 0x01})
_FAILURES = (imagecodecs.PngError, imagecodecs.Jpeg8Error, ValueError)


class MalformedPictureError(ValueError):
    """The bytes are no picture of the shape that they should have."""


def is_jpeg(file: bytes | memoryview) -> bool:
    """Return whether it is a JPEG, which is lossy."""
    return bytes(file[: len(_JPEG)]) == _JPEG


def decode_picture(file: bytes | memoryview, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the picture [H, W, C] in a file.

    Args:
        file: a PNG or a JPEG.
        shape: that it is to have.

    Raises:
        MalformedPictureError: it is damaged, neither PNG nor JPEG, not of 8 bits a channel, or of another shape.
    """
    content = bytes(file)
    claimed = _jpeg_shape(content) if is_jpeg(content) else _png_shape(content)
    if claimed != shape:
        raise MalformedPictureError(f"expected a picture of {list(shape)}, found {list(claimed)}")
    decode = imagecodecs.jpeg8_decode if is_jpeg(content) else imagecodecs.png_decode
    try:
        picture: NDArray[np.uint8] = decode(content)
    except _FAILURES as exc:
        raise MalformedPictureError(f"expected a whole picture, found: {exc}") from exc
    if picture.dtype != np.uint8 or picture.size != np.prod(shape):
        raise MalformedPictureError(f"expected uint8{list(shape)}, found {picture.dtype}{list(picture.shape)}")
    return picture.reshape(shape)


def _png_shape(content: bytes) -> tuple[int, ...]:
    if content[: len(_SIGNATURE)] != _SIGNATURE or len(content) < len(_SIGNATURE) + _HEADER.size:
        raise MalformedPictureError(f"expected a PNG or a JPEG, found {content[:8].hex()}")
    kind, width, height, depth, colour = _HEADER.unpack_from(content, len(_SIGNATURE))
    if kind != b"IHDR" or depth != 8 or colour not in _CHANNELS:
        raise MalformedPictureError(f"expected a PNG of 8 bits a channel, found depth {depth} of colour type {colour}")
    return height, width, _CHANNELS[colour]


def _jpeg_shape(content: bytes) -> tuple[int, ...]:
    """Return the shape in the frame's header; skips the marker segments before it."""
    at = 2
    while at + 9 < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _JPEG_WITHOUT_SIZE:
            height, width, channels = struct.unpack_from(">HHB", content, at + 5)
            return height, width, channels
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    raise MalformedPictureError("expected a JPEG, found no header of a frame")
