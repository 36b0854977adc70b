"""The ring's index against the oracle, and what it costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.buffer.index.continuity import Facts
from rlx.buffer.index.ring import Ring
from rlx.buffer.index.segments import MAX_WAITING
from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.protocol import Rows
from rlx.testing.storage import Oracle, assert_same


def write_at_random(
    index: RingTrajectoryIndex, oracle: Oracle, rng: np.random.Generator, *, has_ids: bool, done: float, max_steps: int
) -> None:
    """One extend: some lanes, each with chunks of random workers, some of which end."""
    lanes = len(oracle.time)
    chosen = list(range(lanes)) if rng.random() < 0.6 else sorted(rng.permutation(lanes)[: rng.integers(1, lanes + 1)])
    steps = int(rng.integers(1, max_steps + 1))
    rows = oracle.rows(chosen, steps)
    chunk = int(rng.integers(1, 6))
    workers = rng.integers(0, 5, (len(chosen), steps))
    ids = np.repeat(workers, chunk, axis=1)[:, :steps].reshape(-1) if has_ids else None
    flags = rng.random(len(rows)) < done
    index.write(rows, ids, flags)
    oracle.write(rows, ids, flags)


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 40),
    lanes=st.integers(1, 6),
    has_ids=st.booleans(),
    done=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    max_steps=st.sampled_from([1, 5, 20, 100]),
)
def test_it_says_what_the_oracle_says(
    seed: int, size: int, lanes: int, has_ids: bool, done: float, max_steps: int
) -> None:
    rng = np.random.default_rng(seed)
    index, oracle = RingTrajectoryIndex(size, lanes), Oracle(size, lanes)
    for _ in range(int(rng.integers(1, 25))):
        write_at_random(index, oracle, rng, has_ids=has_ids, done=done, max_steps=max_steps)
        if rng.random() < 0.2:
            assert_same(index, oracle, has_ids=has_ids)
        if rng.random() < 0.2:
            index = restored(index, oracle)
    assert_same(index, oracle, has_ids=has_ids)


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 40),
    has_ids=st.booleans(),
    change_ids=st.booleans(),
    max_steps=st.sampled_from([1, 5, 20, 100]),
)
def test_flags_that_change(seed: int, size: int, has_ids: bool, change_ids: bool, max_steps: int) -> None:
    rng = np.random.default_rng(seed)
    ids, done = np.zeros(size, np.int64), np.zeros(size, bool)
    index = RingTrajectoryIndex(size, columns=lambda rows: facts(rows, ids[rows] if has_ids else None, done[rows]))
    oracle = Oracle(size, 1)
    for _ in range(int(rng.integers(1, 12))):
        write_at_random(index, oracle, rng, has_ids=has_ids, done=0.2, max_steps=max_steps)
        for row, key, end in oracle.calls[-1]:
            ids[row], done[row] = key, end
        for row in rng.choice(size, 2):
            if row < oracle.time[0]:
                ids[row] = rng.integers(0, 5) if change_ids and has_ids else ids[row]
                done[row] = rng.random() < 0.5
                oracle.update(int(row), int(ids[row]), bool(done[row]))
                index.changed(np.empty(0, np.int64))
        assert_same(index, oracle, has_ids=has_ids, check_reset=not change_ids, check_order=False)


def restored(index: RingTrajectoryIndex, oracle: Oracle) -> RingTrajectoryIndex:
    """The index of a checkpoint, which is written to by itself."""
    ring = Ring(oracle.size, len(oracle.time))
    ring.push(np.arange(ring.lanes), np.array(oracle.time))
    copied = RingTrajectoryIndex.restored(ring, no_columns, index.state_dict())
    copied._ring = None
    return copied


def facts(rows: Rows, ids: Rows | None, done: NDArray[np.bool_]) -> Facts:
    """Steps of one write, of which no more is told."""
    no = np.zeros(len(rows), bool)
    return Facts(rows, ids, done, no, no, no, None)


def no_columns(_: Rows) -> Facts:
    raise AssertionError("nothing changed")


def index_of(*chunks: tuple[int, int], size: int = 16) -> RingTrajectoryIndex:
    """An index of one lane after chunks of (id, steps), none of which ends."""
    index, at = RingTrajectoryIndex(size), 0
    for key, steps in chunks:
        index.write((at + np.arange(steps)) % size, np.full(steps, key), np.zeros(steps, bool))
        at += steps
    return index


def test_chunks_of_two_workers_are_two_trajectories() -> None:
    index = index_of((1, 3), (2, 3), (1, 2), (2, 1))
    assert index.follow(np.array([0, 3]), 6).tolist() == [[0, 1, 2, 6, 7, -1], [3, 4, 5, 8, -1, -1]]
    assert [column.tolist() for column in index.trajectories()] == [[0, 3], [5, 4]]


def test_a_trajectory_loses_its_head_only() -> None:
    index = index_of((1, 6), (2, 6), (1, 4), (2, 3))
    assert index.elapsed(np.array([3, 12, 15])).tolist() == [0, 3, 6]
    assert index.remaining(np.array([3])).tolist() == [7]
    assert not index.at_reset(np.array([3]))[0]
    assert index.at_reset(np.array([6]))[0]


def test_what_goes_on_after_all_of_it_was_overwritten_is_no_new_episode() -> None:
    index = index_of((1, 5), (2, 16), (1, 2))
    assert not index.at_reset(np.array([21 % 16]))[0]
    assert index.elapsed(np.array([22 % 16])).tolist() == [1]


def test_an_id_that_is_seen_again_after_its_end_is_a_new_trajectory() -> None:
    index = RingTrajectoryIndex(16)
    index.write(np.arange(6), np.array([4, 4, 5, 4, 4, 5]), np.array([0, 1, 0, 0, 0, 0], bool))
    assert [column.tolist() for column in index.trajectories()] == [[0, 2, 3], [2, 2, 2]]


def test_lanes_may_number_their_trajectories_alike() -> None:
    index = RingTrajectoryIndex(4, lanes=2)
    for first in (0, 2):
        index.write(np.array([0, 1, 4, 5]) + first, np.array([7, 7, 7, 7]), np.zeros(4, bool))
    assert [column.tolist() for column in index.trajectories()] == [[0, 4], [4, 4]]


def test_a_worker_may_change_lanes() -> None:
    index = RingTrajectoryIndex(4, lanes=2)
    for rows, ids in ([0, 1, 4, 5], [7, 7, 8, 8]), ([2, 3, 6, 7], [8, 8, 7, 7]):
        index.write(np.array(rows), np.array(ids), np.zeros(4, bool))
    assert index.follow(np.array([0, 4]), 4).tolist() == [[0, 1, 6, 7], [4, 5, 2, 3]]


def test_a_replaced_step_follows_nothing_and_nothing_follows_it() -> None:
    index = RingTrajectoryIndex(
        8, columns=lambda rows: facts(rows, np.ones(len(rows), np.int64), np.zeros(len(rows), bool))
    )
    index.write(np.arange(8), np.ones(8, np.int64), np.zeros(8, bool))
    index.changed(np.array([3]))
    for _ in range(2):  # it stays so when something else changes
        assert [column.tolist() for column in index.trajectories()] == [[0, 3, 4], [3, 1, 4]]
        assert index.at_reset(np.array([0, 3, 4])).tolist() == [True, False, False]
        index.changed(np.empty(0, np.int64))


def test_a_row_that_holds_nothing() -> None:
    index = index_of((1, 3))
    for row in (3, -1, 16):
        with pytest.raises(IndexError, match=f"row {row} "):
            index.remaining(np.array([0, row]))


def test_every_write_changes_the_generation() -> None:
    index = index_of((1, 3))
    before = index.generation
    index.write(np.array([3]), np.array([1]), np.array([False]))
    assert index.generation != before


def test_a_hundred_million_steps_take_little_memory_and_no_rows() -> None:
    lengths = np.full(10**5, 1000)
    index = RingTrajectoryIndex(10**8)
    index.write_runs(np.zeros_like(lengths), lengths, None, np.ones(len(lengths), bool))
    assert len(index) == 10**8
    rows = np.array([0, 999, 10**8 - 1])
    assert index.remaining(rows).tolist() == [1000, 1, 1]
    assert index.follow(rows[-1:] - 1, 3).tolist() == [[10**8 - 2, 10**8 - 1, -1]]


def test_ids_that_never_end_are_not_remembered_for_ever() -> None:
    index, many = RingTrajectoryIndex(4), 2 * MAX_WAITING
    for first in range(0, 2 * many, many):
        ids = np.arange(first, first + many)
        index.write(np.arange(many) % 4, ids, np.zeros(many, bool))
    index.write(np.array([0]), np.array([0]), np.array([False]))
    assert index.at_reset(np.array([0]))[0]
    index.write(np.array([1]), np.array([2 * many - 10]), np.array([False]))
    assert not index.at_reset(np.array([1]))[0]


def test_a_trajectory_whose_middle_is_overwritten_is_several() -> None:
    """It went to and fro between two lanes, one of which is overwritten first."""
    index, oracle = RingTrajectoryIndex(4, lanes=2), Oracle(4, 2)
    for lane, ids in ((0, [7]), (1, [7]), (0, [7]), (1, [7]), (0, [7]), (1, [9, 9, 9, 9])):
        rows = oracle.rows([lane], len(ids))
        for each in (index, oracle):
            each.write(rows, np.array(ids), np.zeros(len(ids), bool))
    assert_same(index, oracle, has_ids=True)
    assert [column.tolist() for column in index.trajectories()] == [[0, 1, 2, 6], [1, 1, 1, 4]]


def test_nothing_is_written() -> None:
    index = index_of((1, 3))
    before = index.generation
    index.write(np.empty(0, np.int64), None, np.empty(0, bool))
    assert (len(index), index.generation) == (3, before)


def test_an_index_that_cannot_read_ids_again() -> None:
    index = index_of((1, 3))
    index.changed(np.array([1]))
    with pytest.raises(ValueError, match="an index without columns cannot learn what changed"):
        index.trajectories()


@pytest.mark.parametrize("rows", [[0, 4, 1], [8], [-1], [1], [0, 2]])
def test_rows_that_do_not_continue_their_lanes(rows: list[int]) -> None:
    ring = Ring(4, lanes=2)
    assert ring.continues(np.array([0, 1, 4]))
    assert not ring.continues(np.array(rows))
