from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.transform import transitions
from rlx.transform.multi_step import ReturnToGo
from tests.factories import SMALL, cut, make_block


def rewarded(lengths: list[int]) -> Block:
    block = make_block(lengths)
    return replace(block, data={**block.data, "reward": (np.arange(block.steps) % 7 - 2).astype(np.float32)})


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.lists(st.integers(1, 7), max_size=8),
    st.sampled_from([1.0, 0.5, 0.0]),
)
def test_beside_a_loop(lengths: list[int], cuts: list[int], gamma: float) -> None:
    block = rewarded(lengths)
    transform = ReturnToGo(gamma)
    made = join(list(transform.blocks(iter(cut(block, cuts)), SMALL)))
    made.check(transform.schema(SMALL))
    expected, start = [], 0
    for length in lengths:
        reward = block.data["reward"][start : start + length].astype(float).tolist()
        expected += [[sum(gamma**ahead * r for ahead, r in enumerate(reward[i:]))] for i in range(length)]
        start += length
    assert made.data["return_to_go"].tolist() == expected


def test_a_trajectory_that_does_not_fit_into_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "MAX_BYTES", 100)
    blocks = cut(make_block([2, 50]), [2, 20, 20])
    with pytest.raises(TransformError, match="trajectory 1 has more than 0 MiB"):
        list(ReturnToGo().blocks(iter(blocks), SMALL))


def test_what_cannot_be() -> None:
    with pytest.raises(TransformError, match="expected 0 to 1"):
        ReturnToGo(2.0)
    with pytest.raises(TransformError, match="field 'action' already exists"):
        ReturnToGo(key="action").schema(SMALL)
    with pytest.raises(TransformError, match="'next' is taken"):
        ReturnToGo(key="next").schema(SMALL)
