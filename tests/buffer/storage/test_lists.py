"""Steps of different shapes go in and come out as they are, in slices too."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from rlx.buffer import LazyStackStorage, ReplayBuffer, SliceSampler, TensorDictReplayBuffer
from rlx.errors import SchemaMismatchError


def step(number: int, length: int) -> TensorDict:
    """A step of an episode of three, with as many tokens as asked for."""
    return TensorDict(
        {
            "tokens": torch.full((length,), number),
            "text": f"step {number}",
            "next": {"reward": torch.tensor([float(number)]), "done": torch.tensor([number % 3 == 2])},
        }
    )


def tokens(steps: Any) -> list[list[int]]:
    return [each["tokens"].tolist() for each in steps]


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(2, 9))
def test_what_is_stored_is_what_was_written_last(writes: list[list[int]], size: int) -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(size))
    kept: dict[int, list[int]] = {}
    number = 0
    for lengths in writes:
        steps = [step(number + i, length) for i, length in enumerate(lengths)]
        for each, length in zip(steps, lengths, strict=True):
            if length:
                each.set("more", torch.zeros(length))
        rows = buffer.extend(steps)
        kept |= dict(zip(rows.tolist(), tokens(steps), strict=True))
        number += len(lengths)
    found = buffer[:]
    assert tokens(found) == [kept[row] for row in range(len(buffer))]
    assert buffer.storage.has("tokens")
    assert buffer.storage.has("more") == all("more" in each.keys() for each in found)  # noqa: SIM118
    assert buffer[0]["text"] == f"step {int(found[0]['next', 'reward'].item())}"


def test_a_batch_is_what_its_index_says() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyStackStorage(10), batch_size=20)
    for number in range(6):
        buffer.add(step(number, number % 4))
    batch = buffer.sample()
    for each in batch:
        assert each["tokens"].tolist() == step(int(each["index"]), int(each["index"]) % 4)["tokens"].tolist()
    batch[0]["tokens"].fill_(99)
    assert all(99 not in each for each in tokens(buffer[:]))


def test_slices_stay_in_their_episodes() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(10), sampler=SliceSampler(slice_len=2, seed=0), batch_size=40)
    buffer.extend([step(number, number % 4) for number in range(9)])
    numbers = buffer.sample()["next", "reward"].reshape(20, 2)
    assert (numbers.diff(dim=1) == 1).all()
    assert (numbers[:, 1] % 3 != 0).all()


def test_steps_are_changed_and_forgotten() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(10))
    buffer.extend([step(number, number) for number in range(3)])
    buffer[1] = step(7, 5)
    assert tokens(buffer[:]) == [[], [7] * 5, [2, 2]]
    assert buffer.storage.has("tokens")
    assert buffer.storage.has("text")
    assert not buffer.storage.has("nothing")
    assert set(buffer.storage.get(np.arange(0), ["tokens", ("next", "done")]).keys()) == {"next"}
    assert buffer.storage.get(np.array([1]), ["tokens"])[0]["tokens"].tolist() == [7] * 5
    buffer.empty()
    assert len(buffer) == 0
    buffer.extend([step(0, 1)])
    assert tokens(buffer[:]) == [[0]]


def test_steps_are_replaced_and_appended_at_rows() -> None:
    storage = LazyStackStorage(4)
    storage.set(np.arange(2), LazyStackedTensorDict(step(0, 1), step(1, 1)))
    storage.set(np.array([2]), LazyStackedTensorDict(step(2, 3)))
    storage.replace(np.array([0]), LazyStackedTensorDict(step(9, 2)))
    assert tokens(storage.get(np.arange(3))) == [[9, 9], [1], [2, 2, 2]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchrl_stores_the_same() -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    buffers: list[Any] = [
        peers.ReplayBuffer(storage=peers.LazyStackStorage(4), batch_size=3),
        ReplayBuffer(storage=LazyStackStorage(4), batch_size=3),
    ]
    for buffer in buffers:
        for number in range(6):
            buffer.add(step(number, number % 3))
    theirs, ours = (buffer[:] for buffer in buffers)
    assert type(theirs) is type(ours)
    assert tokens(theirs) == tokens(ours)
    assert [each["text"] for each in theirs] == [each["text"] for each in ours]


def test_what_is_not_held_is_refused(tmp_path: Any) -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(10))
    buffer.extend([step(0, 1)])
    with pytest.raises(SchemaMismatchError, match="cannot be saved: its steps may have different shapes"):
        buffer.dumps(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(SchemaMismatchError, match="key 'next/done' is missing in step 1 of 2"):
        buffer.extend([step(0, 1), step(1, 2).exclude(("next", "done"))])
    with pytest.raises(IndexError):
        buffer[5]


def test_steps_that_differ_are_refused_elsewhere() -> None:
    for steps in ([step(0, 1), step(1, 2)], [step(0, 1), step(1, 1).set("more", torch.zeros(1))]):
        buffer = ReplayBuffer()
        with pytest.raises(SchemaMismatchError, match="expected the same keys and shapes in all of them"):
            buffer.extend([each.exclude("text") for each in steps])
        assert len(buffer) == 0


def test_keys_may_differ_too() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(10))
    buffer.extend([step(0, 1), step(1, 1).set("more", torch.ones(3))])
    assert [each.get("more", None) is not None for each in buffer[:]] == [False, True]
    assert not buffer.storage.has("more")


@tensorclass
class Pose:
    """A tensorclass within a step."""

    place: torch.Tensor


def test_a_tensorclass_within_a_step_comes_back() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(4), batch_size=2)
    made: Any = Pose
    buffer.extend(TensorDict({"pose": made(torch.arange(6.0).reshape(3, 2), batch_size=[3])}, [3]))
    pose = buffer[[2, 0]]["pose"]
    assert type(pose) is Pose
    assert pose.place.tolist() == [[4, 5], [0, 1]]
