"""256 colours for the frames of a GIF: pictures of no more than these stay exact, others come near."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlx.viewer.pictures import Frames, channels, image_of, packed, pillow

if TYPE_CHECKING:
    from PIL import Image

_COLOURS = 256
_OF_PICTURES = 208  # the rest is for the captions
_PIECE = 2**12  # colours whose nearest are found together


class Palette:
    """Colours, and frames in nothing but these.

    Args:
        pictures: [h, w, 3] of one size: all their colours, or, of more than 208, those that come nearest to all.
        captions: [h, w, 3] the text beside the pictures: its colours by frequency, as far as they fit.
    """

    def __init__(self, pictures: Sequence[Frames], captions: Sequence[Frames]) -> None:
        first, rest = (_by_frequency(parts) for parts in (pictures, captions))
        if len(first) > _OF_PICTURES:
            first = _near_to_all(pictures)
        colours = list(dict.fromkeys([*first, *rest]))[:_COLOURS]
        self._channels = [channels(colour) for colour in colours]
        # Every colour: its place in the palette, or -1 before its nearest one is looked up.
        self._places = np.full(2**24, -1, np.int16)
        self._places[colours] = np.arange(len(colours))

    def apply(self, frame: "Image.Image") -> "Image.Image":
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
    """Return the middles of as many boxes that hold all colours, cut so that each is of about as many pixels."""
    cut = image_of(np.concatenate(pictures)).quantize(_OF_PICTURES, pillow().Image.Quantize.MEDIANCUT)
    middles = np.array(cut.getpalette(), np.uint8).reshape(-1, 3)[:_OF_PICTURES]
    colours: list[int] = np.unique(packed(middles)).tolist()
    return colours


def _by_frequency(pictures: Sequence[Frames]) -> list[int]:
    """Return the colours of some pictures, the most frequent first."""
    colours, counts = np.unique(np.concatenate([packed(picture).ravel() for picture in pictures]), return_counts=True)
    ordered: list[int] = colours[np.argsort(-counts, kind="stable")].tolist()
    return ordered
