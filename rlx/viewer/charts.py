"""The charts of a dataset, as drawings: returns over the run, histograms and counts of values."""

import math
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.viewer.drawing import SERIES, Area, Box, Dot, Drawing, Label, Line, Mark, Point
from rlx.wording import number

Numbers = NDArray[np.float64]
MAX_DOTS = 400
_MOST = float(np.finfo(np.float64).max)
_BAR = 22  # height of a row of ``shares``
_MAX_ROWS = 18
_UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3))
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 14.0, 12.0, 26.0
_LETTER = 6.2  # about the width of one
_PATCH = 24.0  # beside a name, with the gap between two


def returns_over_run(
    returns: Numbers, length: NDArray[np.int64], width: float, height: float, among: Numbers | None = None
) -> Drawing:
    """Return a chart of the return of each trajectory at its last step, with the running median.

    With more than ``MAX_DOTS`` trajectories, a band shows the middle 80 per cent instead. The scale also covers the
    returns ``among``.
    """
    ends = np.cumsum(length).astype(np.float64)
    known = np.isfinite(returns)
    numbers, ends, returns = np.flatnonzero(known), ends[known], returns[known]
    title = "Returns over the run"
    if not len(returns):
        return _nothing(title, width, height)
    frame = _Frame(width, height, (0.0, float(ends[-1])), _span(_with(returns, among)))
    marks: list[Mark] = [*frame.axes("steps")]
    groups = np.array_split(np.arange(len(returns)), min(len(returns), 60))
    with np.errstate(over="ignore"):
        middle = [
            (float(ends[group].mean()), float(np.median(returns[_around(group, len(returns))]))) for group in groups
        ]
    if len(returns) <= MAX_DOTS:
        marks += [
            Dot(*frame.at(end, value), 2.6, "dot", f"episode {one:,}: return {number(value)}", one)
            for one, end, value in zip(numbers.tolist(), ends.tolist(), returns.tolist(), strict=True)
        ]
    else:
        low, high = ([float(np.quantile(returns[group], q)) for group in groups] for q in (0.1, 0.9))
        places = [x for x, _ in middle]
        band = [*zip(places, high, strict=True), *reversed(list(zip(places, low, strict=True)))]
        marks.append(Area([frame.at(x, y) for x, y in band], "soft"))
    if len(middle) > 1:
        marks.append(Line([frame.at(x, y) for x, y in middle], "accent", 2))
    note = "line: running median; " + ("dots: episodes" if len(returns) <= MAX_DOTS else "band: 80 % of the episodes")
    return Drawing(width, height, title, marks, note)


