"""Slices that may reach beyond their trajectory: those that a loop over all windows finds, each equally often."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer import LazyTensorStorage, PrioritizedSliceSampler, ReplayBuffer, SliceSampler

Span = Any
Slices = Counter[tuple[int, ...]]


def filled(lengths: list[int], sampler: Any = None, buffers: Any = ReplayBuffer, storage: Any = None) -> Any:
    """A buffer in which 100 * trajectory + t is stored at time t."""
    storage = LazyTensorStorage(sum(lengths)) if storage is None else storage
    made = buffers(storage=storage, sampler=sampler)
    numbers = torch.cat([100 * trajectory + torch.arange(length) for trajectory, length in enumerate(lengths)])
    made.extend(TensorDict({"a": numbers, "episode": numbers // 100}, [len(numbers)]))
    return made


def windows(lengths: list[int], slice_len: int, span: tuple[Any, Any], strict: bool) -> Slices:
    """What is left of every window that reaches at most so far beyond its trajectory."""
    found: Slices = Counter()
    for trajectory, length in enumerate(lengths):
        if strict and length < slice_len:
            continue
        window = min(slice_len, length)
        left, right = (min(slice_len - 1 if reach is True else int(reach), window - 1) for reach in span)
        for start in range(-left, length - window + right + 1):
            inside = range(max(0, start), min(length, start + window))
            found[tuple(100 * trajectory + time for time in inside)] += 1
    return found


def drawn(buffer: Any, batch_size: int, batches: int) -> Slices:
    found: Slices = Counter()
    for _ in range(batches):
        batch = buffer.sample(batch_size)
        ends = np.flatnonzero(batch["next", "truncated"].numpy()) + 1
        found.update(tuple(part) for part in np.split(batch["a"].numpy(), ends)[:-1])
    return found


spans = st.tuples(st.sampled_from([False, 0, 1, 2, True]), st.sampled_from([False, 0, 1, 2, True]))


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4).filter(lambda lengths: max(lengths) >= 3),
    span=spans,
    strict=st.booleans(),
)
def test_every_slice_is_a_window(lengths: list[int], span: Span, strict: bool) -> None:
    sampler = SliceSampler(slice_len=3, span=span, strict_length=strict, seed=0)
    found = drawn(filled(lengths, sampler), 30, 5)
    assert sum(found.values()) == 50
    assert set(found) <= set(windows(lengths, 3, span, strict))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("span", [False, True, 1, (2, 0), (0, 2), (1, True)])
def test_every_window_comes_up_equally_often(span: Span, strict: bool) -> None:
    lengths = [5, 2, 4]
    sampler = SliceSampler(slice_len=3, span=span, strict_length=strict, seed=0)
    found = drawn(filled(lengths, sampler), 300, 100)
    expected = windows(lengths, 3, span if isinstance(span, tuple) else (span, span), strict)
    total = sum(expected.values())
    assert set(found) == set(expected)
    assert max(abs(found[each] / 10_000 - expected[each] / total) for each in expected) < 0.02


def test_steps_near_an_end_come_up_as_often_as_others() -> None:
    sampler = SliceSampler(slice_len=4, span=True, seed=0)
    buffer = filled([10], sampler)
    counts = Counter(np.concatenate([buffer.sample(400)["a"].numpy() for _ in range(100)]).tolist())
    assert max(counts.values()) < 1.1 * min(counts.values())


def test_padded_slices_have_one_length() -> None:
    batch = filled([6, 4], SliceSampler(slice_len=4, span=True, pad_output=True, seed=0)).sample(400)
    mask = batch["collector", "mask"].reshape(100, 4)
    assert 100 < mask.sum() < 400
    assert (batch["a"].reshape(100, 4).diff(dim=1)[mask[:, 1:]] == 1).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("left", [1, 2, True])
def test_torchrl_draws_the_same_to_the_left(left: Any) -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    theirs = peers.SliceSampler(slice_len=3, span=(left, False), traj_key="episode")
    torch.manual_seed(0)
    expected = drawn(filled([5, 4, 2], theirs, peers.TensorDictReplayBuffer, peers.LazyTensorStorage(11)), 30, 40)
    found = drawn(filled([5, 4, 2], SliceSampler(slice_len=3, span=(left, False), seed=0)), 30, 40)
    assert set(found) == set(expected)


@pytest.mark.parametrize("right", [1, True])
def test_priorities_choose_among_the_starts(right: Any) -> None:
    lengths = [5, 2, 4]
    sampler = PrioritizedSliceSampler(11, 1.0, 1.0, slice_len=3, span=(False, right), seed=0)
    buffer = filled(lengths, sampler)
    expected = windows(lengths, 3, (0, right), True)
    assert set(drawn(buffer, 300, 30)) == set(expected)
    buffer.update_priority(torch.arange(11), (torch.arange(11) == 3).double())
    assert set(drawn(buffer, 30, 1)) == {(3, 4)}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"span": 3}, ValueError, r"span \(3, 3\): expected less than the 3 steps of a slice"),
        ({"span": (-1, 0)}, ValueError, "span -1: expected at least 0"),
        ({"span": 1, "start_at_reset": True}, TypeError, "span: expected neither"),
        ({"span": 1, "whole_trajectories": True}, TypeError, "span: expected neither"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        filled([5], SliceSampler(slice_len=3, **options)).sample(3)


def test_priorities_have_no_start_before_a_trajectory() -> None:
    with pytest.raises(ValueError, match=r"span True: expected \(False, n\)"):
        PrioritizedSliceSampler(11, 1.0, 1.0, slice_len=3, span=True)
