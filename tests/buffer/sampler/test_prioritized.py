"""Tests of prioritized sampling, and of the slices drawn by priority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer import CompressedStorage, LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.errors import SamplingError
from rlx.testing.sampler import ListedStorage, SamplerContract, saved
from tests.buffer.sampler.chance import drawn_like

EPS = 1e-8


class Reference:
    """Prioritized replay as its paper says, in a dict."""

    def __init__(self, alpha: float, beta: float, within: bool) -> None:
        self.alpha, self.beta, self.within = alpha, beta, within
        self.priority: dict[int, float] = {}
        self.largest = 1.0

    def extended(self, rows: Sequence[int]) -> None:
        new = self.largest
        if self.within:  # what is overwritten takes its priority with it
            new = max((p for row, p in self.priority.items() if row not in rows), default=1.0)
        self.priority |= dict.fromkeys(rows, new)

    def update(self, rows: Sequence[int], priorities: Sequence[float]) -> None:
        for row, priority in zip(rows, priorities, strict=True):
            self.priority[row] = priority
            self.largest = max(self.largest, priority)

    def probabilities(self) -> dict[int, float]:
        return {row: (p + EPS) ** self.alpha for row, p in self.priority.items()}

    def weight(self, row: int) -> float:
        p = self.probabilities()
        return (p[row] / min(p.values())) ** -self.beta  # type: ignore[no-any-return]


class TestPrioritizedSampler(SamplerContract):
    def make(self, **seeding: Any) -> PrioritizedSampler:
        return PrioritizedSampler(64, 0.7, 0.9, **seeding)


priorities = st.floats(0, 100) | st.just(0.0)
steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 12)),
    st.tuples(st.just("update"), st.lists(st.tuples(st.integers(0, 15), priorities), min_size=1, max_size=8)),
    st.tuples(st.just("sample"), st.integers(1, 20)),
)


@given(
    sequence=st.lists(steps, max_size=12),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    within=st.booleans(),
)
def test_weights_are_those_of_the_reference(
    sequence: list[tuple[str, Any]], alpha: float, beta: float, within: bool
) -> None:
    storage, reference = ListedStorage(16), Reference(alpha, beta, within)
    sampler = PrioritizedSampler(20, alpha, beta, max_priority_within_buffer=within, seed=0)
    for what, value in [("write", 3), *sequence, ("sample", 30)]:
        if what == "write":
            rows = storage.write(*[(0, "")] * value)
            sampler.extended(storage, rows)
            reference.extended(rows.tolist())
        elif what == "update":
            stored = [(row, p) for row, p in value if row in storage.steps]
            sampler.update_priority(np.array([row for row, _ in value]), np.array([p for _, p in value]))
            reference.update([row for row, _ in stored], [p for _, p in stored])
        else:
            rows, info = sampler.sample(storage, value)
            weights = info["priority_weight"]
            assert weights.dtype == np.float32
            np.testing.assert_allclose(weights, [reference.weight(row) for row in rows.tolist()], rtol=1e-5)
            assert sampler._tree.total == pytest.approx(sum(reference.probabilities().values()), rel=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_steps_are_drawn_by_their_priorities(alpha: float) -> None:
    storage, reference, rng = ListedStorage(40), Reference(alpha, 1.0, False), np.random.default_rng(0)
    sampler = PrioritizedSampler(64, alpha, 1.0, seed=1)
    for _ in range(5):
        rows = storage.write(*[(0, "")] * 11)
        sampler.extended(storage, rows)
        reference.extended(rows.tolist())
        rows = rng.permutation(sorted(storage.steps))[:9]
        surprise = rng.random(9) * 3
        sampler.update_priority(rows, surprise)
        reference.update(rows.tolist(), surprise.tolist())
        assert drawn_like(sampler.sample(storage, 60_000)[0], reference.probabilities())


def test_new_steps_have_the_largest_priority() -> None:
    storage = ListedStorage(4)
    ever, within = (
        PrioritizedSampler(4, 1, 1, seed=0),
        PrioritizedSampler(4, 1, 1, max_priority_within_buffer=True, seed=0),
    )
    rows = storage.write(*[(0, "")] * 4)
    for sampler in (ever, within):
        sampler.extended(storage, rows)
        sampler.update_priority(np.arange(4), np.array([9.0, 2.0, 3.0, 4.0]))
    for _ in range(2):
        rows = storage.write((0, ""))
        for sampler in (ever, within):
            sampler.extended(storage, rows)
            sampler.update_priority(rows, np.array([1.0]))
    rows = storage.write((0, ""))
    for sampler in (ever, within):
        sampler.extended(storage, rows)
    assert drawn_like(ever.sample(storage, 9000)[0], {0: 1.0, 1: 1.0, 2: 9.0, 3: 4.0})
    assert drawn_like(within.sample(storage, 9000)[0], {0: 1.0, 1: 1.0, 2: 4.0, 3: 4.0})


@pytest.mark.parametrize(("reduction", "expected"), [("max", 5), ("min", 1), ("median", 2), ("mean", 3)])
def test_several_priorities_of_a_step(reduction: Any, expected: float) -> None:
    storage = ListedStorage(2)
    sampler = PrioritizedSampler(2, 1, 1, reduction=reduction, seed=0)
    sampler.extended(storage, storage.write((0, ""), (0, "")))
    sampler.update_priority(np.arange(2), np.array([[1, 2, 2, 5, 5], [1, 1, 1, 1, 1]]))
    rows, info = sampler.sample(storage, 20)
    assert set(info["priority_weight"][rows == 0].tolist()) == {np.float32(1 / expected)}


def test_one_priority_for_all_and_columns() -> None:
    storage = ListedStorage(3)
    sampler = PrioritizedSampler(3, 1, 1, seed=0)
    sampler.extended(storage, storage.write(*[(0, "")] * 3))
    sampler.update_priority(np.array([0, 1]), np.array(4.0))
    sampler.update_priority(np.array([1, 2]), np.array([[2.0], [1.0]]))
    assert drawn_like(sampler.sample(storage, 7000)[0], {0: 4.0, 1: 2.0, 2: 1.0})


def test_steps_that_were_there_before_the_sampler() -> None:
    storage = ListedStorage(10)
    storage.write(*[(0, "")] * 6)
    sampler = PrioritizedSampler(10, 1, 1, seed=0)
    assert drawn_like(sampler.sample(storage, 6000)[0], dict.fromkeys(range(6), 1.0))
    storage.write(*[(0, "")] * 4)
    assert drawn_like(sampler.sample(storage, 6000)[0], dict.fromkeys(range(10), 1.0))


def test_priorities_before_the_first_sample() -> None:
    storage = LazyTensorStorage(8)
    storage.append(TensorDict({"a": torch.arange(8)}, [8]))
    buffer = ReplayBuffer(storage=storage, sampler=PrioritizedSampler(8, 1, 1), batch_size=9)
    buffer.update_priority(torch.arange(8), (torch.arange(8) == 3).float())
    assert set(buffer.sample()["a"].tolist()) == {3}


PRIORITIES = np.array([1.0, 4.0, 16.0, 64.0])


@pytest.mark.parametrize("make", [float, torch.tensor, np.float32])
@pytest.mark.parametrize("alpha", [0.5, 0.0, 2.0])
def test_annealing_alpha_concerns_what_is_stored(make: Any, alpha: float) -> None:
    storage, sampler = ListedStorage(6), PrioritizedSampler(6, make(1.0), make(1.0), seed=0)
    sampler.extended(storage, storage.write(*[(0, "")] * 4))
    sampler.update_priority(np.arange(4), PRIORITIES)
    sampler.sample(storage, 10)
    sampler.alpha = make(alpha)
    expected = dict(enumerate(PRIORITIES**alpha))
    for given_again in ([], [3], [0, 2]):
        sampler.update_priority(np.array(given_again, np.int64), PRIORITIES[given_again])
        rows, info = sampler.sample(storage, 60_000)
        assert drawn_like(rows, expected)
        np.testing.assert_allclose(
            info["priority_weight"], min(expected.values()) / PRIORITIES[rows] ** alpha, rtol=1e-6
        )
    sampler.extended(storage, storage.write((0, "")))
    assert drawn_like(sampler.sample(storage, 60_000)[0], expected | {4: 64.0**alpha})
    sampler.alpha = make(1.0)
    sampler.extended(storage, storage.write((0, "")))
    expected = dict(enumerate([*PRIORITIES, 64.0, 64.0]))
    assert drawn_like(sampler.sample(storage, 60_000)[0], expected)


def test_a_tensor_is_annealed_in_place() -> None:
    alpha, beta = torch.tensor(1.0), torch.tensor(0.0)
    storage, sampler = ListedStorage(4), PrioritizedSampler(4, alpha, beta, seed=0)
    sampler.extended(storage, storage.write(*[(0, "")] * 4))
    sampler.update_priority(np.arange(4), PRIORITIES)
    assert set(sampler.sample(storage, 100)[1]["priority_weight"].tolist()) == {1.0}
    alpha.fill_(0.5)
    beta.fill_(2.0)
    rows, info = sampler.sample(storage, 100)
    np.testing.assert_allclose(info["priority_weight"], 1 / PRIORITIES[rows], rtol=1e-6)
    other = PrioritizedSampler(4, torch.tensor(1.0), torch.tensor(0.0))
    held = other.alpha, other.beta
    other.load_state_dict(saved(sampler.state_dict()))
    assert (other.alpha, other.beta) == held == (0.5, 2.0)


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), torch.tensor(-1.0)])
def test_alpha_is_annealed_to_a_number_of_at_least_0(alpha: Any) -> None:
    storage, sampler = ListedStorage(4), PrioritizedSampler(4, 1, 1)
    sampler.extended(storage, storage.write((0, "")))
    sampler.alpha = alpha
    with pytest.raises(ValueError, match=r"alpha .*: expected at least 0"):
        sampler.sample(storage, 1)


def test_what_is_overwritten_takes_its_priority_with_it() -> None:
    storage = ListedStorage(4)
    sampler = PrioritizedSampler(4, 1, 1, max_priority_within_buffer=True, seed=0)
    sampler.extended(storage, storage.write(*[(0, "")] * 4))
    sampler.update_priority(np.arange(4), np.array([100.0, 1.0, 2.0, 3.0]))
    sampler.extended(storage, storage.write((0, "")))
    assert drawn_like(sampler.sample(storage, 9000)[0], {0: 3.0, 1: 1.0, 2: 2.0, 3: 3.0})
    sampler.extended(storage, storage.write(*[(0, "")] * 4))
    sampler.update_priority(np.array([2]), np.array([2.0]))
    assert drawn_like(sampler.sample(storage, 9000)[0], {0: 1.0, 1: 1.0, 2: 2.0, 3: 1.0})


@pytest.mark.parametrize("first", [True, False])
def test_a_state_with_another_alpha(first: bool, caplog: pytest.LogCaptureFixture) -> None:
    """What is stored are priorities: the state's alpha continues, and another can be set."""
    storage, sampler = ListedStorage(4), PrioritizedSampler(4, 1, 1, seed=0)
    sampler.extended(storage, storage.write(*[(0, "")] * 4))
    sampler.update_priority(np.arange(4), PRIORITIES)
    sampler.alpha = 0.5  # as by a scheduler
    other = PrioritizedSampler(4, 1 if first else 0.7, 1)
    other.load_state_dict(saved(sampler.state_dict()))
    assert ("alpha and eps (1.0, 1e-08) of the loaded state replace (0.7, 1e-08)" in caplog.text) != first
    assert other.alpha == 0.5
    assert drawn_like(other.sample(storage, 9000)[0], dict(enumerate(PRIORITIES**0.5)))
    other.alpha = 2.0
    assert drawn_like(other.sample(storage, 99_000)[0], dict(enumerate(PRIORITIES**2.0)))


