import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.sampler.priority_tree import PriorityTree

CAPACITIES = [1, 2, 15, 16, 17, 255, 256, 257, 5000]


@given(capacity=st.sampled_from(CAPACITIES), data=st.data())
def test_whole_numbers_are_found_exactly(capacity: int, data: st.DataObject) -> None:
    tree, leaves = PriorityTree(capacity), [0] * capacity
    for _ in range(data.draw(st.integers(1, 4))):
        rows = data.draw(st.lists(st.integers(0, capacity - 1), max_size=40))
        values = [data.draw(st.integers(0, 9)) for _ in rows]
        tree.set(np.array(rows, np.int64), np.array(values, np.float64))
        for row, value in zip(rows, values, strict=True):
            leaves[row] = value  # the last of several wins
    assert tree.root == sum(leaves)
    assert tree.get(np.arange(capacity)).tolist() == leaves
    sums = np.arange(0, sum(leaves), 0.5)
    expected = [next(i for i, upto in enumerate(accumulate(leaves)) if upto > s) for s in sums.tolist()]
    assert tree.find(sums).tolist() == expected


@pytest.mark.parametrize(("of", "nothing"), [("min", np.inf), ("max", -np.inf)])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_extremes(of: str, nothing: float, capacity: int) -> None:
    rng, leaves = np.random.default_rng(0), np.full(capacity, nothing)
    tree = PriorityTree(capacity, of)  # type: ignore[arg-type]
    assert tree.root == nothing
    for _ in range(50):
        rows = rng.integers(capacity, size=5)
        values = rng.random(5)
        tree.set(rows, values)
        leaves[rows] = values
        assert tree.root == getattr(leaves, of)()
    tree.set(rows[:1], nothing)
    leaves[rows[:1]] = nothing
    assert tree.root == getattr(leaves, of)()
    tree.clear()
    assert tree.root == nothing


def test_a_hundred_thousand_updates_leave_no_trace() -> None:
    capacity, rng = 3000, np.random.default_rng(1)
    tree, leaves = PriorityTree(capacity), np.zeros(capacity)
    for _ in range(100_000 // 100):
        rows = rng.integers(capacity, size=100)
        values = 10.0 ** rng.uniform(-8, 8, size=100)
        tree.set(rows, values)
        leaves[rows] = values
    assert tree.root == pytest.approx(math.fsum(leaves), rel=1e-14)
    fresh = PriorityTree(capacity)
    fresh.set(np.arange(capacity), leaves)
    sums = rng.random(10_000) * tree.root
    assert np.array_equal(tree.find(sums), fresh.find(sums)), "the tree is a function of its leaves"
    found, upto = tree.find(sums), np.array(list(accumulate(leaves)))
    slack = 1e-12 * tree.root
    assert (upto[found] > sums - slack).all()
    assert (upto[found] - leaves[found] <= sums + slack).all()


def test_what_is_zero_is_never_found() -> None:
    tree = PriorityTree(100)
    tree.set(np.array([10, 40, 70]), np.array([0.1, 0.2, 0.3]))
    past = np.array([0.0, 0.1, 0.3, tree.root, np.nextafter(tree.root, 9), 5.0])
    assert set(tree.find(past).tolist()) <= {10, 40, 70}
    assert tree.find(past)[-2:].tolist() == [70, 70]


def test_nothing_to_set_or_find() -> None:
    tree = PriorityTree(100)
    tree.set(np.array([], np.int64), np.array([]))
    assert tree.root == 0
    assert tree.find(np.array([])).shape == (0,)


def test_one_value_for_all() -> None:
    tree = PriorityTree(1000)
    tree.set(np.arange(300, 700), 2.0)
    assert tree.root == 800
    assert tree.find(np.array([0.0, 1.9, 2.0, 799.0])).tolist() == [300, 300, 301, 699]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_tree_has_leaves(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity of at least 1"):
        PriorityTree(capacity)
