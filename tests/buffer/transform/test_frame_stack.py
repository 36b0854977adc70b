from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import Compose, FrameStack, NStep, ToFloat
from rlx.errors import TransformError
from rlx.store.dataset import Dataset
from rlx.store.step_reader import Padding
from tests.buffer.transform.stored import back, buffers, stored
from tests.factories import LARGE, make_block, write_dataset


def episodes(*lengths: int) -> TensorDict:
    """Steps of whole episodes; observations count from 1."""
    total = sum(lengths)
    ends = np.cumsum(lengths) - 1
    done = torch.zeros(total, 1, dtype=torch.bool)
    done[ends] = True
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    observation = torch.arange(1, total + 1).reshape(-1, 1)
    after = {"observation": observation + 1, "done": done, "terminated": done, "truncated": ~done & done}
    return TensorDict({"observation": observation, "collector": {"traj_ids": ids}, "next": after}, [total])


def buffer_of(steps: TensorDict, capacity: int = 100) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity))
    buffer.extend(steps)
    return buffer


CASES: dict[str, tuple[Padding, int, list[int], list[int]]] = {
    "the first step repeats itself": ("repeat", 0, [1, 1, 1], [1, 1, 2]),
    "the second has one before it": ("repeat", 1, [1, 1, 2], [1, 2, 3]),
    "enough before it": ("repeat", 3, [2, 3, 4], [3, 4, 5]),
    "the next episode begins anew": ("repeat", 4, [5, 5, 5], [5, 5, 6]),
    "zeros before the first": ("zeros", 0, [0, 0, 1], [0, 1, 2]),
    "zeros before the second": ("zeros", 5, [0, 5, 6], [5, 6, 7]),
}


@pytest.mark.parametrize("case", CASES)
def test_stacks_begin_with_the_episode(case: str) -> None:
    padding, row, expected, after = CASES[case]
    buffer = buffer_of(episodes(4, 4))
    buffer.append_transform(FrameStack(3, padding))
    step = buffer[[row]]
    assert step["observation"].flatten().tolist() == expected
    assert step["next", "observation"].flatten().tolist() == after


@given(buffer=buffers(), k=st.integers(1, 5), padding=st.sampled_from(["repeat", "zeros"]))
def test_it_agrees_with_going_back_step_by_step(buffer: ReplayBuffer, k: int, padding: Padding) -> None:
    known = stored(buffer)
    buffer.append_transform(FrameStack(k, padding))
    batch = buffer.sample(16)
    for stack, after in zip(batch["observation"], batch["next", "observation"], strict=True):
        path = back(int(stack[-1]), known)[-k:]
        first = path[0] if padding == "repeat" else 0
        assert stack.flatten().tolist() == [first] * (k - len(path)) + path
        assert after.flatten().tolist() == [*stack.flatten().tolist()[1:], path[-1] + 1]


def test_it_is_what_gymnasium_stacks() -> None:
    env = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), 4)
    seen, _ = env.reset(seed=0)
    stacks: list[tuple[Any, Any, bool]] = []
    done = False
    while not done:
        before = seen
        seen, _, terminated, truncated, _ = env.step(len(stacks) % 2)
        done = bool(terminated or truncated)
        stacks.append((before, seen, done))
    env.close()
    rows = [
        TensorDict(
            {
                "observation": torch.from_numpy(now[-1]),
                "next": {"observation": torch.from_numpy(then[-1]), "done": torch.tensor([ended])},
            }
        )
        for now, then, ended in stacks
    ]
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(rows)
    buffer.append_transform(FrameStack(4))
    batch = buffer[:]
    assert (batch["observation"].numpy() == np.stack([now for now, _, _ in stacks])).all()
    assert (batch["next", "observation"].numpy() == np.stack([then for _, then, _ in stacks])).all()


def test_other_keys_and_what_comes_before_it() -> None:
    buffer = buffer_of(episodes(3).set("pixels", torch.full((3, 2, 2), 51, dtype=torch.uint8)))
    buffer.append_transform(ToFloat(keys=["pixels"])).append_transform(FrameStack(2, keys=["pixels"]))
    step = buffer[[1]]
    assert step["pixels"].shape == (1, 2, 2, 2)
    assert step["pixels"].flatten().tolist() == pytest.approx([0.2] * 8)
    assert step["observation"].tolist() == [[2]]


