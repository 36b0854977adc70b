"""Image observations: detection, PNG, and palettes for GIF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import imported
from rlx.schema import Role, Schema

if TYPE_CHECKING:
    from PIL import Image


Frames = NDArray[np.uint8]
_MIN_SIDE = 16  # pixels; smaller arrays are not pictures
_MAX_COLOURS = 256  # of a PNG with a palette
_OF_PICTURES = 208  # the rest is for the captions
_PIECE = 2**12  # colours whose nearest are found together


def pictures(rows: NDArray[Any]) -> Frames | None:
    """Return observations as RGB images [n, height, width, 3], of stacks the newest; None if they are not images.

    Three planes are red, green and blue, as in PyTorch, not a stack of three.

    Example:
        >>> pictures(np.zeros((5, 4, 84, 84), np.uint8)).shape
        (5, 84, 84, 3)
        >>> pictures(np.zeros((5, 17), np.uint8)) is None
        True
    """
    if rows.dtype != np.uint8 or not 3 <= rows.ndim <= 5:
        return None
    if rows.ndim >= 4 and rows.shape[-3] == 3 and rows.shape[-1] not in (1, 3):
        rows = np.moveaxis(rows, -3, -1)
    if rows.ndim >= 4 and rows.shape[-1] in (1, 3):
        frames = rows if rows.ndim == 4 else rows[:, -1]
    elif rows.ndim == 3:
        frames = rows[..., None]
    else:
        stacked = rows.shape[1] if rows.ndim == 4 else rows.shape[1] * rows.shape[2]
        frames = rows.reshape(len(rows), stacked, *rows.shape[-2:])[:, -1][..., None]
    if min(frames.shape[1:3]) < _MIN_SIDE:
        return None
    coloured: Frames = np.broadcast_to(frames, (*frames.shape[:3], 3))
    return coloured


def picture_fields(schema: Schema) -> list[str]:
    """Return names of the image fields, observations first.

    Example:
        >>> picture_fields(Schema.of(observation=("uint8", (84, 84)), action=("int64", ())))
        ['observation']
    """
    names = sorted(schema, key=lambda name: schema[name].role != Role.OBSERVATION)
    return [name for name in names if pictures(schema[name].zeros(0)) is not None]


def picture_field(schema: Schema) -> str | None:
    """Return name of the first image observation; None without one."""
    return next((name for name in picture_fields(schema) if schema[name].role == Role.OBSERVATION), None)


def sheet(frames: Frames, columns: int) -> Frames:
    """Return [h, w, 3] of frames [n, height, width, 3] side by side in rows; the rest of the last row is black."""
    count, height, width, _ = frames.shape
    rows = -(-count // columns)
    cells = np.zeros((rows * columns, height, width, 3), np.uint8)
    cells[:count] = frames
    return cells.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)


def png(pixels: Frames, level: int = 6) -> bytes:
    """Return an image [height, width, 3] as lossless PNG, in grayscale or with a palette if possible.

    At level 1, always in RGB, which is faster.
    """
    written = io.BytesIO()
    # Pages served to this machine need speed, not size.
    image = image_of(pixels) if level == 1 else _reduced(pixels)
    image.save(written, "PNG", optimize=False, compress_level=level)
    return written.getvalue()


def _reduced(pixels: Frames) -> Image.Image:
    if (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 1] == pixels[..., 2]).all():
        return image_of(pixels[..., 0])
    # A table of all colours: np.unique would sort all pixels.
    found, coded = np.zeros(2**24, np.bool_), packed(pixels)
    found[coded] = True
    colours = np.flatnonzero(found)
    if len(colours) > _MAX_COLOURS:
        return image_of(pixels)
    places = np.zeros(2**24, np.uint8)
    places[colours] = np.arange(len(colours))
    indexed = image_of(places[coded])
    indexed.putpalette([channel for colour in colours.tolist() for channel in channels(colour)])
    return indexed


def packed(pixels: Frames) -> NDArray[np.uint32]:
    """Return [...] one number for each colour of [..., 3].

    Example:
        >>> channels(int(packed(np.array([1, 2, 3], np.uint8))))
        (1, 2, 3)
    """
    wide = pixels.astype(np.uint32)
    colours: NDArray[np.uint32] = (wide[..., 0] << np.uint32(16)) | (wide[..., 1] << np.uint32(8)) | wide[..., 2]
    return colours


def channels(colour: int) -> tuple[int, int, int]:
    """Return red, green and blue of a packed colour."""
    return colour >> 16, colour >> 8 & 255, colour & 255


def image_of(pixels: Frames) -> Image.Image:
    """Return an array [height, width, 3], or [height, width] of greys, as an image."""
    image: Image.Image = pillow().Image.fromarray(np.ascontiguousarray(pixels))
    return image


def pillow() -> Any:
    """Return the package PIL with its modules used here."""
    for part in ("Image", "ImageDraw", "ImageFont"):
        imported(f"PIL.{part}", "images need Pillow", "view")
    return imported("PIL", "images need Pillow", "view")


class Palette:
    """A palette, and frames in its colours.

    Args:
        pictures: images [h, w, 3] of one size: all their colours, or of more than 208 the nearest ones.
        captions: images [h, w, 3] of the captions: their most frequent colours, as many as fit.
    """

    def __init__(self, pictures: Sequence[Frames], captions: Sequence[Frames]) -> None:
        first, rest = (_by_frequency(parts) for parts in (pictures, captions))
        if len(first) > _OF_PICTURES:
            first = _near_to_all(pictures)
        colours = list(dict.fromkeys([*first, *rest]))[:_MAX_COLOURS]
        self._channels = [channels(colour) for colour in colours]
        # Every colour: its place in the palette, or -1 before its nearest one is looked up.
        self._places = np.full(2**24, -1, np.int16)
        self._places[colours] = np.arange(len(colours))

    def apply(self, frame: Image.Image) -> Image.Image:
        """Return the frame with a palette; a colour that is not in it becomes the nearest."""
        colours = packed(np.asarray(frame))
        places = self._places[colours]
        if (places < 0).any():
            missing = np.unique(colours[places < 0])
            for start in range(0, len(missing), _PIECE):
                self._find(missing[start : start + _PIECE])
            places = self._places[colours]
        indexed = image_of(places.astype(np.uint8))
        indexed.putpalette([channel for colour in self._channels for channel in colour])
        return indexed

    def _find(self, colours: NDArray[np.uint32]) -> None:
        wanted = np.array([channels(colour) for colour in colours.tolist()])
        distance = np.square(wanted[:, None] - np.array(self._channels)[None]).sum(axis=-1)
        self._places[colours] = distance.argmin(axis=1)


def _near_to_all(pictures: Sequence[Frames]) -> list[int]:
    """Return the colours of a median cut."""
    cut = image_of(np.concatenate(pictures)).quantize(_OF_PICTURES, pillow().Image.Quantize.MEDIANCUT)
    middles = np.array(cut.getpalette(), np.uint8).reshape(-1, 3)[:_OF_PICTURES]
    colours: list[int] = np.unique(packed(middles)).tolist()
    return colours


def _by_frequency(pictures: Sequence[Frames]) -> list[int]:
    colours, counts = np.unique(np.concatenate([packed(picture).ravel() for picture in pictures]), return_counts=True)
    ordered: list[int] = colours[np.argsort(-counts, kind="stable")].tolist()
    return ordered
