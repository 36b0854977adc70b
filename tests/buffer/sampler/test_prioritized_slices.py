from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.sampler.slices import PrioritizedSliceSampler
from rlx.errors import SamplingError, SliceTooLongError
from rlx.testing.sampler import ListedStorage, RingedStorage, SamplerContract, episodes, saved
from tests.buffer.sampler.chance import drawn_like


class TestPrioritizedSliceSampler(SamplerContract):
    def make(self, **seeding: Any) -> PrioritizedSliceSampler:
        return PrioritizedSliceSampler(64, 0.7, 0.9, slice_len=4, **seeding)


class Reference:
    """The priorities of what is stored, in a dict; valid starts are counted anew at every sample."""

    def __init__(self, storage: ListedStorage, slice_len: int, strict: bool) -> None:
        self.storage, self.slice_len, self.strict = storage, slice_len, strict
        self.priority: dict[int, float] = {}

    def probabilities(self) -> dict[int, float]:
        starts = self.storage.starts(self.slice_len, strict=self.strict)
        return {row: self.priority[row] + 1e-8 for row in starts}


def sampler_of(slice_len: int, strict: bool = True, capacity: int = 64, alpha: float = 1.0) -> PrioritizedSliceSampler:
    return PrioritizedSliceSampler(
        capacity, alpha, 1.0, slice_len=slice_len, strict_length=strict, pad_output=True, seed=5
    )


def starts_of(sampler: PrioritizedSliceSampler, storage: ListedStorage, slices: int) -> list[int]:
    slice_len = sampler.slicing.slice_len
    assert slice_len
    rows: list[int] = sampler.sample(storage, slices * slice_len)[0][::slice_len].tolist()
    return rows


ends = st.sampled_from(["", "", "", "terminated", "truncated"])
writes = st.tuples(st.integers(0, 1), st.integers(0, 2), st.lists(ends, min_size=1, max_size=7))


@given(
    sequence=st.lists(st.tuples(writes, st.booleans()), min_size=1, max_size=14),
    slice_len=st.integers(1, 5),
    strict=st.booleans(),
    kind=st.sampled_from([ListedStorage, RingedStorage]),
    seed=st.integers(0, 99),
)
def test_what_can_be_drawn_is_what_is_valid(
    sequence: list[tuple[Any, bool]], slice_len: int, strict: bool, kind: type[ListedStorage], seed: int
) -> None:
    """As the rings move: the tree says of every valid start its priority, and draws none that is not valid."""
    storage, rng = kind(24, 2), np.random.default_rng(seed)
    sampler = sampler_of(slice_len, strict)
    reference = Reference(storage, slice_len, strict)
    largest = 1.0
    for (lane, ident, flags), samples in sequence:
        rows = storage.write(*[(10 * lane + ident, end) for end in flags], lane=lane)
        sampler.extended(storage, rows)
        reference.priority |= dict.fromkeys(rows.tolist(), largest)
        if not samples:
            continue
        surprised = rng.choice(sorted(storage.steps), size=3)
        surprise = rng.random(3) * 2
        sampler.update_priority(surprised, surprise)
        reference.priority |= dict(zip(surprised.tolist(), surprise.tolist(), strict=True))
        largest = max(largest, *surprise.tolist())
        expected = reference.probabilities()
        if not expected:
            with pytest.raises(SliceTooLongError, match=f"slices of {slice_len} steps asked for"):
                sampler.sample(storage, slice_len)
            continue
        assert set(starts_of(sampler, storage, 20)) <= set(expected)
        weights = sampler._tree.weight[list(expected)]
        np.testing.assert_allclose(weights, list(expected.values()), rtol=1e-6)