@pytest.mark.parametrize("alpha", [0.6, 2.0, 0.0])
def test_a_state_of_an_older_version(alpha: float) -> None:
    """It has powers of priorities."""
    storage, sampler = ListedStorage(6), PrioritizedSampler(6, alpha, 1, seed=0)
    storage.write(*[(0, "")] * 5)
    old = {
        "draws": sampler.state_dict()["draws"],
        "alpha": alpha,
        "first_alpha": alpha,
        "beta": 1,
        "eps": EPS,
        "rows": torch.arange(4),
        "weights": torch.from_numpy((PRIORITIES + EPS) ** alpha),
        "largest": (64 + EPS) ** alpha,
    }
    sampler.load_state_dict(saved(old))
    expected = dict(enumerate([*PRIORITIES**alpha, 64.0**alpha]))  # and one that was written since
    assert drawn_like(sampler.sample(storage, 60_000)[0], expected)
    if alpha:
        sampler.alpha = 1
        assert drawn_like(sampler.sample(storage, 9000)[0], dict(enumerate([*PRIORITIES, 64.0])))


def test_what_holds_nothing_is_passed_over() -> None:
    storage = ListedStorage(10)
    sampler = PrioritizedSampler(10, 1, 1, seed=0)
    sampler.extended(storage, storage.write((0, ""), (0, "")))
    sampler.update_priority(np.array([-1, 7, 1]), np.array([50.0, 60.0, 3.0]))
    sampler.extended(storage, storage.write((0, "")))
    assert drawn_like(sampler.sample(storage, 7000)[0], {0: 1.0, 1: 3.0, 2: 3.0})


