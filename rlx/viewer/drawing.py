"""The marks of charts, and charts as SVG: colours are names, so that a page can be light or dark."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; ``hint`` is shown to whoever points at it."""

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
        width, height: of the sheet; the origin is its upper left corner.
        title: what it shows.
        marks: in drawing order.
        note: the text below it.
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
