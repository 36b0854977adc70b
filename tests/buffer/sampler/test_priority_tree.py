"""The tree of priorities against rows in a list; the compiled kernel and numpy give the same bits."""

import math
import pickle
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.buffer.sampler.prioritized import PriorityTree
from tests.kernels import HOW, reading

CAPACITIES = [1, 2, 31, 32, 33, 1023, 1024, 1025, 5000]


@pytest.fixture(params=HOW)
def how(request: pytest.FixtureRequest) -> Iterator[None]:
    with reading(request.param):
        yield


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def tree_of(weights: NDArray[np.float64], capacity: int | None = None) -> PriorityTree:
    tree = PriorityTree(capacity or len(weights))
    tree.write(np.arange(len(weights)), np.ones(len(weights), np.float32), weights.astype(np.float32))
    return tree


def bits(tree: PriorityTree) -> list[bytes]:
    parts = [tree.priority, tree.weight, *tree._sums, *tree._leasts, *tree._mosts]
    return [part.tobytes() for part in parts]


@st.composite
def writes(draw: st.DrawFn, capacity: int) -> tuple[NDArray[np.int64], NDArray[np.float32], bool]:
    """Rows, with repeats and -1, their priorities from the smallest to the largest, and whether only known ones."""
    rows = draw(st.lists(st.integers(-1, capacity - 1), max_size=60))
    seed, exponent = draw(st.integers(0, 99)), draw(st.sampled_from([0, 3, 37]))
    priorities = 10.0 ** np.random.default_rng(seed).uniform(-exponent, exponent, len(rows))
    only_known = draw(st.booleans())
    emptied = np.random.default_rng(seed).random(len(rows)) < (0 if only_known else 0.2)
    return np.array(rows, np.int64), np.where(emptied, 0, priorities).astype(np.float32), only_known


@given(data=st.data(), capacity=st.sampled_from(CAPACITIES))
def test_it_is_a_function_of_its_rows(data: st.DataObject, capacity: int) -> None:
    """Of both kinds: sum, least and largest are those of a list, and draws are the same."""
    trees = []
    for kind in HOW:
        with reading(kind):
            trees.append(PriorityTree(capacity, keeps_most=True))
    priority, weight = [0.0] * capacity, [0.0] * capacity
    for rows, given_, only_known in data.draw(st.lists(writes(capacity), min_size=1, max_size=5)):
        applied = [0.0]
        for row, value in zip(rows.tolist(), given_.tolist(), strict=True):
            if row >= 0 and (priority[row] or not only_known):
                weight[row] = value / 2 if not only_known or weight[row] else 0.0
                priority[row] = value
                applied.append(value)
        for tree in trees:
            assert tree.write(rows, given_, np.float32(0.5) * given_, only_known=only_known) == max(applied)
        hidden = np.flatnonzero(np.random.default_rng(len(rows)).random(min(capacity, 40)) < 0.1)
        for row in hidden.tolist():
            weight[row] = 0.0
        for tree in trees:
            tree.write(hidden, tree.priority[hidden], np.float32(0))
            known = [row for row in range(capacity) if priority[row]]
            assert tree.priority[:capacity].tolist() == priority
            assert tree.weight[:capacity].tolist() == weight
            assert tree.known_rows().tolist() == known
            assert tree.known == len(known)
            assert tree.undrawn_rows().tolist() == [row for row in known if not weight[row]]
            assert tree.total == pytest.approx(math.fsum(weight), rel=1e-14)
            assert tree.least == min((priority[row] for row in known), default=0)
            assert tree.most == max(priority)
        assert bits(trees[0]) == bits(trees[1])
        if any(weight):
            uniform = np.append(np.random.default_rng(0).random(50), [0.0, np.nextafter(1, 0)])
            (drawn, theirs), (other, others) = (tree.draw(uniform.copy()) for tree in trees)
            assert np.array_equal(drawn, other)
            assert np.array_equal(theirs, others)
            assert theirs.tolist() == [weight[row] for row in drawn.tolist()]
            assert (theirs > 0).all()