def test_extremes_stay_finite() -> None:
    storage = ListedStorage(3)
    sampler = PrioritizedSampler(3, 60.0, 1.0, seed=0)
    sampler.extended(storage, storage.write(*[(0, "")] * 3))
    sampler.update_priority(np.arange(3), np.array([0.0, 1e300, 1e30]))
    rows, info = sampler.sample(storage, 100)
    assert set(rows.tolist()) == {1, 2}
    assert np.isfinite(info["priority_weight"]).all()


@pytest.mark.parametrize(
    ("rows", "priority", "error", "message"),
    [
        ([10], [1.0], IndexError, "rows 10 to 10: expected 0 to 9"),
        ([-2], [1.0], IndexError, "rows -2 to -2: expected 0 to 9"),
        ([0], [-1.0], ValueError, "finite priorities of at least 0, found -1.0"),
        ([0], [np.nan], ValueError, "finite priorities of at least 0"),
        ([0, 1], [1.0, 2.0, 3.0], ValueError, r"2 priorities, found \(3,\)"),
    ],
)
def test_bad_updates(rows: list[int], priority: list[float], error: type[Exception], message: str) -> None:
    storage = ListedStorage(10)
    sampler = PrioritizedSampler(10, 1, 1)
    sampler.extended(storage, storage.write(*[(0, "")] * 10))
    with pytest.raises(error, match=message):
        sampler.update_priority(np.array(rows), np.array(priority))


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"alpha -0.1: expected at least 0"):
        PrioritizedSampler(10, -0.1, 1)
    with pytest.raises(ValueError, match="eps 0: expected more than 0"):
        PrioritizedSampler(10, 1, 1, eps=0)
    with pytest.raises(ValueError, match="reduction 'sum': expected one of max, min, median, mean"):
        PrioritizedSampler(10, 1, 1, reduction="sum")  # type: ignore[arg-type]


