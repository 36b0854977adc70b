"""Pictures as PNG, to the last bit."""

from collections.abc import Iterator

import imagecodecs
import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.pictures import Arranged, channels_last
from rlx.schema import Field

_LEVEL = 1
# Grey, colour, and colour with transparency; other numbers of channels have no conventional meaning.
_CHANNELS = frozenset({1, 3, 4})


def as_pictures(field: Field) -> Arranged | None:
    """Return rows of a field as pictures [H, W, C]; none where they are no pictures.

    Example:
        >>> from rlx.schema import Role
        >>> as_pictures(Field("uint8", (84, 84), Role.OBSERVATION)).shape
        (84, 84, 1)
        >>> as_pictures(Field("float32", (84, 84), Role.OBSERVATION))
    """
    arranged = channels_last(field)
    is_picture = field.dtype == "uint8" and len(arranged.shape) == 3 and arranged.shape[-1] in _CHANNELS
    return arranged if is_picture and min(arranged.shape[:2]) >= 1 else None


def encode(pictures: NDArray[np.generic]) -> Iterator[bytes]:
    """Yield the PNG of each of n pictures [n, H, W, C]."""
    for picture in np.ascontiguousarray(pictures):
        yield bytes(imagecodecs.png_encode(picture[..., 0] if picture.shape[-1] == 1 else picture, level=_LEVEL))
