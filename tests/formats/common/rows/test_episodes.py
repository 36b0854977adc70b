"""A table of episodes is a sequence of them."""

import pickle
import tracemalloc
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlx.formats.common.rows.episodes import EpisodeTable, RowEpisode

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
