"""Rows that come in batches of any size are those that lie in one array, in whatever order a block asks for them."""

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.rows.episodes import Batch, RowEpisode, RowStream
from rlx.schema import Schema

SCHEMA = Schema.of(observation=("int64", ()), action=("int64", ()))


def batches(rows: int, size: int, first: int = 0) -> Generator[Batch, None, None]:
    numbers = np.arange(first, rows)
    for start in range(0, len(numbers), size):
        piece = numbers[start : start + size]
        yield {"seen": piece, "done": piece * 10, "after": piece + 1}


class Columns:
    def __init__(self, stream: RowStream, first: int) -> None:
        self._stream = stream
        self._first = first

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        column = {"observation": "seen", "action": "done", "reward": "done"}[name]
        return self._stream.rows(column, self._first + start, self._first + stop).astype(SCHEMA[name].dtype)

    def after(self, name: str, row: int) -> NDArray[np.generic]:  # noqa: ARG002
        return self._stream.peek("after", self._first + row, self._first + row + 1)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    size=st.integers(1, 9),
    block=st.integers(1, 9),
    left_out=st.integers(0, 3),
    is_final=st.booleans(),
)
def test_blocks_of_episodes(lengths: list[int], size: int, block: int, left_out: int, is_final: bool) -> None:
    """Episodes behind some that are not read, as in a shard that begins in the middle of a file."""
    first = sum(lengths[:left_out])
    stream = RowStream(Path("file"), batches(sum(lengths), size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlx.formats.common.rows.episodes.block_steps", lambda _: block)
        for number, length in list(enumerate(lengths))[left_out:]:
            episode = RowEpisode(number, length, terminated=True, truncated=False, final_recorded=is_final)
            stream.skip_to(first)
            seen, done = [], []
            for one in episode.blocks(SCHEMA, Columns(stream, first), Counter()):
                seen += one.data["observation"].tolist()
                done += one.data["action"].tolist()
            rows = list(range(first, first + length))
            assert seen == [*rows, first + length if is_final else 0]
            assert done == [10 * row for row in rows]
            first += length


def test_no_more_is_held_than_is_asked_for() -> None:
    stream = RowStream(Path("file"), batches(10_000, 10))
    for start in range(0, 9_000, 100):
        stream.skip_to(start)
        stream.rows("seen", start, start + 100)
        assert stream.held <= 120


def test_there_are_fewer_rows() -> None:
    with pytest.raises(CorruptShardError, match="file: expected 12 rows, found 10"):
        RowStream(Path("file"), batches(10, 4)).rows("seen", 9, 12)
