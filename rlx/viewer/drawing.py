"""The marks of charts, and drawings of them as SVG and as pixels; colours are names, for light and dark."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlx.viewer.pictures import pillow

if TYPE_CHECKING:
    from PIL import Image

Point = tuple[float, float]
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
_SMOOTH = 3  # supersampling, so that slanted lines are smooth


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; ``hint`` is shown when the mouse points at it."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    radius: float = 0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[Point]
    tone: str
    width: float = 1.5
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: Sequence[Point]
    tone: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A filled circle; ``episode`` is the trajectory that it stands for."""

    x: float
    y: float
    radius: float
    tone: str
    hint: str = ""
    episode: int | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text, on its base line; ``anchor`` is ``start``, ``middle`` or ``end``."""

    x: float
    y: float
    text: str
    tone: str = "muted"
    size: float = 11
    anchor: str = "start"


Mark = Box | Line | Area | Dot | Label


@dataclass(frozen=True, slots=True)
class Drawing:
    """Marks on an empty sheet, the later ones above the earlier.

    Args:
        width, height: size of the sheet; the origin is the upper left corner.
    """

    width: float
    height: float
    title: str
    marks: Sequence[Mark] = field(default_factory=list)
    note: str = ""


def svg(drawing: Drawing) -> str:
    """Return an SVG element for a page that has a CSS variable ``--tone`` for every tone.

    Example:
        >>> svg(Drawing(10, 5, "a < b", [Box(0, 0, 4, 2, "accent")]))
        '<svg viewBox="0 0 10 5" role="img" aria-label="a &lt; b"><rect x="0" y="0" width="4" height="2" \
fill="var(--accent)"/></svg>'
    """
    marks = "".join(map(_element, drawing.marks))
    label = html.escape(drawing.title)
    return f'<svg viewBox="0 0 {_n(drawing.width)} {_n(drawing.height)}" role="img" aria-label="{label}">{marks}</svg>'


def _element(mark: Mark) -> str:
    match mark:
        case Box():
            place = f'x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" height="{_n(mark.height)}"'
            radius = f' rx="{_n(mark.radius)}"' if mark.radius else ""
            return _hinted("rect", f"{place}{radius} {_fill(mark.tone)}", mark.hint)
        case Dot():
            episode = "" if mark.episode is None else f' data-episode="{mark.episode}"'
            place = f'cx="{_n(mark.x)}" cy="{_n(mark.y)}" r="{_n(mark.radius)}"'
            return _hinted("circle", f"{place} {_fill(mark.tone)}{episode}", mark.hint)
        case Line():
            dashes = ' stroke-dasharray="3 3"' if mark.dashed else ""
            stroke = f'stroke="var(--{mark.tone})" stroke-width="{_n(mark.width)}"{dashes}'
            return f'<polyline points="{_points(mark.points)}" fill="none" {stroke} stroke-linejoin="round"/>'
        case Area():
            return f'<polygon points="{_points(mark.points)}" {_fill(mark.tone)}/>'
        case Label():
            place = f'x="{_n(mark.x)}" y="{_n(mark.y)}" font-size="{_n(mark.size)}" text-anchor="{mark.anchor}"'
            return f"<text {place} {_fill(mark.tone)}>{html.escape(mark.text)}</text>"


def _hinted(tag: str, attributes: str, hint: str) -> str:
    if not hint:
        return f"<{tag} {attributes}/>"
    return f"<{tag} {attributes}><title>{html.escape(hint)}</title></{tag}>"


def _fill(tone: str) -> str:
    return f'fill="var(--{tone})"'


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def drawn(drawing: Drawing, scale: float, theme: Theme) -> Image.Image:
    """Return a drawing as an RGB image, ``scale`` pixels per unit, on the theme's card."""
    image = pillow().Image
    fine = scale * _SMOOTH
    canvas = image.new("RGB", _size(drawing, fine), theme["card"])
    pen = pillow().ImageDraw.Draw(canvas)
    for mark in drawing.marks:
        if not isinstance(mark, Label):
            _draw(pen, mark, fine, theme)
    smooth: Image.Image = canvas.resize(_size(drawing, scale), image.Resampling.BOX)
    # Text is antialiased, and sharper if not resized.
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
    if not line.dashed:
        return [line.points]
    (x, y), (right, low) = line.points
    count = max(1, round(max(abs(right - x), abs(low - y)) / 6))
    dx, dy = (right - x) / count, (low - y) / count
    return [[(x + dx * n, y + dy * n), (x + dx * (n + 0.5), y + dy * (n + 0.5))] for n in range(count)]
