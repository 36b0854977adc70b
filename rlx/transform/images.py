"""Transforms of images: resize, crop and grayscale."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError, imported
from rlx.numbers import check_whole
from rlx.schema import Field, Role, Schema, channel_axis
from rlx.transform.keys import numeric_fields
from rlx.transform.protocol import PerBlock

Pictures = NDArray[np.generic]
_COLOURS = 3
# Rows of pixels per call of OpenCV: half a megabyte of Atari frames stays in the processor's cache.
_TALL_ROWS = 8192


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Layout of the images in the rows of a field.

    Args:
        channels: numbers per pixel; None for images [H, W].
        channels_first: whether images are [C, H, W].
    """

    height: int
    width: int
    channels: int | None
    channels_first: bool = False

    @classmethod
    def of(cls, name: str, field: Field) -> "ImageLayout":
        """Return the layout of a field: [H, W], [H, W, C] or [C, H, W], with C at most 4.

        Example:
            >>> ImageLayout.of("camera", Field("uint8", (3, 84, 84), Role.OBSERVATION))
            ImageLayout(height=84, width=84, channels=3, channels_first=True)
        """
        shape = field.shape
        if len(shape) == 2:
            return cls(*shape, None)
        axis = channel_axis(shape)
        if axis == 2:
            return cls(shape[0], shape[1], shape[2])
        if axis == 0:
            return cls(shape[1], shape[2], shape[0], channels_first=True)
        raise TransformError(f"{name} is {field.dtype}{list(shape)}: expected images [H, W], [H, W, C] or [C, H, W]")

    @property
    def planes(self) -> tuple[int, tuple[int, ...]]:
        """Number of images in a row as OpenCV sees them, and the shape of a pixel."""
        if self.channels is None:
            return 1, ()
        return (self.channels, ()) if self.channels_first else (1, (self.channels,))

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of a row with images of this size."""
        if self.channels is None:
            return (height, width)
        return (self.channels, height, width) if self.channels_first else (height, width, self.channels)


class _OfPictures(PerBlock):
    """A transform of single images."""

    keys: tuple[str, ...]

    def field(self, name: str, field: Field) -> Field:
        """Return the field after the transform."""
        raise NotImplementedError

    def of(self, pictures: Pictures, layout: ImageLayout) -> Pictures:
        """Return the transformed images [n, ...]."""
        raise NotImplementedError

    def schema(self, schema: Schema) -> Schema:
        """Return the schema after the transform.

        Raises:
            TransformError: no observation is an image, or a field does not suit.
        """
        changed = {name: self.field(name, schema[name]) for name in picture_keys(schema, self.keys)}
        return Schema({**schema.fields, **changed})

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with transformed images."""
        keys = picture_keys(schema, self.keys)
        changed = {name: self.of(block.data[name], ImageLayout.of(name, schema[name])) for name in keys}
        return replace(block, data={**block.data, **changed})


def picture_keys(schema: Schema, keys: tuple[str, ...]) -> list[str]:
    """Return the fields to transform; by default all observations of two or three dimensions."""
    found = [name for name in numeric_fields(schema, keys) if keys or len(schema[name].shape) in (2, 3)]
    if not found:
        raise TransformError(
            f"expected an observation that is an image, found {', '.join(schema.names(Role.OBSERVATION))}"
        )
    return found


