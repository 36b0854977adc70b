from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlx.buffer.ensemble import ReplayBufferEnsemble
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler import RandomSampler
from rlx.buffer.tensor_storage import LazyTensorStorage
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform import FrameStack, RewardSign
from rlx.errors import SamplingError, SchemaMismatchError


def filled(value: int, kind: Any = ReplayBuffer, **more: Any) -> Any:
    made = kind(storage=LazyTensorStorage(10), sampler=RandomSampler(seed=value))
    made.extend(TensorDict({"a": torch.full((5,), value), **more}, [5]))
    return made


def test_all_buffers_give_a_row_each() -> None:
    ensemble = ReplayBufferEnsemble(filled(0), filled(1), filled(2), sample_from_all=True, batch_size=6)
    batch, info = ensemble.sample(return_info=True)
    assert batch["a"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["index", "buffer_ids"].tolist() == batch["a"].tolist()
    assert info["buffer_ids"].tolist() == [0, 1, 2]
    assert len(ensemble) == 15
    assert ensemble.num_buffers == 3
    assert ensemble[1].sample(1)["a"].tolist() == [1]


def test_buffers_are_drawn_by_their_probabilities() -> None:
    ensemble = ReplayBufferEnsemble(filled(0), filled(1), p=[1, 3], num_buffer_sampled=4, seed=0)
    drawn = torch.cat([ensemble.sample(8)["a"][:, 0] for _ in range(500)])
    assert drawn.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert set(ReplayBufferEnsemble(filled(0), filled(1), p=[0, 1], seed=0).sample(2)["a"].flatten().tolist()) == {1}


def test_the_same_seed_gives_the_same_batches_and_goes_on() -> None:
    def make() -> ReplayBufferEnsemble:
        return ReplayBufferEnsemble(filled(0), filled(1), num_buffer_sampled=3, batch_size=3, seed=5)

    first, second = make(), make()
    assert all((first.sample() == second.sample()).all() for _ in range(10))
    batches = iter(first)
    assert (next(batches) == second.sample()).all()


def test_keys_that_not_all_have_are_left_out_and_rows_are_kept() -> None:
    ensemble = ReplayBufferEnsemble(
        filled(0, TensorDictReplayBuffer, b=torch.zeros(5)), filled(1, TensorDictReplayBuffer), sample_from_all=True
    )
    batch = ensemble.sample(4)
    assert sorted(batch.keys()) == ["a", "index"]
    assert batch["index", "index"].shape == (2, 2)


def test_transforms_of_buffers_then_of_the_ensemble() -> None:
    def add(batch: Any) -> Any:
        return batch.set("a", batch["a"] + 1)

    def double(batch: Any) -> Any:
        return batch.set("a", batch["a"] * 2)

    one = filled(1).append_transform(add)
    ensemble = ReplayBufferEnsemble(one, filled(1), sample_from_all=True, transform=double)
    assert ensemble.sample(2)["a"].tolist() == [[4], [2]]
    collated = ReplayBufferEnsemble(one, filled(1), sample_from_all=True, collate_fn=torch.cat)  # type: ignore[arg-type]
    assert collated.sample(2)["a"].tolist() == [2, 1]


def test_arguments_that_do_not_go_together() -> None:
    one, two = filled(0), filled(1)
    for arguments, message in (
        ({"p": [1, 1], "sample_from_all": True}, "either sample_from_all or p"),
        ({"p": [1]}, "2 probabilities of at least 0"),
        ({"p": [0, 0]}, "not all 0"),
        ({"num_buffer_sampled": 0}, "num_buffer_sampled of at least 1"),
        ({"transform": FrameStack(2)}, "belongs to the buffers"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            ReplayBufferEnsemble(one, two, **arguments)
    with pytest.raises(ValueError, match="at least one"):
        ReplayBufferEnsemble()
    ensemble = ReplayBufferEnsemble(one, two, transform=RewardSign())
    with pytest.raises(SamplingError, match="batch of 3 steps: expected a multiple of 2"):
        ensemble.sample(3)
    with pytest.raises(ValueError, match="no batch size"):
        ensemble.sample()


def test_shapes_that_do_not_stack() -> None:
    other = ReplayBuffer(storage=LazyTensorStorage(10))
    other.extend(TensorDict({"a": torch.zeros(5, 3)}, [5]))
    with pytest.raises(SchemaMismatchError, match="do not stack"):
        ReplayBufferEnsemble(filled(0), other, sample_from_all=True).sample(4)
