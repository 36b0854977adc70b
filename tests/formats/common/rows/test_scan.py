"""Episodes of rows of any order, by the scan and by a loop over all rows; links between pieces, by a search."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.formats.common.rows.episodes import GAPS, OUT_OF_ORDER
from rlx.formats.common.rows.scan import EpisodeScan, FoundEpisodes, Recording, RowPieces, RowRuns, different, link
from rlx.formats.common.rows.ted_fields import FRAME, INDEX, TERMINATED, TRAJECTORY, TRUNCATED
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
    scan = EpisodeScan("rows", AFTER, list(AFTER))
    for start in range(0, len(rows), size):
        scan.add(columns(rows[start : start + size]))
    found = scan.found(Recording.WRAPPED)
    pieces = np.arange(len(rows)) if found.runs is None else _rows(found.runs)
    bounds = np.cumsum(found.table.rows)[:-1]
    assert [part.tolist() for part in np.split(pieces, bounds)] == slow(rows)
    for episode, numbers in zip(found.table, slow(rows), strict=True):
        first, last = rows[numbers[0]], rows[numbers[-1]]
        assert (episode.number, episode.terminated, episode.truncated) == (first.id, last.end == "t", last.end == "x")
        # A row after the end of an episode counts as a reset: no other environment can be told from this one there.
        follows_end = numbers[0] > 0 and rows[numbers[0] - 1].end != "."
        assert not episode.from_reset or first.seen % 100 == 0 or follows_end


def numbered(rows: Sequence[tuple[int, int, str]], name: str, size: int) -> FoundEpisodes:
    """Scan rows of a trajectory's id, a number and an end, without observations."""
    scan = EpisodeScan("rows", locator=name)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        scan.add(
            {
                TRAJECTORY: np.array([id for id, _, _ in some]),
                name: np.array([number for _, number, _ in some]),
                TERMINATED: np.array([end == "t" for _, _, end in some]),
                TRUNCATED: np.array([end == "x" for _, _, end in some]),
            }
        )
    return scan.found()


def episodes_of(found: FoundEpisodes, rows: Sequence[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    order = np.arange(len(rows)) if found.runs is None else _rows(found.runs)
    bounds = np.cumsum(found.table.rows)[:-1]
    return [[rows[row] for row in part] for part in np.split(order, bounds)]


LOGS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("....tx")), min_size=1, max_size=12)


@given(LOGS, st.randoms(use_true_random=False), st.sets(st.integers(0, 11)), st.integers(1, 5))
def test_rows_are_put_in_the_order_of_their_numbers(
    log: list[tuple[int, str]], chance: random.Random, lost: set[int], size: int
) -> None:
    """Environments in turn, whose rows are numbered together, are shuffled, and some are lost."""
    rows = [(id, number, end) for number, (id, end) in enumerate(log) if number not in lost] or [(0, 0, ".")]
    expected: list[list[tuple[int, int, str]]] = []
    for row in rows:
        for episode in expected:
            id, number, end = episode[-1]
            if id == row[0] and end == "." and not lost & {*range(number, row[1])}:
                episode.append(row)
                break
        else:
            expected.append([row])
    shuffled = chance.sample(rows, len(rows))
    found = numbered(shuffled, INDEX, size)
    assert episodes_of(found, shuffled) == expected
    is_in_order = all(one[1] < other[1] for one, other in pairwise(shuffled))
    assert (OUT_OF_ORDER not in found.notes) == is_in_order
    of_ids = [[row for row in rows if row[0] == id] for id in range(3)]
    pairs = [pair for of_id in of_ids for pair in pairwise(of_id) if pair[0][2] == "."]
    gaps = sum(bool(lost & {*range(one[1], other[1])}) for one, other in pairs)
    assert found.notes.get(GAPS, 0) == gaps


@given(LOGS, st.lists(st.integers(0, 11), max_size=12), st.integers(1, 5))
def test_a_repeated_number_makes_no_transition(log: list[tuple[int, str]], order: list[int], size: int) -> None:
    rows = [(*log[number % len(log)][:1], number % len(log), log[number % len(log)][1]) for number in [0, *order]]
    found = episodes_of(numbered(rows, INDEX, size), rows)
    assert sorted(row for episode in found for row in episode) == sorted(rows)
    for episode in found:
        for (id, number, end), after in pairwise(episode):
            assert (id, end) == (after[0], ".")
            is_next = after[1] == number + 1
            assert is_next or (
                len(set(rows)) == len(rows) and {*range(number + 1, after[1])} <= {row[1] for row in rows}
            )


def test_frames_of_a_trajectory_are_numbered_from_0() -> None:
    rows = [(7, 1, "."), (7, 0, "."), (8, 3, "."), (7, 2, "t"), (8, 2, "."), (8, 5, "t")]
    found = numbered(rows, FRAME, 2)
    assert episodes_of(found, rows) == [[rows[1], rows[0], rows[3]], [rows[4], rows[2]], [rows[5]]]
    assert [one.from_reset for one in found.table] == [True, False, False]
    assert found.notes == {OUT_OF_ORDER: 2, GAPS: 1}


def test_an_id_that_several_episodes_have_keeps_the_order_of_the_rows() -> None:
    """Two environments in turn, whose ids are those of trajectories, each twice."""
    rows = [(id, frame, ".t"[frame]) for _ in range(2) for frame in range(2) for id in range(2)]
    for name in (FRAME, INDEX):
        given_rows = [(id, number if name == INDEX else frame, end) for number, (id, frame, end) in enumerate(rows)]
        found = numbered(given_rows, name, 3)
        assert [[row[0] for row in episode] for episode in episodes_of(found, given_rows)] == [[0, 0], [1, 1]] * 2
        assert found.notes == {}


def _rows(runs: RowRuns) -> NDArray[np.int64]:
    return np.concatenate([np.arange(first, first + count) for first, count in runs.spans(0, runs.rows)])


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
    scan = EpisodeScan("rows", AFTER, ["observation"])
    for start in (0, 2, 4):
        texts = np.array([f"step {start + row}" for row in range(3)], object)
        flags = {path: np.zeros(2, bool) for path in (TERMINATED, TRUNCATED)}
        scan.add({"observation": texts[:2], "next/observation": texts[1:], TRAJECTORY: np.zeros(2, int), **flags})
    assert scan.found().table.rows.tolist() == [6]


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
