"""Discounted sums beside plain loops."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlx import returns
from rlx.returns import discount, discounted_sum

LENGTHS = st.lists(st.sampled_from([1, 2, 63, 64, 65, 127, 128, 129, 200, 400]), max_size=8)


@pytest.mark.parametrize("at_once", [0, 1 << 9, 1 << 15])
@given(
    lengths=LENGTHS,
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    odd=st.none() | st.tuples(st.integers(0, 1000), st.sampled_from([np.nan, np.inf, -np.inf])),
)
def test_returns_to_go(at_once: int, lengths: list[int], gamma: float, odd: tuple[int, float] | None) -> None:
    rewards = np.random.default_rng(0).normal(size=sum(lengths)).astype(np.float32)
    if odd is not None and len(rewards):
        rewards[odd[0] % len(rewards)] = odd[1]
    expected, start = [], 0
    for length in lengths:
        later, trajectory = 0.0, []
        for reward in reversed(rewards[start : start + length].tolist()):
            later = reward + gamma * later
            trajectory.append(later)
        expected += reversed(trajectory)
        start += length
    with patch.object(returns, "_AT_ONCE", at_once):
        assert np.allclose(returns.returns_to_go(rewards, np.array(lengths, np.int64), gamma), expected, equal_nan=True)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 20])
def test_a_discounted_sum_is_the_same_of_arrays_and_of_tensors(steps: int) -> None:
    rewards = np.random.default_rng(0).normal(size=(steps, 50)).astype(np.float32)
    expected = [sum(0.9**ahead * reward for ahead, reward in enumerate(column)) for column in rewards.T.tolist()]
    given = rewards.copy()
    found = discounted_sum(list(rewards), 0.9)
    assert found.dtype == np.float32
    assert np.allclose(found, expected, atol=1e-6)
    assert torch.equal(discounted_sum(torch.from_numpy(rewards).unbind(0), 0.9), torch.from_numpy(found))
    found += 1  # it is no view of the rewards
    assert np.array_equal(rewards, given)


def test_a_discount_is_a_column_of_float32() -> None:
    found = discount(np.array([0, 1, 3]), 0.5)
    assert found.dtype == np.float32
    assert found.tolist() == [[1.0], [0.5], [0.125]]