@pytest.mark.parametrize("strict", [True, False])
def test_starts_are_drawn_by_their_priorities(strict: bool) -> None:
    storage, rng = ListedStorage(40), np.random.default_rng(0)
    sampler, reference = sampler_of(4, strict), Reference(storage, 4, strict)
    largest = 1.0
    for ident in range(12):
        rows = storage.write(*[(ident // 2, "")] * 5, *([(ident // 2, "terminated")] if ident % 4 == 3 else []))
        sampler.extended(storage, rows)
        reference.priority |= dict.fromkeys(rows.tolist(), largest)
        assert drawn_like(starts_of(sampler, storage, 12_000), reference.probabilities())
        surprised = rng.permutation(sorted(storage.steps))[:4]
        surprise = 0.2 + rng.random(4) * 2
        largest = max(largest, *surprise.tolist())
        sampler.update_priority(surprised, surprise)
        reference.priority |= dict(zip(surprised.tolist(), surprise.tolist(), strict=True))
        assert drawn_like(starts_of(sampler, storage, 12_000), reference.probabilities())


def test_starts_that_are_hardly_ever_valid() -> None:
    """Of 300 steps two can start a slice, and their priority is the least."""
    storage = episodes(ListedStorage(400), *[3] * 98, 6)
    sampler = sampler_of(5, capacity=400)
    sampler.extended(storage, np.arange(300))
    sampler.update_priority(np.array([294, 295]), np.array([1e-6, 3e-6]))
    assert drawn_like(starts_of(sampler, storage, 4000), {294: 1.01, 295: 3.01})
    hidden = sampler._tree.undrawn_rows()
    starts_of(sampler, storage, 4000)
    assert np.array_equal(sampler._tree.undrawn_rows(), hidden), "each costs one draw however often is sampled"


def test_a_longer_slice_and_a_shorter_one() -> None:
    storage = episodes(ListedStorage(64), 9, 4)
    sampler = PrioritizedSliceSampler(64, 1.0, 1.0, num_slices=2000, seed=0)
    sampler.extended(storage, np.arange(13))
    for slice_len in (4, 2, 8, 3):
        rows = sampler.sample(storage, 2000 * slice_len)[0]
        assert drawn_like(rows[::slice_len], dict.fromkeys(storage.starts(slice_len), 1.0))


def test_changes_that_it_is_not_told_of() -> None:
    """As when the flags of stored steps are changed in place."""
    storage = episodes(ListedStorage(64), 3, 3)
    sampler = sampler_of(4)
    sampler.extended(storage, np.arange(6))
    with pytest.raises(SliceTooLongError, match="the longest of 2 trajectories has 3"):
        starts_of(sampler, storage, 10)
    storage.log = [(row, 0, row == 5) for row, _, _ in storage.log]
    storage._index()
    assert drawn_like(starts_of(sampler, storage, 900), dict.fromkeys([0, 1, 2], 1.0))


def test_a_change_and_a_write_at_once() -> None:
    storage = episodes(ListedStorage(64), 3, 3)
    sampler = sampler_of(4)
    sampler.extended(storage, np.arange(6))
    with pytest.raises(SliceTooLongError):
        starts_of(sampler, storage, 10)
    storage.log = [(row, 0, row == 5) for row, _, _ in storage.log]
    storage._index()
    sampler.updated(storage)
    sampler.extended(storage, storage.write((7, "")))
    assert drawn_like(starts_of(sampler, storage, 900), dict.fromkeys([0, 1, 2], 1.0))


def test_weights_are_those_of_each_step() -> None:
    storage = episodes(ListedStorage(64), 6)
    sampler = sampler_of(2)
    sampler.extended(storage, np.arange(6))
    sampler.update_priority(np.arange(6), np.arange(1, 7))
    rows, info = sampler.sample(storage, 40)
    np.testing.assert_allclose(info["priority_weight"], 1 / (rows + 1), rtol=1e-6)
    assert info["collector", "slice_end"].shape == (40, 1)
    assert info["collector", "mask"].all()


def test_what_is_hidden_goes_on_being_hidden_in_a_state() -> None:
    storage = episodes(ListedStorage(64), 6, 3, 3)
    sampler = sampler_of(4)
    sampler.extended(storage, np.arange(12))
    starts_of(sampler, storage, 50)
    again = sampler_of(4)
    again.load_state_dict(saved(sampler.state_dict()))
    assert np.array_equal(again._tree.undrawn_rows(), sampler._tree.undrawn_rows())
    assert len(again._tree.undrawn_rows())
    again.extended(storage, storage.write(*[(9, "")] * 5))
    assert drawn_like(starts_of(again, storage, 3000), dict.fromkeys(storage.starts(4), 1.0))


def test_bad_sizes() -> None:
    storage = episodes(ListedStorage(64), 6)
    with pytest.raises(SamplingError, match=r"batch_size \(10\) must be a positive multiple of slice_len \(4\)"):
        sampler_of(4).sample(storage, 10)
    with pytest.raises(TypeError, match="either num_slices or slice_len"):
        PrioritizedSliceSampler(64, 1, 1)
    with pytest.raises(TypeError, match="either traj_key or trajectory_key"):
        PrioritizedSliceSampler(64, 1, 1, slice_len=1, traj_key="a", trajectory_key="b")
