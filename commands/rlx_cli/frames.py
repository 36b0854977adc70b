"""Images on a terminal: two pixels per character, as a half block with foreground and background colours."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.text import Text

_SIDE = 24  # characters that a picture is wide, so that about four fit on a terminal
_HALF = "\N{UPPER HALF BLOCK}"


def strip(frames: NDArray[np.uint8], width: int) -> "Text":
    """Return the frames [n, height, width, 3] side by side, limited to ``width`` characters."""
    from rich.text import Text

    fitting = max(1, (width + 1) // (_SIDE + 1))
    small = [_shrunk(frame) for frame in frames[:fitting]]
    text = Text()
    for upper in range(0, small[0].shape[0], 2):
        for place, frame in enumerate(small):
            text.append(" " if place else "")
            for top, bottom in zip(frame[upper], frame[upper + 1], strict=True):
                text.append(_HALF, f"rgb({_rgb(top)}) on rgb({_rgb(bottom)})")
        text.append("\n")
    text.right_crop(1)
    return text


def _shrunk(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The frame, _SIDE pixels wide and an even number high, each the mean of what it covers."""
    height, width = frame.shape[:2]
    columns = min(_SIDE, width)
    lines = max(2, min(height, round(height * columns / width)) // 2 * 2)
    sums = np.add.reduceat(frame.astype(np.int64), np.arange(lines) * height // lines, axis=0)
    sums = np.add.reduceat(sums, np.arange(columns) * width // columns, axis=1)
    covered = np.outer(
        np.diff(np.arange(lines + 1) * height // lines), np.diff(np.arange(columns + 1) * width // columns)
    )
    return (sums // covered[..., None]).astype(np.uint8)


def _rgb(pixel: NDArray[np.uint8]) -> str:
    return ",".join(map(str, pixel.tolist()))
