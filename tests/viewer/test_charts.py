"""Charts hold what they show, on their sheet, whatever the numbers; as SVG they are well-formed."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.viewer import charts
from rlx.viewer.charts import bin_edges, histogram, lines, returns_over_run, shares, short, ticks
from rlx.viewer.drawing import LIGHT, Area, Box, Dot, Drawing, Label, Line, drawn, svg

ANY = st.floats(width=64) | st.integers(-50, 50).map(float)


def check_on_sheet(drawing: Drawing) -> None:
    """Every mark is at a finite place on the sheet."""
    for mark in drawing.marks:
        points = mark.points if isinstance(mark, Line | Area) else [(mark.x, mark.y)]
        if isinstance(mark, Box):
            assert mark.width >= 0
            assert mark.height >= 0
            points = [*points, (mark.x + mark.width, mark.y + mark.height)]
        for x, y in points:
            assert -0.5 <= x <= drawing.width + 0.5
            assert -0.5 <= y <= drawing.height + 0.5
    ElementTree.fromstring(svg(drawing).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


@given(st.lists(ANY, max_size=60))
def test_a_histogram_counts_all_finite_values_once(values: list[float]) -> None:
    drawing = histogram("Returns", np.array(values), 400, 200)
    check_on_sheet(drawing)
    counted = sum(int(mark.hint.rpartition(": ")[2]) for mark in drawing.marks if isinstance(mark, Box))
    assert counted == np.isfinite(values).sum()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_bins_hold_all_values_and_are_few(values: list[float]) -> None:
    edges = bin_edges(np.array(values))
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= min(values)
    assert edges[-1] >= max(values)
    assert 1 <= len(edges) - 1 <= 45


@given(st.lists(ANY, max_size=50))
def test_the_run_has_a_dot_for_every_episode_with_a_return(returns: list[float]) -> None:
    drawing = returns_over_run(np.array(returns, float), np.ones(len(returns), np.int64), 400, 200)
    check_on_sheet(drawing)
    dots = [mark for mark in drawing.marks if isinstance(mark, Dot)]
    assert [dot.episode for dot in dots] == np.flatnonzero(np.isfinite(returns)).tolist()


def test_a_long_run_has_a_band() -> None:
    draw = np.random.default_rng(0)
    drawing = returns_over_run(draw.normal(size=5000), np.full(5000, 7), 400, 200)
    check_on_sheet(drawing)
    assert not [mark for mark in drawing.marks if isinstance(mark, Dot)]
    (band,) = [mark for mark in drawing.marks if isinstance(mark, Area)]
    upper, lower = band.points[:60], list(reversed(band.points[60:]))
    assert all(high[1] < low[1] for high, low in zip(upper, lower, strict=True))


@given(st.lists(st.lists(ANY, min_size=4, max_size=4), min_size=1, max_size=8))
def test_lines(values: list[list[float]]) -> None:
    series = [(f"observation[{n}]", np.array(one)) for n, one in enumerate(values)]
    check_on_sheet(lines("", series[:6], np.arange(4), 900, 200))


@pytest.mark.parametrize("width", [640, 1400])
@pytest.mark.parametrize(
    "names",
    [
        [f"observation[{n}]" for n in range(6)],
        [f"observation/{arm}_arm/joint_velocity[{n}]" for arm in ("left", "right") for n in range(3)],
        ["observation/arm/q[0]", "observation/arm/q[1]", "observation/goal"],
        [f"state[{n}]" for n in range(10, 16)],
    ],
)
def test_what_lines_are_called_fits_on_the_sheet(names: list[str], width: int) -> None:
    drawing = lines("", [(name, np.arange(4.0)) for name in names], np.arange(4), width, 300, more=24)
    words = [mark for mark in drawing.marks if isinstance(mark, Label)][-len(names) - 1 :]
    assert words[-1].text == "and 24 more"
    assert words[-1].x + 6.2 * len(words[-1].text) <= width
    assert all(after.x - mark.x >= 6.2 * len(mark.text) for mark, after in itertools.pairwise(words))
    shown = [mark.text for mark in words[:-1]]
    assert len(set(shown)) == len(names)
    for name, text in zip(names, shown, strict=True):
        head, _, tail = text.rpartition("...")
        assert head in name
        assert name.endswith(tail)


def test_a_line_has_a_gap_where_there_is_no_number() -> None:
    values = np.array([1.0, 2.0, np.nan, 3.0, 1.0, np.inf, 2.0])
    drawing = lines("", [("x", values)], np.arange(7), 640, 300)
    drawn_lines = [len(mark.points) for mark in drawing.marks if isinstance(mark, Line) and mark.tone == "accent"]
    assert drawn_lines == [2, 2]
    assert len([mark for mark in drawing.marks if isinstance(mark, Dot)]) == 1


def test_steps_are_counted_at_whole_numbers() -> None:
    drawing = lines("", [("x", np.arange(2.0))], np.arange(2), 640, 300)
    assert [mark.text for mark in drawing.marks if isinstance(mark, Label) and mark.text.endswith(("0", "step"))][
        -2:
    ] == [
        "1 step",
        "0",
    ]


def below(drawing: Drawing) -> list[tuple[float, float, str]]:
    """Left and right end, about, and words of what stands below the axis."""
    labels = [mark for mark in drawing.marks if isinstance(mark, Label) and mark.y > drawing.height - 20]
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}
    spans = [(mark.x, 6 * len(mark.text), shift[mark.anchor], mark.text) for mark in labels]
    return sorted((x - width * part, x + width * (1 - part), text) for x, width, part, text in spans)


@pytest.mark.parametrize("width", [300, 360, 900])
@given(length=st.integers(1, 10**7), episodes=st.integers(1, 30))
def test_numbers_below_the_run_do_not_overlap(width: int, length: int, episodes: int) -> None:
    drawing = returns_over_run(np.zeros(episodes), np.full(episodes, length), width, 200)
    words = below(drawing)
    assert words[-1][2].endswith(" steps")
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(words))


@pytest.mark.parametrize("values", [[500.0] * 4, [2.0, 3.0], [1.0] * 9 + [18.0]])
def test_whole_numbers_are_counted_at_whole_numbers(values: list[float]) -> None:
    words = [text for _, _, text in below(histogram("Lengths", np.array(values), 400, 200))]
    assert words
    assert all("." not in text for text in words)


def test_shares_are_of_all() -> None:
    drawing = shares("Actions", {"0": 30, "1": 60, "2": 10}, 400)
    check_on_sheet(drawing)
    words = [mark.text for mark in drawing.marks if isinstance(mark, Label)]
    assert words == ["0", "30", "30.0 %", "1", "60", "60.0 %", "2", "10", "10.0 %"]
    bars = {mark.hint: mark.width for mark in drawing.marks if isinstance(mark, Box) and mark.hint}
    assert bars["0: 30"] == pytest.approx(bars["1: 60"] / 2)


def test_of_too_many_values_the_most_frequent() -> None:
    drawing = shares("Actions", {str(n): n + 1 for n in range(100)}, 400)
    check_on_sheet(drawing)
    assert drawing.note.startswith("and 82 other values, 67.4 % of all")
    assert [mark.text for mark in drawing.marks if isinstance(mark, Label)][::3] == [str(n) for n in range(82, 100)]


@pytest.mark.parametrize("drawing", [shares("A", {}, 400), lines("A", [], np.arange(3), 400, 200)])
def test_nothing_to_show_is_said(drawing: Drawing) -> None:
    assert [mark.text for mark in drawing.marks if isinstance(mark, Label)] == ["nothing to show"]


@given(st.floats(-1e15, 1e15), st.floats(1e-9, 1e15))
def test_ticks_are_round_few_and_within(low: float, span: float) -> None:
    high = low + span
    found = ticks(low, high, 5)
    margin = 1e-6 * (high - low) + 1e-11
    assert len(found) <= 7
    assert all(low - margin <= tick <= high + margin for tick in found)
    assert len(short(found)) == len(found)


def test_svg_escapes_what_it_shows() -> None:
    evil = '</svg><script>alert("x")</script>'
    written = svg(Drawing(10, 10, evil, [Label(1, 1, evil), Box(1, 1, 2, 2, "accent", 0, evil)]))
    assert "<script" not in written
    assert written.count("&lt;script&gt;") == 3


def test_pixels_show_the_same_marks() -> None:
    drawing = Drawing(20, 10, "", [Box(0, 0, 10, 10, "accent"), Line([(12, 5), (19, 5)], "warm", 2)])
    pixels = drawn(drawing, 2, LIGHT)
    assert pixels.size == (40, 20)
    colours = [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in (pixels.getpixel(at) for at in ((5, 5), (30, 10), (30, 2)))]  # type: ignore[misc]
    assert colours == [LIGHT["accent"], LIGHT["warm"], LIGHT["card"]]


def test_a_drawing_of_any_histogram_becomes_pixels() -> None:
    assert drawn(charts.histogram("", np.arange(100.0), 300, 150), 1.5, LIGHT).size == (450, 225)
