"""Blocks cut apart and joined are the blocks they were."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlx.block import Block, join
from rlx.transform.transitions import held_back, split, whole
from tests.factories import SMALL, cut, make_block

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)
CUTS = st.lists(st.integers(1, 7), max_size=8)


def same(found: Block, expected: Block) -> None:
    found.check(SMALL)
    for name, array in expected.data.items():
        assert found.data[name].tolist() == array.tolist()
    assert found.lengths.dtype == expected.lengths.dtype
    for column in ("lengths", "episodes", "final_recorded", "is_open"):
        assert np.array_equal(getattr(found, column), getattr(expected, column)), column


@given(LENGTHS, CUTS)
def test_joined_again(lengths: list[int], cuts: list[int]) -> None:
    block = make_block(lengths)
    same(join(cut(block, cuts)), block)


@given(LENGTHS, st.integers(0, 30))
def test_split_and_joined(lengths: list[int], steps: int) -> None:
    block = make_block(lengths)
    head, tail = split(block, SMALL, min(steps, block.steps))
    head.check(SMALL)
    tail.check(SMALL)
    assert head.lengths.dtype == tail.lengths.dtype == np.int64
    assert head.steps == min(steps, block.steps)
    same(join([head, tail]), block)


@given(LENGTHS, CUTS, st.integers(1, 4))
def test_blocks_that_end_at_every_kth_step_of_a_trajectory(lengths: list[int], cuts: list[int], k: int) -> None:
    block = make_block(lengths)
    blocks = list(held_back(iter(cut(block, cuts)), SMALL, lambda steps: steps % k))
    same(join(blocks), block)
    inside = 0
    for part in blocks:
        inside = (0 if len(part.lengths) > 1 else inside) + int(part.lengths[-1])
        assert not part.is_open or inside % k == 0
        inside = inside if part.is_open else 0


@given(LENGTHS, CUTS)
def test_groups_of_whole_trajectories(lengths: list[int], cuts: list[int]) -> None:
    block = make_block(lengths)
    groups = list(whole(iter(cut(block, cuts))))
    assert all(not join(group).is_open for group in groups)
    same(join([part for group in groups for part in group]), block)
