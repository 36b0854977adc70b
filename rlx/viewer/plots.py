"""The charts of a dataset as one PNG."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.quantities import plural, size
from rlx.store.dataset import Dataset
from rlx.viewer.drawing import Drawing
from rlx.viewer.overview import Overview
from rlx.viewer.pictures import pillow
from rlx.viewer.raster import LIGHT, drawn, text

if TYPE_CHECKING:
    from PIL import Image

_WIDTH, _HEIGHT = 420.0, 210.0
_GAP, _EDGE, _HEAD, _CAPTION, _NOTE = 16, 24, 64, 34, 24
_SCALE = 2


def plots_png(dataset: Dataset) -> bytes:
    """Return over the run, the distributions of returns, lengths and rewards, and how often each action was taken.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    overview = Overview.of(dataset)
    drawings = overview.drawings(_WIDTH, _HEIGHT)
    rows = [
        [overview.run(2 * _WIDTH + _GAP, _HEIGHT)],
        *(list(drawings[n : n + 2]) for n in range(1, len(drawings), 2)),
    ]
    width = 2 * _WIDTH + _GAP + 2 * _EDGE
    height = _HEAD + sum(_row_height(row) + _GAP for row in rows) - _GAP + _EDGE
    image = pillow().Image.new("RGB", (round(width * _SCALE), round(height * _SCALE)), LIGHT["page"])
    pen = pillow().ImageDraw.Draw(image)
    listed = dataset.manifest
    said = f"{plural(listed.steps, 'step')} in {plural(listed.trajectories, 'trajectory')}, {size(listed.bytes)}"
    text(pen, (_EDGE * _SCALE, 34 * _SCALE), listed.id[:60], 20 * _SCALE, LIGHT["ink"])
    text(pen, (_EDGE * _SCALE, 52 * _SCALE), said, 12 * _SCALE, LIGHT["muted"])
    top: float = _HEAD
    for row in rows:
        for place, drawing in enumerate(row):
            _paste(image, drawing, _EDGE + place * (_WIDTH + _GAP), top, _row_height(row))
        top += _row_height(row) + _GAP
    written = io.BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


def _row_height(row: Sequence[Drawing]) -> float:
    return _CAPTION + _NOTE + max(drawing.height for drawing in row)


def _paste(image: "Image.Image", drawing: Drawing, x: float, y: float, height: float) -> None:
    """Put a drawing on a card with its title and its note."""
    pen = pillow().ImageDraw.Draw(image)
    corners = [value * _SCALE for value in (x, y, x + drawing.width, y + height)]
    pen.rounded_rectangle(corners, 10 * _SCALE, fill=LIGHT["card"], outline=LIGHT["grid"], width=_SCALE)
    inner = Drawing(drawing.width - 2, drawing.height, "", drawing.marks)
    image.paste(drawn(inner, _SCALE, LIGHT), (round((x + 1) * _SCALE), round((y + _CAPTION) * _SCALE)))
    text(pen, ((x + 14) * _SCALE, (y + 22) * _SCALE), drawing.title, 13 * _SCALE, LIGHT["ink"])
    text(pen, ((x + 14) * _SCALE, (y + height - 10) * _SCALE), drawing.note, 10.5 * _SCALE, LIGHT["muted"])