def histogram(
    title: str, values: Numbers, width: float, height: float, tone: str = "accent", among: Numbers | None = None
) -> Drawing:
    """Return a histogram of the values; integers of a small range have a bar each.

    The bins also cover the values ``among``.
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return _nothing(title, width, height)
    edges = bin_edges(_with(values, among))
    counts, _ = np.histogram(values, edges)
    frame = _Frame(width, height, (float(edges[0]), float(edges[-1])), (0.0, float(counts.max())))
    marks: list[Mark] = [*frame.axes("", counts=True, whole=_is_single(edges))]
    for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            (x, y), (end, base) = frame.at(left, count), frame.at(right, 0)
            y = min(y, base - 1.5)
            gap = 1.0 if end - x > 4 else min(0.3, (end - x) / 2)
            marks.append(
                Box(
                    x + gap / 2,
                    y,
                    end - x - gap,
                    base - y,
                    tone,
                    min(2, (end - x) / 4),
                    f"{_interval(left, right, edges)}: {count:,}",
                )
            )
    with np.errstate(over="ignore", invalid="ignore"):
        median, mean = float(np.median(values)), float(values.mean())
    marks.append(Line([frame.at(median, 0), (frame.at(median, 0)[0], _TOP - 4)], "ink", 1, dashed=True))
    return Drawing(width, height, title, marks, f"median {number(median)}, mean {number(mean)}")


def shares(title: str, counts: Mapping[str, int], width: float, tone: str = "accent") -> Drawing:
    """Return a chart with a row for the count of each value, or of the most frequent ones."""
    total = sum(counts.values())
    if not total:
        return _nothing(title, width, 5 * _BAR)
    kept = dict(sorted(counts.items(), key=lambda item: -item[1])[:_MAX_ROWS])
    rows = [(value, count) for value, count in counts.items() if value in kept]
    left = 22 + 7 * max(len(value) for value, _ in rows)
    room = width - left - 136
    most = max(count for _, count in rows)
    marks: list[Mark] = []
    for place, (value, count) in enumerate(rows):
        y = 6 + place * _BAR
        marks += [
            Label(left - 8, y + 13, value, "ink", 12, "end"),
            Box(left, y + 2, room, _BAR - 8, "grid", 3),
            Box(left, y + 2, max(room * count / most, 2 * bool(count)), _BAR - 8, tone, 3, f"{value}: {count:,}"),
            Label(width - 70, y + 13, f"{count:,}" if count < 1e7 else f"{count / 1e6:,.1f}M", "ink", 11, "end"),
            Label(width - 14, y + 13, _percent(count / total), "muted", 11, "end"),
        ]
    left_out = len(counts) - len(rows)
    note = f"and {left_out:,} other values, {_percent(1 - sum(kept.values()) / total)} of all" if left_out else ""
    return Drawing(width, 10 + len(rows) * _BAR, title, marks, note)


def lines(
    title: str,
    series: Sequence[tuple[str, Numbers]],
    steps: NDArray[np.int64],
    width: float,
    height: float,
    more: int = 0,
) -> Drawing:
    """Return a chart of numbers over the steps of an episode; missing values are gaps.

    Args:
        series: names and values [n].
        steps: [n] of the values.
        more: how many numbers are not shown.
    """
    values = np.concatenate([one for _, one in series]) if series else np.empty(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return _nothing(title, width, height)
    frame = _Frame(width, height - 18, (float(steps[0]), float(max(steps[-1], steps[0] + 1))), _span(values))
    marks: list[Mark] = [*frame.axes("step", whole=True)]
    for (_, numbers), tone in zip(series, SERIES, strict=False):
        for piece in _unbroken(numbers):
            points = [frame.at(step, value) for step, value in zip(steps[piece].tolist(), numbers[piece], strict=True)]
            marks.append(Line(points, tone, 1.6) if len(points) > 1 else Dot(*points[0], 1.2, tone))
    left_out = f"and {more:,} more" if more else ""
    room = width - _LEFT - _RIGHT - _LETTER * len(left_out)
    x = _LEFT
    for name, tone in zip(_fitting([name for name, _ in series], room), SERIES, strict=False):
        marks += [Box(x, height - 13, 9, 9, tone, 2), Label(x + 13, height - 4.5, name)]
        x += _PATCH + _LETTER * len(name)
    if left_out:
        marks.append(Label(x, height - 4.5, left_out))
    return Drawing(width, height, title, marks)


def bin_edges(values: Numbers) -> NDArray[Any]:
    """Return ends of the bins of a histogram.

    Example:
        >>> bin_edges(np.array([1.0, 3.0]))
        array([0.5, 1.5, 2.5, 3.5])
    """
    low, high = float(values.min()), float(values.max())
    half = high / 2 - low / 2  # their difference may be more than a double can hold
    is_whole = bool((values == np.round(values)).all()) and max(abs(low), abs(high)) < 2**52
    if is_whole and half <= 20:
        return np.arange(low - 0.5, high + 1.0)
    if half <= 1e-9 * max(abs(low), abs(high)):
        reach = max(abs(high) * 1e-3, 0.5)
        return np.array([max(low - reach, -_MOST), min(high + reach, _MOST)])
    step = max(_nice(half / 15), 1.0 if is_whole else 0.0)
    with np.errstate(over="ignore"):
        edges = np.clip(np.arange(math.floor(low / step), math.floor(high / step) + 2) * step, -_MOST, _MOST)
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    return np.unique(edges)


class _Frame:
    """The axes of a chart, and positions on the sheet."""

    def __init__(self, width: float, height: float, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = x, y
        self._right, self._base = width - _RIGHT, height - _BOTTOM

    def at(self, x: float, y: float) -> Point:
        return (
            _LEFT + _along(x, self._x) * (self._right - _LEFT),
            self._base - _along(y, self._y) * (self._base - _TOP),
        )

    def axes(self, unit: str, *, counts: bool = False, whole: bool = False) -> Sequence[Mark]:
        """Return grid lines and tick labels; integers on the y axis for ``counts``, on the x axis for ``whole``."""
        marks: list[Mark] = []
        rows = ticks(*self._y, 5)
        if counts:
            rows = [value for value in rows if value == round(value)]
        for value, words in zip(rows, short(rows), strict=True):
            y = self.at(0, value)[1]
            marks += [Line([(_LEFT, y), (self._right, y)], "grid", 1), Label(_LEFT - 7, y + 4, words, anchor="end")]
        columns = [value for value in ticks(*self._x, 5) if not whole or value == round(value)]
        room = math.inf
        for value, words in reversed([*zip(columns, short(columns), strict=True)]):
            x = self.at(value, 0)[0]
            words = f"{words} {unit}".strip() if value == columns[-1] else words
            anchor = "end" if x > self._right - 20 else "middle"
            width = _LETTER * len(words)
            left = x - (width if anchor == "end" else width / 2)
            if left + width <= room:
                marks.append(Label(x, self._base + 17, words, anchor=anchor))
                room = left
        return marks


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return round numbers from low to high, about ``count`` of them.

    Example:
        >>> ticks(-21, 19, 4)
        [-20.0, -10.0, 0.0, 10.0]
    """
    step = _nice(max(high / count - low / count, 1e-12 * max(abs(low), abs(high)), 1e-300))
    found = (round(n * step, 12) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))
    return list(dict.fromkeys(found))