@given(whole=st.lists(st.integers(0, 9), min_size=1, max_size=1100).filter(any), kind=st.sampled_from(HOW))
def test_whole_numbers_are_found_exactly(whole: list[int], kind: str) -> None:
    with reading(kind):
        tree = tree_of(np.array(whole, np.float64))
        assert tree.total == sum(whole)
        sums = np.arange(0, sum(whole), 0.5)
        ends = np.array(list(accumulate(whole)))
        assert np.array_equal(tree.draw(sums / tree.total * (1 + 1e-15))[0], np.searchsorted(ends, sums, side="right"))


@pytest.mark.usefixtures("how")
def test_a_hundred_thousand_updates_leave_no_trace() -> None:
    capacity, rng = 3000, np.random.default_rng(1)
    tree, rows = PriorityTree(capacity), np.zeros(capacity, np.float32)
    for _ in range(100_000 // 100):
        changed = rng.integers(capacity, size=100)
        values = (10.0 ** rng.uniform(-8, 8, size=100)).astype(np.float32)
        tree.write(changed, values, values)
        rows[changed] = values
    fresh = PriorityTree(capacity)
    fresh.write(np.arange(capacity), rows, rows)
    assert bits(tree) == bits(fresh)
    sums = rng.random(10_000)
    found, upto = tree.draw(sums.copy())[0], np.cumsum(rows, dtype=np.float64)
    slack = 1e-12 * tree.total
    assert (upto[found] > sums * tree.total - slack).all()
    assert (upto[found] - rows[found] <= sums * tree.total + slack).all()


@pytest.mark.usefixtures("how")
def test_what_has_no_weight_is_never_drawn() -> None:
    tree = PriorityTree(2000)
    tree.write(np.arange(2000), np.float32(1), np.float32(0))
    tree.write(np.array([10, 40, 1700]), np.float32(1), floats(0.1, 1e-30, 0.3))
    for sums in (np.linspace(0, 1, 99), np.array([1.0, np.nextafter(1, 2), 50.0])):
        assert set(tree.draw(sums)[0].tolist()) <= {10, 1700}
    tree.write(np.array([10, 1700]), np.float32(1), np.float32(0))
    assert tree.draw(np.array([0.0, 0.5, 9.0]))[0].tolist() == [40, 40, 40]
    tree.write(np.array([40]), np.float32(1), np.float32(0))
    with pytest.raises(ValueError, match="no row has a weight"):
        tree.draw(np.array([0.5]))


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("bad", [10, -2, 2**62, -(2**63)])
def test_a_row_that_is_out_of_range_is_refused_before_any_is_written(bad: int) -> None:
    tree = PriorityTree(10)
    before = bits(tree)
    with pytest.raises(IndexError, match="expected 0 to 9"):
        tree.write(np.array([3, bad, 4]), np.float32(1), np.float32(1))
    assert bits(tree) == before


@pytest.mark.usefixtures("how")
def test_weights_are_computed_anew() -> None:
    capacity, rng = 40_000, np.random.default_rng(0)
    tree = PriorityTree(capacity)
    rows = np.unique(rng.integers(capacity, size=3000))
    values = rng.random(len(rows)).astype(np.float32) + np.float32(0.1)
    tree.write(rows, values, values)
    tree.write(rows[::3], values[::3], np.float32(0))
    tree.reweigh(np.sqrt)
    other = PriorityTree(capacity)
    other.write(rows, values, np.where(np.arange(len(rows)) % 3 == 0, np.float32(0), np.sqrt(values)))
    assert bits(tree) == bits(other)


@pytest.mark.usefixtures("how")
def test_it_crosses_process_boundaries() -> None:
    tree = PriorityTree(40_000, keeps_most=True)
    tree.write(np.arange(0, 39_000, 7), np.float32(2), np.float32(3))
    tree.write(np.array([14]), np.float32(5), np.float32(0))
    copy = pickle.loads(pickle.dumps(tree))
    assert bits(copy) == bits(tree)
    assert copy.known == tree.known
    copy.write(np.array([1]), np.float32(1), np.float32(1))
    assert bits(copy) != bits(tree)
    copy.clear()
    assert (copy.total, copy.least, copy.most, copy.known) == (0, 0, 0, 0)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_tree_has_rows(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity {capacity}: expected at least 1"):
        PriorityTree(capacity)
