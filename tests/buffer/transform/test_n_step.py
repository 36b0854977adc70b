from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import FrameStack, NStep, RewardClip
from tests.buffer.transform.stored import buffers, is_last, onward, stored

END = {"": (False, False), "terminated": (True, False), "truncated": (False, True)}


def trajectory(*ends: str) -> TensorDict:
    """Steps with observations 1, 2, 3, ... and rewards 1, 10, 100, ...; each ends in this way or goes on."""
    count = len(ends)
    terminated, truncated = (torch.tensor(flags)[:, None] for flags in zip(*(END[end] for end in ends), strict=True))
    observation = torch.arange(1, count + 1)[:, None]
    after = {
        "observation": observation + 1,
        "reward": 10.0 ** torch.arange(count)[:, None],
        "done": terminated | truncated,
        "terminated": terminated,
        "truncated": truncated,
    }
    return TensorDict({"observation": observation, "next": after}, [count])


# What a step becomes: reward, next observation, terminated, truncated, steps.
CASES: dict[str, tuple[tuple[str, ...], int, tuple[float, int, bool, bool, int]]] = {
    "in the middle": (("", "", "", ""), 1, (10 + 50, 4, False, False, 2)),
    "up to a termination": (("", "terminated", ""), 0, (1 + 5, 3, True, False, 2)),
    "a termination stops it": (("terminated", "", ""), 0, (1, 2, True, False, 1)),
    "a truncation stops it": (("truncated", "", ""), 0, (1, 2, False, True, 1)),
    "up to a truncation": (("", "truncated", ""), 0, (1 + 5, 3, False, True, 2)),
    "the newest step stops it": (("", "", ""), 2, (100, 4, False, False, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_two_steps_become_one_transition(case: str) -> None:
    ends, row, (reward, observation, terminated, truncated, steps) = CASES[case]
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), transform=NStep(2, 0.5))
    buffer.extend(trajectory(*ends))
    step = buffer[[row]]
    assert step["next", "reward"].tolist() == [[reward]]
    assert step["next", "original_reward"].tolist() == [[10.0**row]]
    assert step["next", "observation"].tolist() == [[observation]]
    assert step["next", "terminated"].tolist() == [[terminated]]
    assert step["next", "truncated"].tolist() == [[truncated]]
    assert step["next", "done"].tolist() == [[terminated or truncated]]
    assert step["steps_to_next_obs"].tolist() == [[steps]]
    assert step["gamma"].tolist() == [[0.5**steps]]
    assert step["gamma"].dtype == torch.float32


@given(buffer=buffers(), n=st.integers(1, 6))
def test_it_agrees_with_going_on_step_by_step(buffer: ReplayBuffer, n: int) -> None:
    known = stored(buffer)
    buffer.append_transform(NStep(n, 0.5))
    for step in buffer.sample(16):
        path = onward(int(step["observation"]), known)[:n]
        assert step["steps_to_next_obs"].item() == len(path)
        assert step["next", "observation"].item() == path[-1] + 1
        assert step["next", "reward"].item() == pytest.approx(sum(o % 1000 * 0.5**i for i, o in enumerate(path)))
        assert step["next", "done"].item() == is_last(path[-1])
        assert step["next", "terminated"].item() == (is_last(path[-1]) and path[-1] // 1000 % 2 == 1)


def sampled(*transforms: Any, row: int) -> Any:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(trajectory("", "", "", ""))
    for transform in transforms:
        buffer.append_transform(transform)
    return buffer[[row]]


def test_it_sums_the_rewards_that_the_transforms_before_it_made() -> None:
    assert sampled(RewardClip(0, 5), NStep(3, 1.0), row=0)["next", "reward"].item() == 1 + 5 + 5
    assert sampled(NStep(3, 1.0), RewardClip(0, 5), row=0)["next", "reward"].item() == 5


def test_the_next_stack_is_that_of_the_last_step() -> None:
    step = sampled(FrameStack(3), NStep(2, 1.0), row=1)
    assert step["observation"].flatten().tolist() == [1, 1, 2]
    assert step["next", "observation"].flatten().tolist() == [2, 3, 4]


def test_callables_before_it_apply_to_all_steps_that_it_needs() -> None:
    def double(steps: Any) -> Any:
        return steps.set(("next", "reward"), steps["next", "reward"] * 2)

    assert sampled(double, NStep(2, 1.0), row=0)["next", "reward"].item() == 22


def test_a_callable_before_it_must_keep_the_number_of_steps() -> None:
    with pytest.raises(ValueError, match="cannot follow one that changes their number"):
        sampled(lambda steps: steps[:0], NStep(2), row=0)


def test_arguments_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="expected 1 to 10,000"):
        NStep(0)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        NStep(1, 1.5)
