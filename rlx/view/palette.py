"""256 colours for the frames of a GIF: those of the pictures stay exact as far as they go."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlx.view.pictures import Frames, channels, image_of, packed

if TYPE_CHECKING:
    from PIL import Image

_COLOURS = 256
_OF_PICTURES = 208  # the rest is for what is written below them


class Palette:
    """Colours, and frames in nothing but these.

    Args:
        pictures: [h, w, 3] parts of frames whose colours come first, the most frequent ones before the others.
        frames: [h, w, 3] whole frames, for the colours that are left.
    """

    def __init__(self, pictures: Sequence[Frames], frames: Sequence[Frames]) -> None:
        first, rest = (_by_frequency(parts) for parts in (pictures, frames))
        colours = list(dict.fromkeys([*first[:_OF_PICTURES], *rest]))[:_COLOURS]
        self._channels = [channels(colour) for colour in colours]
        # Every colour there is: its place in the palette, or -1 where nobody has asked yet which is nearest.
        self._places = np.full(2**24, -1, np.int16)
        self._places[colours] = np.arange(len(colours))

    def apply(self, frame: "Image.Image") -> "Image.Image":
        """The frame with a palette; a colour that is not in it becomes the nearest."""
        colours = packed(np.asarray(frame))
        places = self._places[colours]
        if (places < 0).any():
            self._find(np.unique(colours[places < 0]))
            places = self._places[colours]
        indexed = image_of(places.astype(np.uint8))
        indexed.putpalette([channel for colour in self._channels for channel in colour])
        return indexed

    def _find(self, colours: NDArray[np.uint32]) -> None:
        wanted = np.array([channels(colour) for colour in colours.tolist()])
        distance = np.square(wanted[:, None] - np.array(self._channels)[None]).sum(axis=-1)
        self._places[colours] = distance.argmin(axis=1)


def _by_frequency(pictures: Sequence[Frames]) -> list[int]:
    """The colours of some pictures, the most frequent first."""
    colours, counts = np.unique(np.concatenate([packed(picture).ravel() for picture in pictures]), return_counts=True)
    ordered: list[int] = colours[np.argsort(-counts, kind="stable")].tolist()
    return ordered
