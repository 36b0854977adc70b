import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.buffer.permutation import permute
from tests.buffer.chance import fits


@settings(deadline=None, max_examples=300)
@given(n=st.integers(1, 5000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_everything_comes_once(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, seed, epoch)), np.arange(n))


@pytest.mark.parametrize("n", range(1, 70))
def test_everything_of_a_few_comes_once(n: int) -> None:
    assert sorted(permute(np.arange(n), n, 0, 0).tolist()) == list(range(n))


def test_a_place_does_not_depend_on_what_else_is_asked() -> None:
    whole = permute(np.arange(1000), 1000, 5, 2)
    some = np.array([[7, 999], [0, 7]])
    assert np.array_equal(permute(some, 1000, 5, 2), whole[some])
    assert permute(np.array([], np.int64), 1000, 5, 2).shape == (0,)


def test_fifty_million() -> None:
    n = 50_000_000
    ordinals = np.arange(0, n, 97)
    places = permute(ordinals, n, 3, 1)
    assert places.min() >= 0
    assert places.max() < n
    assert len(np.unique(places)) == len(ordinals)
    assert fits(np.bincount(places * 100 // n), np.ones(100))


def test_every_order_of_four_is_as_likely() -> None:
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    for epoch in range(2400):
        orders[tuple(permute(np.arange(4), 4, 11, epoch).tolist())] += 1
    assert fits(list(orders.values()), np.ones(24))


@pytest.mark.parametrize("n", [5, 10, 37, 256])
def test_every_place_is_as_likely(n: int) -> None:
    places = np.stack([permute(np.arange(n), n, 1, epoch) for epoch in range(3000)])
    for ordinal in (0, n // 2, n - 1):
        assert fits(np.bincount(places[:, ordinal], minlength=n), np.ones(n))


@pytest.mark.parametrize("n", [5, 10, 37, 256])
def test_neighbours_go_separate_ways(n: int) -> None:
    places = np.stack([permute(np.arange(n), n, 1, epoch) for epoch in range(3000)])
    apart = (places[:, 1] - places[:, 0]) % n
    assert fits(np.bincount(apart, minlength=n)[1:], np.ones(n - 1))


def test_seed_and_epoch_decide() -> None:
    orders = {
        (seed, epoch): tuple(permute(np.arange(50), 50, seed, epoch).tolist())
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(set(orders.values())) == len(orders)


@pytest.mark.parametrize("ordinal", [-1, 10])
def test_ordinals_are_below_n(ordinal: int) -> None:
    with pytest.raises(IndexError, match=r"range\(10\) expected"):
        permute(np.array([0, ordinal]), 10, 0, 0)
