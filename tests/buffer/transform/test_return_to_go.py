import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import NStep, ReturnToGo
from rlx.errors import TransformError
from tests.buffer.transform.stored import buffers, onward, stored


@given(buffer=buffers(), gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_it_agrees_with_going_on_step_by_step(buffer: ReplayBuffer, gamma: float) -> None:
    known = stored(buffer)
    buffer.append_transform(ReturnToGo(gamma))
    batch = buffer.sample(16)
    assert batch["return_to_go"].shape == (16, 1)
    assert batch["return_to_go"].dtype == torch.float32
    for step in batch:
        path = onward(int(step["observation"]), known)
        expected = sum(o % 1000 * gamma**i for i, o in enumerate(path))
        assert step["return_to_go"].item() == pytest.approx(expected)


@settings(max_examples=1)
@given(buffer=buffers())
def test_after_n_step_it_would_count_rewards_twice(buffer: ReplayBuffer) -> None:
    buffer.append_transform(NStep(2))
    with pytest.raises(TransformError, match="put ReturnToGo first"):
        buffer.append_transform(ReturnToGo())
    with pytest.raises(ValueError, match="expected 0 to 1"):
        ReturnToGo(-1)


def test_rewards_of_stored_n_steps_are_not_added_up() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4, transform=ReturnToGo())
    after = {"reward": torch.ones(4, 1), "done": torch.zeros(4, 1, dtype=torch.bool)}
    buffer.extend(TensorDict({"steps_to_next_obs": torch.full((4, 1), 2), "next": after}, [4]))
    with pytest.raises(TransformError, match="of n-step transitions would add up rewards several times"):
        buffer.sample()
