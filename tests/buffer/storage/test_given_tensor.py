"""A storage over given tensors: full, without a copy, and else like a storage that was filled."""

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx.buffer import LazyTensorStorage, ReplayBuffer, SliceSampler, TensorStorage
from rlx.errors import SchemaMismatchError


def steps(*lanes: int, time: int = 10) -> TensorDict:
    count = int(np.prod(lanes, dtype=np.int64)) * time
    numbers = torch.arange(count).reshape(*lanes, time)
    episode = (torch.arange(time) // 5).expand(*lanes, time)
    return TensorDict({"a": numbers, "episode": episode, "next": {"b": numbers[..., None].float()}}, [*lanes, time])


@pytest.mark.parametrize("lanes", [(), (3,), (2, 2)])
def test_it_is_what_a_storage_that_was_filled_is(lanes: tuple[int, ...]) -> None:
    given, ndim = steps(*lanes), len(lanes) + 1
    filled = LazyTensorStorage(given.numel(), ndim=ndim)
    filled.append(given)
    storage = TensorStorage(given, ndim=ndim)
    assert len(storage) == storage.max_size == given.numel()
    rows = storage.row_at(np.arange(len(storage)))
    assert (storage.get(rows) == filled.get(rows)).all()
    assert (storage.index().remaining(rows) == filled.index().remaining(rows)).all()
    both = [ReplayBuffer(storage=each, sampler=SliceSampler(slice_len=3, seed=0)) for each in (storage, filled)]
    assert (both[0].sample(30) == both[1].sample(30)).all()
    assert (both[0][:]["a"] == given["a"]).all()


def test_its_memory_is_what_was_given() -> None:
    given = steps()
    buffer = ReplayBuffer(storage=TensorStorage(given))
    assert buffer.extend(steps()[7:]).tolist() == [0, 1, 2]
    assert given["a"].tolist() == [7, 8, 9, 3, 4, 5, 6, 7, 8, 9]
    buffer[3] = steps()[0]
    assert given["next", "b"][3].item() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchrl_does_the_same() -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    given = [steps().exclude("episode") for _ in range(2)]
    buffers: list[Any] = [
        peers.ReplayBuffer(storage=peers.TensorStorage(given[0]), batch_size=3),
        ReplayBuffer(storage=TensorStorage(given[1]), batch_size=3),
    ]
    for buffer in buffers:
        assert len(buffer) == 10
        buffer.extend(steps().exclude("episode")[7:])
    assert (given[0] == given[1]).all()
    assert (buffers[0][:]["a"] == buffers[1][:]["a"]).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_size 4: expected 10, the steps of the TensorDict"):
        TensorStorage(steps(), 4)
    with pytest.raises(SchemaMismatchError, match=r"expected a TensorDict of 2 dimensions, found \[10\]"):
        TensorStorage(steps(), ndim=2)
    with pytest.raises(SchemaMismatchError, match="expected a TensorDict of 1 dimensions, found Tensor"):
        TensorStorage(torch.arange(3))  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError, match="expected at least one tensor, found none"):
        TensorStorage(TensorDict({}, [3]))
    assert len(TensorStorage(steps(), 10)) == 10
