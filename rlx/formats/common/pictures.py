"""Pictures of observations: the order of their axes, and PNG, JPEG and WebP files."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.source import MalformedError
from rlx.schema import Field

_MAX_CHANNELS = 4
_MIN_SIDE = 8
_PNG_LEVEL = 1
# Grey, colour, and colour with transparency; other numbers of channels have no conventional meaning.
_PNG_CHANNELS = frozenset({1, 3, 4})
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">4x4sIIBB")
_COLOUR_TYPES = {0: 1, 2: 3, 4: 2, 6: 4}  # channels of PNG's colour types
_JPEG = b"\xff\xd8\xff"
_JPEG_WITHOUT_SIZE = frozenset({0xC4, 0xC8, 0xCC, *range(0xD0, 0xD8), 0x01})
_RIFF, _WEBP = b"RIFF", b"WEBP"
_WEBP_BYTES = 30  # enough to read the size
_WEBP_ALPHA, _WEBP_ANIMATED = 0x10, 0x02
_FAILURES = (imagecodecs.PngError, imagecodecs.Jpeg8Error, imagecodecs.WebpError, ValueError)
Rows = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows of a field as a format wants them.

    Args:
        arrange: returns rows [n, *shape] for rows of the field.
    """

    shape: tuple[int, ...]
    arrange: Callable[[Rows], Rows]

    def loss(self, name: str, field: Field) -> list[str]:
        """Return the loss of the field's shape; empty if it stays."""
        return [] if self.shape == field.shape else [f"{name} as {list(field.shape)}: it becomes {list(self.shape)}"]


def as_it_is(field: Field) -> Arranged:
    """Return rows in the field's own shape."""
    return Arranged(field.shape, lambda rows: rows)


def channels_first(field: Field) -> Arranged:
    """Return pictures [H, W] and [H, W, C] as [1, H, W] and [C, H, W]; anything else as it is."""
    if _is_plane(field):
        return Arranged((1, *field.shape), lambda rows: rows[:, None])
    if _has_channels(field, -1):
        *plane, channels = field.shape
        return Arranged((channels, *plane), lambda rows: np.moveaxis(rows, -1, 1))
    return as_it_is(field)


def channels_last(field: Field) -> Arranged:
    """Return pictures [H, W] and [C, H, W] as [H, W, 1] and [H, W, C]; anything else as it is."""
    if _is_plane(field):
        return Arranged((*field.shape, 1), lambda rows: rows[..., None])
    if _has_channels(field, 0):
        channels, *plane = field.shape
        return Arranged((*plane, channels), lambda rows: np.moveaxis(rows, 1, -1))
    return as_it_is(field)


def _is_plane(field: Field) -> bool:
    return field.dtype == "uint8" and len(field.shape) == 2 and min(field.shape) >= _MIN_SIDE


def _has_channels(field: Field, axis: int) -> bool:
    """Return whether rows are pictures whose channels are the first axis (0) or the last one (-1)."""
    if field.dtype != "uint8" or len(field.shape) != 3 or field.shape[axis] > _MAX_CHANNELS:
        return False
    plane = field.shape[1:] if axis == 0 else field.shape[:-1]
    return min(plane) >= _MIN_SIDE


def as_pictures(field: Field) -> Arranged | None:
    """Return rows of a field as pictures [H, W, C]; None if they are not pictures.

    Example:
        >>> from rlx.schema import Role
        >>> as_pictures(Field("uint8", (84, 84), Role.OBSERVATION)).shape
        (84, 84, 1)
        >>> as_pictures(Field("float32", (84, 84), Role.OBSERVATION))
    """
    arranged = channels_last(field)
    is_picture = field.dtype == "uint8" and len(arranged.shape) == 3 and arranged.shape[-1] in _PNG_CHANNELS
    return arranged if is_picture and min(arranged.shape[:2]) >= 1 else None


def encode(pictures: NDArray[np.generic]) -> Iterator[bytes]:
    """Yield the PNG of each of n pictures [n, H, W, C]."""
    for picture in np.ascontiguousarray(pictures):
        yield bytes(imagecodecs.png_encode(picture[..., 0] if picture.shape[-1] == 1 else picture, level=_PNG_LEVEL))


def is_jpeg(file: bytes | memoryview) -> bool:
    """Return whether a file is a JPEG."""
    return bytes(file[: len(_JPEG)]) == _JPEG


