"""Episodes of rows of any order, by the scan and by a loop over all rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.formats.common.rows.scan import EpisodeScan, Recording, different
from rlx.formats.common.rows.ted_fields import TERMINATED, TRAJECTORY, TRUNCATED
from rlx.formats.common.rows.ted_run import lanes

AFTER = {"observation": "next/observation"}


@dataclass
class Row:
    """One step: what it begins with, what it leads to, its trajectory's id, and how it ends."""

    seen: float
    after: float
    id: int
    end: str


@st.composite
def recordings(draw: st.DrawFn) -> list[Row]:
    """Batches of collectors in turn, each with an episode after the other, of which the oldest rows may be lost."""
    collectors = draw(st.integers(1, 3))
    ids = iter(range(1000))
    states = [{"id": next(ids), "step": 0} for _ in range(collectors)]
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        state = states[draw(st.integers(0, collectors - 1))]
        for _ in range(draw(st.integers(1, 5))):
            end = draw(st.sampled_from("....tx"))
            base = 100 * state["id"] + state["step"]
            rows.append(Row(base, base + 1, state["id"], end))
            state["step"] += 1
            if end != ".":
                state |= {"id": next(ids), "step": 0}
    return rows[draw(st.integers(0, len(rows) - 1)) :]


def slow(rows: Sequence[Row]) -> list[list[int]]:
    """Numbers of the rows of each episode: each row joins the last one that leads to it."""
    episodes: list[list[int]] = []
    for number, row in enumerate(rows):
        for episode in episodes:
            last = rows[episode[-1]]
            if last.end == "." and last.id == row.id and last.after == row.seen:
                episode.append(number)
                break
        else:
            episodes.append([number])
    return episodes


def columns(rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
    return {
        "observation": np.array([row.seen for row in rows]),
        "next/observation": np.array([row.after for row in rows]),
        TRAJECTORY: np.array([row.id for row in rows]),
        TERMINATED: np.array([row.end == "t" for row in rows]),
        TRUNCATED: np.array([row.end == "x" for row in rows]),
    }


@given(recordings(), st.integers(1, 7))
def test_rows_of_an_episode_are_joined(rows: list[Row], size: int) -> None:
    scan = EpisodeScan(AFTER, list(AFTER))
    for start in range(0, len(rows), size):
        scan.add(columns(rows[start : start + size]))
    found = scan.found(Recording.WRAPPED, stitch=True)
    pieces = np.arange(len(rows)) if found.pieces is None else _rows(found.pieces)
    bounds = np.cumsum(found.table.rows)[:-1]
    assert [part.tolist() for part in np.split(pieces, bounds)] == slow(rows)
    for episode, numbers in zip(found.table, slow(rows), strict=True):
        first, last = rows[numbers[0]], rows[numbers[-1]]
        assert (episode.number, episode.terminated, episode.truncated) == (first.id, last.end == "t", last.end == "x")
        # A row after the end of an episode counts as a reset: no other environment can be told from this one there.
        follows_end = numbers[0] > 0 and rows[numbers[0] - 1].end != "."
        assert not episode.from_reset or first.seen % 100 == 0 or follows_end


@given(recordings())
def test_nothing_is_lost_where_rows_cannot_be_joined(rows: list[Row]) -> None:
    scan = EpisodeScan(AFTER, list(AFTER))
    scan.add(columns(rows))
    table = scan.found().table
    assert table.rows.sum() == len(rows)
    starts = (np.cumsum(table.rows) - table.rows).tolist()
    for start, episode in list(zip(starts, table, strict=True))[1:]:
        assert not episode.from_reset or rows[start].seen % 100 == 0 or rows[start - 1].end != "."


def _rows(pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(start, start + count) for start, count in pieces.tolist()])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_rows_of_lanes(shape: list[int], data: st.DataObject) -> None:
    """Against numpy, which moves axes."""
    time = data.draw(st.integers(0, len(shape) - 1))
    filled = data.draw(st.integers(1, shape[0]))
    oldest = data.draw(st.integers(0, filled - 1))
    runs = lanes(shape, time, filled=filled, oldest=oldest)
    numbers = np.roll(np.arange(np.prod(shape)).reshape(shape)[:filled], -oldest, axis=0)
    expected = np.moveaxis(numbers, time, -1).reshape(-1).tolist()
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    found = [first + place * runs.stride for first, count in runs.spans(start, stop) for place in range(count)]
    assert (runs.rows, found) == (len(expected), expected[start:stop])


def test_values_that_are_equal() -> None:
    texts = np.array(["a", "b"], object)
    assert different(texts, np.array(["a", "c"], object)).tolist() == [False, True]
    vectors = np.array([[np.nan, 0.0], [1.0, 2.0]], np.float32)
    assert different(vectors, vectors + np.float32(-0.0)).tolist() == [False, False]