def test_a_storage_that_is_too_large() -> None:
    storage = ListedStorage(20)
    rows = storage.write((0, ""))
    message = "at most 10 steps, found one of 20"
    with pytest.raises(SamplingError, match=message):
        PrioritizedSampler(10, 1, 1).extended(storage, rows)
    with pytest.raises(SamplingError, match=message):
        PrioritizedSampler(10, 1, 1).sample(storage, 1)


def test_states_that_do_not_fit() -> None:
    storage = ListedStorage(20)
    sampler = PrioritizedSampler(20, 1, 1)
    sampler.extended(storage, storage.write(*[(0, "")] * 12))
    with pytest.raises(SamplingError, match="rows up to 9, found some up to 11"):
        PrioritizedSampler(10, 1, 1).load_state_dict(saved(sampler.state_dict()))


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage, CompressedStorage])
def test_the_index_of_a_batch_takes_priorities(kind: Any, storage: Any) -> None:
    """Also in memory, and where steps bring the index that they had in a dataset."""
    steps = TensorDict({"value": torch.arange(50), "index": torch.arange(20, 70)}, [50])
    buffer = kind(storage=storage(100), sampler=PrioritizedSampler(100, 1.0, 0.0, seed=0), batch_size=400)
    buffer.extend(steps)
    batch = buffer.sample()
    assert torch.equal(batch["index"], batch["value"])
    buffer.update_priority(batch["index"], (batch["value"] == 7).double())
    assert set(buffer.sample()["value"].tolist()) == {7}