def test_a_buffer_refuses_it_after_n_step() -> None:
    with pytest.raises(TransformError, match="put FrameStack first"):
        ReplayBuffer(storage=LazyTensorStorage(3), transform=Compose(NStep(2), FrameStack(2)))
    buffer = buffer_of(episodes(3).set(("next", "reward"), torch.ones(3, 1))).append_transform(NStep(2))
    with pytest.raises(TransformError, match="put FrameStack first"):
        buffer.append_transform(FrameStack(2))
    with pytest.raises(TransformError, match="put FrameStack first"):
        buffer.append_transform(Compose(FrameStack(2)))
    buffer.insert_transform(0, FrameStack(2))
    assert buffer[[0]]["observation"].shape == (1, 2, 1)


def test_steps_stored_as_transitions_over_several_cannot_be_stacked() -> None:
    buffer = buffer_of(episodes(3).set("steps_to_next_obs", torch.ones(3, 1)))
    buffer.append_transform(FrameStack(2))
    with pytest.raises(TransformError, match="n-step transitions"):
        buffer[[0]]


def test_a_text_is_one_key_and_an_unknown_key_is_refused(datasets: dict[bool, Dataset]) -> None:
    dataset = datasets[False]
    memory = buffer_of(episodes(3))
    memory.append_transform(FrameStack(2, keys="observation"))
    assert memory[:]["observation"].shape == (3, 2, 1)
    for storage in (LazyTensorStorage(10), dataset):
        buffer = ReplayBuffer(storage=storage, batch_size=2, transform=FrameStack(2, keys=["pixels"]))
        if storage is not dataset:
            buffer.extend(episodes(3))
        with pytest.raises(TransformError, match="unknown key 'pixels': expected one of observation"):
            buffer.sample()
    with pytest.raises(TransformError, match="unknown key 'pixels'"):
        next(iter(rlx.loader(dataset, 2, transform=FrameStack(2, keys="pixels"))))


def test_arguments_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="k 0: expected at least 1"):
        FrameStack(0)
    with pytest.raises(ValueError, match="expected 'repeat' or 'zeros'"):
        FrameStack(2, "ones")  # type: ignore[arg-type]


class CountingStorage(LazyTensorStorage):
    """Remembers which rows' observations were read."""

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
        self.asked: list[int] = []

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        if keys is None or "observation" in keys:
            self.asked += rows.tolist()
        return super().get(rows, keys)


@pytest.mark.parametrize("rows", [[0, 9, 17, 30, 45, 59], [20, 21, 22, 23, 24, 40, 41, 42]])
def test_no_observation_is_read_twice(rows: list[int]) -> None:
    storage = CountingStorage(100)
    buffer = ReplayBuffer(storage=storage, transform=FrameStack(4))
    buffer.extend(episodes(30, 30))
    buffer[rows]
    first = [30 * (row // 30) for row in rows]
    stacked = {step for row, start in zip(rows, first, strict=True) for step in range(max(start, row - 3), row + 1)}
    assert sorted(storage.asked) == sorted(stacked)


@given(
    k=st.integers(1, 5),
    padding=st.sampled_from(["repeat", "zeros"]),
    rows=st.lists(st.integers(0, 14), min_size=1, max_size=12),
    chosen=st.booleans(),
)
def test_stacks_of_a_dataset_are_those_of_its_steps_in_memory(
    datasets: dict[bool, Dataset], k: int, padding: Padding, rows: list[int], chosen: bool
) -> None:
    dataset = datasets[chosen]
    slow = LazyTensorStorage(len(dataset))
    slow.append(dataset[:].exclude("index"))
    expected = ReplayBuffer(storage=slow, transform=FrameStack(k, padding))[rows]
    found = ReplayBuffer(storage=dataset, transform=FrameStack(k, padding))[rows]
    for key in ("observation", ("next", "observation"), ("next", "reward"), ("collector", "traj_ids")):
        assert torch.equal(found[key], expected[key])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Dataset]:
    """Trajectories of 3 and 5 steps in three shards, all of them and those of 5 steps."""
    blocks = [[make_block([3, 5], first_episode=2 * shard, schema=LARGE)] for shard in range(3)]
    everything = write_dataset(tmp_path_factory.mktemp("data") / "data", blocks, schema=LARGE)
    return {False: everything, True: rlx.open(everything.path).filter("length > 3")}
