import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.sampler.draws import Draws, WorkerShare, permute, stream
from tests.buffer.sampler.chance import fits


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


def test_orders_and_draws_stay_those_of_earlier_versions() -> None:
    assert permute(np.arange(6), 6, seed=0, epoch=1).tolist() == [1, 0, 5, 4, 3, 2]
    assert permute(np.array([0, 1, 98_999]), 99_000, 1, 0).tolist() == [67110, 45788, 36987]
    assert permute(np.array([0, 49_999_999]), 50_000_000, 3, 7).tolist() == [45646124, 38762390]
    assert int(stream(seed=1, worker=0, epoch=0, number=7).integers(100)) == 84


def test_peeked_draws_are_the_next_ones() -> None:
    draws = Draws(seed=3)
    draws.next()
    for size in (1, 3):  # an odd number of 32-bit draws leaves half a word
        peeked = [rng.integers(100, size=size, dtype=np.int32).tolist() for rng in draws.peek(5)]
        assert peeked == [draws.next().integers(100, size=size, dtype=np.int32).tolist() for _ in range(5)]


def test_one_generator_draws_what_new_ones_would() -> None:
    draws = Draws(seed=3)
    for number in range(9):
        if number == 4:
            draws = pickle.loads(pickle.dumps(draws))
            draws.set_shard(WorkerShare(1, 2))
        found, expected = draws.next(), stream(3, int(number >= 4), 0, number)
        for rng in (found, expected):
            rng.integers(100, size=number, dtype=np.int32)  # an odd number leaves half a word
        assert found.random() == expected.random()


def test_fifty_million() -> None:
    n = 50_000_000
    ordinals = np.arange(0, n, 97)
    places = permute(ordinals, n, 3, 1)
    assert places.min() >= 0
    assert places.max() < n
    assert len(np.unique(places)) == len(ordinals)
    assert fits(np.bincount(places * 100 // n), np.ones(100))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_order_of_a_few_is_as_likely(n: int) -> None:
    orders = dict.fromkeys(itertools.permutations(range(n)), 0)
    for epoch in range(20 * len(orders)):
        orders[tuple(permute(np.arange(n), n, 11, epoch).tolist())] += 1
    assert fits(list(orders.values()), np.ones(len(orders)))


@pytest.mark.parametrize("n", [5, 37, 1024, 1025, 1600, 5000, 50_000_000])
def test_every_place_is_as_likely(n: int) -> None:
    ordinals, parts = np.array([0, n // 2, n - 1]), min(n, 64)
    places = np.stack([permute(ordinals, n, 1, epoch) for epoch in range(3000)])
    for column in places.T:
        assert fits(np.bincount(column * parts // n, minlength=parts), _sizes(n, parts))


@pytest.mark.parametrize("n", [5, 37, 1024, 1025, 1600, 5000, 50_000_000])
@pytest.mark.parametrize("step", [1, 2, 32, 33])
def test_neighbours_go_separate_ways(n: int, step: int) -> None:
    ordinals, parts = np.array([1, 1 + step]) % n, min(n - 1, 64)
    places = np.stack([permute(ordinals, n, 1, epoch) for epoch in range(3000)])
    apart = (places[:, 1] - places[:, 0]) % n - 1
    assert fits(np.bincount(apart * parts // (n - 1), minlength=parts), _sizes(n - 1, parts))


def _sizes(n: int, parts: int) -> list[int]:
    """How many of range(n) lie in each part."""
    edges = [-(-part * n // parts) for part in range(parts + 1)]
    return [high - low for low, high in itertools.pairwise(edges)]


def test_seed_and_epoch_decide() -> None:
    orders = {
        (seed, epoch): tuple(permute(np.arange(50), 50, seed, epoch).tolist())
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(set(orders.values())) == len(orders)


@pytest.mark.parametrize("ordinal", [-1, 10])
def test_ordinals_are_below_n(ordinal: int) -> None:
    with pytest.raises(IndexError, match=r"range\(10\)"):
        permute(np.array([0, ordinal]), 10, 0, 0)