@dataclass(frozen=True)
class Resize(_OfPictures):
    """Transform that resizes images with OpenCV's ``INTER_AREA``, which averages pixels.

    Args:
        height: new height, 1 to 32,768 pixels.
        width: new width, 1 to 32,768 pixels.
        keys: fields to resize; by default all observations of two or three dimensions.
    """

    height: int
    width: int
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_whole("height", self.height, 1, 2**15, error=TransformError)
        check_whole("width", self.width, 1, 2**15, error=TransformError)

    def field(self, name: str, field: Field) -> Field:
        """Return the field with images of the new size."""
        if field.dtype not in ("uint8", "uint16", "int16", "float32", "float64"):
            raise TransformError(f"{name} is {field.dtype}: expected uint8, uint16, int16, float32 or float64")
        return replace(field, shape=ImageLayout.of(name, field).shape(self.height, self.width), space=None)

    def of(self, pictures: Pictures, layout: ImageLayout) -> Pictures:
        """Return the resized images [n, ...]."""
        cv2 = _opencv()
        planes, pixel = layout.planes
        old = np.ascontiguousarray(pictures).reshape(-1, layout.width, *pixel)
        new = np.empty((len(pictures) * planes * self.height, self.width, *pixel), pictures.dtype)
        # If each new row of pixels averages whole old rows, stacked images can be resized as one tall image.
        is_whole = layout.height % self.height == 0 and layout.width % self.width == 0
        batch = max(_TALL_ROWS // layout.height, 1) if is_whole else 1
        for start in range(0, len(pictures) * planes, batch):
            tall = old[start * layout.height : (start + batch) * layout.height]
            made = new[start * self.height : (start + batch) * self.height]
            made[:] = cv2.resize(tall, made.shape[1::-1], interpolation=cv2.INTER_AREA).reshape(made.shape)
        return new.reshape(len(pictures), *layout.shape(self.height, self.width))


@dataclass(frozen=True)
class Crop(_OfPictures):
    """Transform that crops images.

    Args:
        height: height of the crop in pixels.
        width: width of the crop in pixels.
        top: pixels above the crop; centred by default.
        left: pixels to the left of the crop; centred by default.
        keys: fields to crop; by default all observations of two or three dimensions.
    """

    height: int
    width: int
    top: int = -1
    left: int = -1
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_whole("height", self.height, error=TransformError)
        check_whole("width", self.width, error=TransformError)

    def field(self, name: str, field: Field) -> Field:
        """Return the field with images of the new size."""
        layout = ImageLayout.of(name, field)
        rows, columns = self._window(layout)
        if rows.stop > layout.height or columns.stop > layout.width:
            raise TransformError(
                f"{name} is {layout.height} x {layout.width}: expected a crop within it, "
                f"found {self.height} x {self.width} from row {rows.start} and column {columns.start} on"
            )
        return replace(field, shape=layout.shape(self.height, self.width), space=None)

    def _window(self, layout: ImageLayout) -> tuple[slice, slice]:
        top = (layout.height - self.height) // 2 if self.top < 0 else self.top
        left = (layout.width - self.width) // 2 if self.left < 0 else self.left
        return slice(max(top, 0), max(top, 0) + self.height), slice(max(left, 0), max(left, 0) + self.width)

    def of(self, pictures: Pictures, layout: ImageLayout) -> Pictures:
        """Return the crops [n, ...]."""
        window = self._window(layout)
        return pictures[(slice(None), slice(None), *window) if layout.channels_first else (slice(None), *window)]


@dataclass(frozen=True)
class Grayscale(_OfPictures):
    """Transform of RGB images [H, W, 3] to grayscale [H, W] (ITU-R BT.601, as in OpenCV and torchvision).

    Args:
        keys: fields to convert; by default all observations of two or three dimensions.
    """

    keys: tuple[str, ...] = ()

    def field(self, name: str, field: Field) -> Field:
        """Return the field without channels."""
        layout = ImageLayout.of(name, field)
        if layout.channels != _COLOURS or layout.channels_first or field.dtype not in ("uint8", "uint16", "float32"):
            expected = "uint8, uint16 or float32 of shape [H, W, 3]"
            raise TransformError(f"{name} is {field.dtype}{list(field.shape)}: expected {expected}")
        return replace(field, shape=(layout.height, layout.width), space=None)

    def of(self, pictures: Pictures, layout: ImageLayout) -> Pictures:
        """Return grayscale images [n, H, W]."""
        cv2 = _opencv()
        new = np.empty(pictures.shape[:-1], pictures.dtype)
        batch = max(_TALL_ROWS // layout.height, 1)
        for start in range(0, len(pictures), batch):
            made = new[start : start + batch]
            tall = np.ascontiguousarray(pictures[start : start + batch]).reshape(-1, layout.width, _COLOURS)
            made[:] = cv2.cvtColor(tall, cv2.COLOR_RGB2GRAY).reshape(made.shape)
        return new


def _opencv() -> Any:
    return imported("cv2", "images need OpenCV", "atari")
