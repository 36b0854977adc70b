"""Links between pieces of episodes, against a search through all earlier pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.formats.common.rows.scan import Pieces, link

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


def columns(rows: Sequence[Piece], *, compared: bool = True) -> Pieces:
    def column(name: str, dtype: type = bool) -> NDArray[Any]:
        return np.array([getattr(row, name) for row in rows], dtype)

    count = len(rows)
    return Pieces(
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
        self.goes_on, self.resumes, self.is_known = [False] * count, [False] * count, [False] * count
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
            self.goes_on[other] = True
        else:
            self.joins[number] = other

    def _head(self, number: int) -> int:
        while self.joins[number] >= 0:
            number = self.joins[number]
        return number


@given(PIECES, st.booleans(), st.booleans())
def test_links_are_those_of_a_search(pieces: list[Piece], cyclic: bool, compared: bool) -> None:
    found = link(columns(pieces, compared=compared), SEEN, cyclic=cyclic)
    expected = Slow(pieces, cyclic, compared)
    assert found.joins.tolist() == expected.joins
    assert found.goes_on.tolist() == expected.goes_on
    assert found.resumes.tolist() == expected.resumes
    assert found.is_known.tolist() == expected.is_known


def test_many_open_pieces_of_one_id() -> None:
    """A search through all earlier pieces would take a quarter of an hour."""
    count = 100_000
    apart = [
        Piece(b"%d" % number, b"-%d" % number, 0, terminated=False, truncated=True, first=False, valid=True)
        for number in range(count)
    ]
    found = link(columns(apart), SEEN, cyclic=False)
    assert not found.resumes.any()
    assert not found.is_known.any()
