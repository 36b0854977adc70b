"""Episodes in rows: a table of them is a sequence, and rows that can only be read in order."""

import pickle
import tracemalloc
from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.rows.episodes import Batch, EpisodeTable, RowEpisode, RowStream
from rlx.schema import Schema

EPISODES = st.lists(
    st.builds(RowEpisode, st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**40), *[st.booleans()] * 4), max_size=20
)


def table(episodes: list[RowEpisode]) -> EpisodeTable:
    names = ("number", "terminated", "truncated", "final_recorded", "from_reset")
    columns = {name: [getattr(one, name) for one in episodes] for name in names}
    return EpisodeTable([one.rows for one in episodes], **columns)


@given(EPISODES, st.slices(20))
def test_it_gives_what_a_list_gives(episodes: list[RowEpisode], some: slice) -> None:
    found = table(episodes)
    assert (list(found), found[some], len(found)) == (episodes, episodes[some], len(episodes))
    assert [found[place] for place in range(-len(episodes), len(episodes))] == episodes * 2
    assert found.rows.tolist() == [one.rows for one in episodes]
    assert all(type(one.number) is int and type(one.terminated) is bool for one in found)


def test_an_episode_takes_21_bytes_here_and_on_its_way_to_a_worker() -> None:
    of = partial(EpisodeTable, number=0, terminated=False, truncated=False, final_recorded=False)
    few, many = (len(pickle.dumps(of(np.ones(count, np.int64)))) for count in (1000, 2000))
    assert many - few < 21_100
    tracemalloc.start()
    try:
        kept = of(np.ones(100_000, np.int64))
        assert tracemalloc.get_traced_memory()[0] < 2_110_000
    finally:
        tracemalloc.stop()
    assert kept.rows.sum() == 100_000


@given(EPISODES)
def test_it_can_be_pickled_and_compared(episodes: list[RowEpisode]) -> None:
    found = table(episodes)
    assert pickle.loads(pickle.dumps(found)) == found
    assert (found == found.but(truncated=True)) == all(one.truncated for one in episodes)
    assert found != episodes


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
    """Episodes after some that are not read, as in a shard that begins in the middle of a file."""
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