def lossy_encoding(file: bytes | memoryview) -> str | None:
    """Return JPEG or WebP if a file is a picture in that encoding and lossy; None otherwise."""
    if is_jpeg(file):
        return "JPEG"
    content = bytes(file)
    return "WebP" if _is_webp(content) and b"VP8L" not in _webp_chunks(content) else None


def lossy_notes(encodings: Mapping[str, str | None]) -> dict[str, list[str]]:
    """Return the notes of fields whose pictures are lossy, by the encoding of each.

    Example:
        >>> lossy_notes({"observation/top": "JPEG", "observation/side": None})
        {'lossy_jpeg': ['observation/top']}
    """
    found: dict[str, list[str]] = {}
    for name, encoding in encodings.items():
        if encoding is not None:
            found.setdefault(f"lossy_{encoding.lower()}", []).append(name)
    return found


def decode_picture(file: bytes | memoryview, shape: tuple[int, ...], dtype: str = "uint8") -> NDArray[Any]:
    """Return the picture [H, W, C] in a file.

    Args:
        shape: the expected one.
        dtype: ``uint8``, or ``uint16`` for a PNG of 16 bits per channel.

    Raises:
        MalformedError: the file is damaged, or has another shape or dtype.
    """
    content = bytes(file)
    claimed = _png_shape(content, 16) if dtype == "uint16" else picture_shape(content)
    if claimed != shape:
        raise MalformedError(f"expected a picture of {list(shape)}, found {list(claimed)}")
    decode = imagecodecs.jpeg8_decode if is_jpeg(content) else imagecodecs.png_decode
    try:
        picture: NDArray[Any] = (imagecodecs.webp_decode if _is_webp(content) else decode)(content)
    except _FAILURES as exc:
        raise MalformedError(f"expected a whole picture, found: {exc}") from exc
    if picture.dtype != dtype or picture.size != np.prod(shape):
        raise MalformedError(f"expected {dtype}{list(shape)}, found {picture.dtype}{list(picture.shape)}")
    return picture.reshape(shape)


def picture_shape(content: bytes) -> tuple[int, ...]:
    """Return the shape [H, W, C] in the header of a picture; raises MalformedError for other files."""
    if _is_webp(content):
        return _webp_shape(content)
    return _jpeg_shape(content) if is_jpeg(content) else _png_shape(content)


def _png_shape(content: bytes, bits: int = 8) -> tuple[int, ...]:
    if content[: len(_SIGNATURE)] != _SIGNATURE or len(content) < len(_SIGNATURE) + _HEADER.size:
        raise MalformedError(f"expected a PNG, a JPEG or a WebP, found {content[:8].hex()}")
    kind, width, height, depth, colour = _HEADER.unpack_from(content, len(_SIGNATURE))
    if kind != b"IHDR" or depth != bits or colour not in _COLOUR_TYPES:
        raise MalformedError(f"expected a PNG of {bits} bits a channel, found depth {depth} of colour type {colour}")
    return height, width, _COLOUR_TYPES[colour]


def _jpeg_shape(content: bytes) -> tuple[int, ...]:
    """Return the shape in the frame's header; skips the marker segments before it."""
    at = 2
    while at + 9 < len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _JPEG_WITHOUT_SIZE:
            height, width, channels = struct.unpack_from(">HHB", content, at + 5)
            return height, width, channels
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    raise MalformedError("expected a JPEG, found no header of a frame")


def _is_webp(content: bytes) -> bool:
    return content[:4] == _RIFF and content[8:12] == _WEBP


def _webp_chunks(content: bytes) -> Iterator[bytes]:
    at = 12
    while at + 8 <= len(content):
        yield content[at : at + 4]
        at += 8 + int.from_bytes(content[at + 4 : at + 8], "little")
        at += at % 2  # chunks are padded to even sizes


def _webp_shape(content: bytes) -> tuple[int, ...]:
    """Return the shape in the header of the first chunk: of a lossy, a lossless or an extended file."""
    kind = content[12:16]
    if len(content) < _WEBP_BYTES and kind != b"VP8L":
        raise MalformedError(f"expected a WebP, found {len(content)} bytes")
    if kind == b"VP8 ":
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", content, 26))
        return height, width, 3
    if kind == b"VP8L" and len(content) >= 25:
        bits = int.from_bytes(content[21:25], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3
    if kind != b"VP8X" or content[20] & _WEBP_ANIMATED:
        raise MalformedError(f"expected a WebP of one picture, found {kind!r}")
    width, height = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
    return height, width, 4 if content[20] & _WEBP_ALPHA else 3