def _unbroken(values: Numbers) -> list[slice]:
    ends = np.flatnonzero(np.diff(np.concatenate([[False], np.isfinite(values), [False]])))
    return [slice(start, stop) for start, stop in ends.reshape(-1, 2).tolist()]


def _fitting(names: Sequence[str], room: float) -> Sequence[str]:
    """Return the names; if they do not fit, without their common prefix, or with the middle elided."""
    if sum(_PATCH + _LETTER * len(name) for name in names) <= room:
        return names
    shared = commonprefix(names)  # noqa: RUF071  (letter by letter is what is meant)
    names = [name[max(shared.rfind("/") + 1, shared.rfind("[")) :] for name in names]
    letters = int((room / len(names) - _PATCH) / _LETTER)
    head, tail = (letters - 3) // 2, (letters - 2) // 2
    return [name if len(name) <= letters else f"{name[:head]}...{name[-tail:]}" for name in names]


def _along(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return min(max((value / 2 - low / 2) / ((high / 2 - low / 2) or 1), 0.0), 1.0)


def _nice(step: float) -> float:
    """Return the next larger round number: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def _span(values: Numbers) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = (high / 2 - low / 2) * 0.12 or max(abs(high) * 0.1, 1)
    return max(low - margin, -_MOST), min(high + margin, _MOST)


def _with(values: Numbers, among: Numbers | None) -> Numbers:
    return values if among is None else np.concatenate([values, among[np.isfinite(among)]])


def _around(group: NDArray[np.int64], count: int) -> slice:
    """Return the trajectories of a group's running median: about a tenth of all."""
    reach = max(count // 20, 1)
    return slice(max(int(group[0]) - reach, 0), int(group[-1]) + reach + 1)


def _is_single(edges: NDArray[Any]) -> bool:
    return bool(edges[1] - edges[0] == 1 and edges[0] % 1 == 0.5)


def _interval(left: float, right: float, edges: NDArray[Any]) -> str:
    return number(left + 0.5) if _is_single(edges) else f"{number(left)} to {number(right)}"


def short(values: Sequence[float]) -> list[str]:
    """Return tick labels, all in one unit.

    Example:
        >>> short([5_000, 10_000]), short([-20, 0.25]), short([0, 5e6])
        (['5k', '10k'], ['-20', '0.25'], ['0', '5M'])
    """
    most = max(map(abs, values), default=0)
    unit, size = next(
        ((unit, size) for unit, size in _UNITS if most >= 10 * size or (size > 1e3 and most >= size)), ("", 1.0)
    )
    return [f"{value / size:,.6g}{unit if value else ''}" for value in values]


def _percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.001 else f"{share:.1%}".replace("%", " %")


def _nothing(title: str, width: float, height: float) -> Drawing:
    return Drawing(width, height, title, [Label(width / 2, height / 2, "nothing to show", "muted", 12, "middle")])
