"""Episodes of rows of any order, by the scan and by a loop over all rows; links between pieces, by a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.formats.common.rows.scan import EpisodeScan, Recording, RowPieces, different, link
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


def test_texts_in_batches_in_which_no_episode_begins() -> None:
    scan = EpisodeScan(AFTER, ["observation"])
    for start in (0, 2, 4):
        texts = np.array([f"step {start + row}" for row in range(3)], object)
        flags = {path: np.zeros(2, bool) for path in (TERMINATED, TRUNCATED)}
        scan.add({"observation": texts[:2], "next/observation": texts[1:], TRAJECTORY: np.zeros(2, int), **flags})
    assert scan.found(stitch=True).table.rows.tolist() == [6]


def test_values_that_are_equal() -> None:
    texts = np.array(["a", "b"], object)
    assert different(texts, np.array(["a", "c"], object)).tolist() == [False, True]
    vectors = np.array([[np.nan, 0.0], [1.0, 2.0]], np.float32)
    assert different(vectors, vectors + np.float32(-0.0)).tolist() == [False, False]


SEEN = ("observation",)


@dataclass(frozen=True)
class Piece:
    """What a piece begins with, what it led to, and its trajectory id; how it ends, and where it lies."""

    begins: bytes
    led_to: bytes
    id: int
    terminated: bool
    truncated: bool
    first: bool
    valid: bool


STATES = st.sampled_from([b"a", b"b", b"c"])
OFTEN = st.sampled_from([True, True, True, False])
PIECES = st.lists(
    st.builds(
        Piece,
        begins=STATES,
        led_to=STATES,
        id=st.integers(0, 1),
        terminated=st.booleans(),
        truncated=st.booleans(),
        first=st.booleans(),
        valid=OFTEN,
    ),
    min_size=1,
    max_size=20,
)


def piece_columns(rows: Sequence[Piece], *, compared: bool = True) -> RowPieces:
    def column(name: str, dtype: type = bool) -> NDArray[Any]:
        return np.array([getattr(row, name) for row in rows], dtype)

    count = len(rows)
    return RowPieces(
        start=np.arange(count),
        count=np.ones(count, np.int64),
        number=column("id", int),
        trajectory=column("id", int),
        terminated=column("terminated"),
        truncated=column("truncated"),
        recorded=np.ones(count, bool),
        cut=np.zeros(count, bool),
        first=column("first"),
        after_end=np.zeros(count, bool),
        valid=column("valid"),
        from_reset=None,
        begins={SEEN: column("begins", object)} if compared else {},
        led_to={SEEN: column("led_to", object)} if compared else {},
    )


@dataclass
class Slow:
    """Every piece looks through all pieces before it that are still open."""

    pieces: Sequence[Piece]
    cyclic: bool
    compared: bool

    def __post_init__(self) -> None:
        count = len(self.pieces)
        self.joins = [-1] * count
        self.continues, self.resumes, self.is_known = [False] * count, [False] * count, [False] * count
        self.open: list[int] = []
        for number, piece in enumerate(self.pieces):
            if not piece.valid:
                continue
            self.is_known[number] = any(not self.pieces[other].truncated for other in self._open_of(piece))
            if (other := self._take(number)) is not None:
                self._connect(other, number)
            if not piece.terminated:
                self.open.append(number)
        for number, piece in enumerate(self.pieces):
            if self.cyclic and piece.first and piece.valid and self.joins[number] < 0:
                other = self._take(number)
                if other is not None and self._head(other) != number:
                    self._connect(other, number)

    def _open_of(self, piece: Piece) -> list[int]:
        return [other for other in self.open if self.pieces[other].id == piece.id]

    def _take(self, number: int) -> int | None:
        piece = self.pieces[number]
        for other in reversed(self._open_of(piece) if self.compared else []):
            if other != number and self.pieces[other].led_to == piece.begins:
                self.open.remove(other)
                return other
        return None

    def _connect(self, other: int, number: int) -> None:
        self.resumes[number] = True
        if self.pieces[other].truncated:
            self.continues[other] = True
        else:
            self.joins[number] = other

    def _head(self, number: int) -> int:
        while self.joins[number] >= 0:
            number = self.joins[number]
        return number


@given(PIECES, st.booleans(), st.booleans())
def test_links_are_those_of_a_search(pieces: list[Piece], cyclic: bool, compared: bool) -> None:
    found = link(piece_columns(pieces, compared=compared), SEEN, cyclic=cyclic)
    expected = Slow(pieces, cyclic, compared)
    assert found.joins.tolist() == expected.joins
    assert found.continues.tolist() == expected.continues
    assert found.resumes.tolist() == expected.resumes
    assert found.is_known.tolist() == expected.is_known


def test_many_open_pieces_of_one_id() -> None:
    """A search through all earlier pieces would take a quarter of an hour."""
    count = 100_000
    apart = [
        Piece(b"%d" % number, b"-%d" % number, 0, terminated=False, truncated=True, first=False, valid=True)
        for number in range(count)
    ]
    found = link(piece_columns(apart), SEEN, cyclic=False)
    assert not found.resumes.any()
    assert not found.is_known.any()
