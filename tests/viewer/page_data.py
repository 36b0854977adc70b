"""What is in a page: its data, and the frames of its strips."""

import base64
import io
import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def page_data(page: str) -> dict[str, Any]:
    """The data that the page's script reads."""
    (found,) = _DATA.findall(page)
    loaded: dict[str, Any] = json.loads(found)
    return loaded


def strip_frames(layout: dict[str, Any], strip: bytes) -> list[NDArray[np.uint8]]:
    """The frames in a strip, as the page's script cuts it; the last may be followed by empty ones."""
    with Image.open(io.BytesIO(strip)) as image:
        pixels = np.asarray(image.convert("RGB"))
    width, height = layout["width"], layout["height"]
    return [
        pixels[y : y + height, x : x + width]
        for y in range(0, pixels.shape[0], height)
        for x in range(0, pixels.shape[1], width)
    ]


def embedded_frames(episode: dict[str, Any], field: int = 0) -> list[NDArray[np.uint8]]:
    """All frames of a field of an episode in a page, one for every row that is shown."""
    frames: list[NDArray[np.uint8]] = []
    layout = episode["frames"][field]
    for source in layout["strips"]:
        head, _, encoded = source.partition(",")
        assert head == "data:image/png;base64"
        frames += strip_frames(layout, base64.b64decode(encoded))[: layout["count"]]
    return frames[: len(episode["rows"])]
