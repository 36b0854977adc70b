"""Charts and captions as pixels, with Pillow."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlx.viewer.drawing import Area, Box, Dot, Drawing, Label, Line, Mark, Point
from rlx.viewer.pictures import pillow

if TYPE_CHECKING:
    from PIL import Image

Theme = Mapping[str, str]
LIGHT: Theme = MappingProxyType(
    {
        "page": "#f6f7f9",
        "card": "#ffffff",
        "ink": "#16181d",
        "muted": "#667080",
        "grid": "#e4e8ee",
        "accent": "#2f6fdf",
        "soft": "#c9dcfa",
        "dot": "#86aeef",
        "warm": "#d9622b",
        "second": "#1f9d78",
        "third": "#a05bd0",
        "fourth": "#c08a12",
        "fifth": "#3a9fc4",
    }
)
DARK: Theme = MappingProxyType(
    {
        "page": "#0f1115",
        "card": "#171a20",
        "ink": "#e9ecf1",
        "muted": "#98a2b3",
        "grid": "#2a2f38",
        "accent": "#6ea2ff",
        "soft": "#2b4470",
        "dot": "#4a74bd",
        "warm": "#f08a55",
        "second": "#4cc9a3",
        "third": "#c792ea",
        "fourth": "#e0b24a",
        "fifth": "#6cc4e4",
    }
)
SERIES = ("accent", "warm", "second", "third", "fourth", "fifth")
_SMOOTH = 3  # pixels that are drawn for one, so that slanted lines are smooth


def drawn(drawing: Drawing, scale: float, theme: Theme) -> "Image.Image":
    """Return a drawing as an RGB picture, ``scale`` pixels a unit, on the theme's card."""
    image = pillow().Image
    fine = scale * _SMOOTH
    canvas = image.new("RGB", _size(drawing, fine), theme["card"])
    pen = pillow().ImageDraw.Draw(canvas)
    for mark in drawing.marks:
        if not isinstance(mark, Label):
            _draw(pen, mark, fine, theme)
    smooth: Image.Image = canvas.resize(_size(drawing, scale), image.Resampling.BOX)
    # Letters are smooth by themselves, and sharper if they are not made smaller.
    pen = pillow().ImageDraw.Draw(smooth)
    for mark in drawing.marks:
        if isinstance(mark, Label):
            text(pen, (mark.x * scale, mark.y * scale), mark.text, mark.size * scale, theme[mark.tone], mark.anchor)
    return smooth


def text(pen: Any, at: Point, words: str, size: float, colour: str, anchor: str = "start") -> None:
    """Write a line of text, its base line at a point."""
    place = {"start": "l", "middle": "m", "end": "r"}[anchor] + "s"
    pen.text(at, words, fill=colour, font=font(size), anchor=place)


def font(size: float) -> Any:
    """Return the font that comes with Pillow."""
    return pillow().ImageFont.load_default(max(6.0, size))


def _size(drawing: Drawing, scale: float) -> tuple[int, int]:
    return round(drawing.width * scale), round(drawing.height * scale)


def _draw(pen: Any, mark: Mark, scale: float, theme: Theme) -> None:
    match mark:
        case Box():
            # Pillow counts the last pixel in.
            right, low = (mark.x + mark.width) * scale - 1, (mark.y + mark.height) * scale - 1
            if right >= mark.x * scale and low >= mark.y * scale:
                corners = (mark.x * scale, mark.y * scale, right, low)
                pen.rounded_rectangle(corners, mark.radius * scale, fill=theme[mark.tone])
        case Dot():
            around = (mark.radius * scale, mark.x * scale, mark.y * scale)
            pen.ellipse(
                [around[1] - around[0], around[2] - around[0], around[1] + around[0], around[2] + around[0]],
                fill=theme[mark.tone],
            )
        case Area():
            pen.polygon([(x * scale, y * scale) for x, y in mark.points], fill=theme[mark.tone])
        case Line():
            for piece in _dashes(mark):
                points = [(x * scale, y * scale) for x, y in piece]
                pen.line(points, fill=theme[mark.tone], width=max(1, round(mark.width * scale)), joint="curve")


def _dashes(line: Line) -> Sequence[Sequence[Point]]:
    """Return a line in its pieces; a dashed one is straight."""
    if not line.dashed:
        return [line.points]
    (x, y), (right, low) = line.points
    count = max(1, round(max(abs(right - x), abs(low - y)) / 6))
    dx, dy = (right - x) / count, (low - y) / count
    return [[(x + dx * n, y + dy * n), (x + dx * (n + 0.5), y + dy * (n + 0.5))] for n in range(count)]
