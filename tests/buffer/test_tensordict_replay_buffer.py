"""Buffers that sample by priority: they draw what a buffer with a sampler of priorities draws."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlx.buffer import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)

STEPS = TensorDict({"observation": torch.arange(50), "episode": torch.arange(50) // 10}, [50])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("kind", [PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer])
def test_it_draws_what_a_sampler_of_priorities_draws(kind: Any) -> None:
    plain = ReplayBuffer if kind is PrioritizedReplayBuffer else TensorDictReplayBuffer
    sampler = PrioritizedSampler(64, 0.7, 0.9, 1e-3, reduction="mean", generator=generator())
    expected = plain(storage=LazyTensorStorage(64), sampler=sampler, batch_size=16)
    buffer = kind(
        alpha=0.7,
        beta=0.9,
        eps=1e-3,
        reduction="mean",
        storage=LazyTensorStorage(64),
        generator=generator(),
        batch_size=16,
    )
    for each in (expected, buffer):
        rows = each.extend(STEPS)
        each.update_priority(rows, torch.linspace(0, 2, 100).reshape(50, 2))
    for _ in range(5):
        theirs, ours = expected.sample(), buffer.sample()
        assert (theirs == ours).all()
        assert "priority_weight" in ours
        assert "index" in ours


def test_priorities_come_from_the_batch() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, priority_key="error", storage=LazyTensorStorage(64), batch_size=40
    )
    buffer.extend(STEPS)
    whole = STEPS.copy().set("index", torch.arange(50)).set("error", (torch.arange(50) == 7).double())
    buffer.update_tensordict_priority(whole)
    assert (buffer.sample()["observation"] == 7).all()


@pytest.mark.parametrize("kind", [PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer])
def test_steps_are_kept_in_a_list_of_a_thousand_by_default(kind: Any) -> None:
    buffer = kind(alpha=0.5, beta=0.5)
    assert isinstance(buffer.storage, ListStorage)
    assert buffer.storage.max_size == 1_000


@pytest.mark.parametrize(("reduction", "row"), [("max", 1), ("min", 2)])
def test_several_priorities_of_a_step_are_reduced_as_the_sampler_says(reduction: Any, row: int) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, reduction=reduction, batch_size=20)
    rows = buffer.extend(STEPS[:3])
    several = torch.tensor([[0.0, 0.0], [0.0, 1e9], [1.0, 1.0]])
    buffer.update_tensordict_priority(STEPS[:3].copy().set("index", rows).set("td_error", several))
    assert (buffer.sample()["observation"] == row).all()


def test_another_number_of_priorities_than_of_rows_is_refused() -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0)
    rows = buffer.extend(STEPS[:3])
    with pytest.raises(ValueError, match="3 priorities, found"):
        buffer.update_priority(rows, torch.ones(4))
    with pytest.raises(ValueError, match="3 priorities, found"):
        buffer.update_priority(rows, torch.ones(6))


def test_priorities_of_slices_are_those_of_their_steps() -> None:
    sampler = PrioritizedSliceSampler(64, 1.0, 0.0, slice_len=5, seed=0)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), sampler=sampler, batch_size=10)
    done = (torch.arange(50) % 10 == 9)[:, None]
    buffer.extend(STEPS.copy().set("next", TensorDict({"done": done}, [50])))
    slices = buffer.sample().reshape(2, 5)
    for extra in ((), (1,), (3,)):
        expected = torch.rand(2, 5, 1)
        slices["td_error"] = expected.expand(2, 5, *(extra or (1,))).reshape(2, 5, *extra)
        buffer.update_tensordict_priority(slices)
        found = sampler._tree.priority[slices["index"].flatten().numpy()]
        assert found.tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-6)
