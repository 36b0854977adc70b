"""Indexing a buffer by lane and time, and by key."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices, integer_array_indices
from tensordict import TensorDict

from rlx.buffer import CompressedStorage, LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from rlx.errors import SchemaMismatchError

STORAGES = [LazyTensorStorage, ListStorage, CompressedStorage]


def filled(storage: Any, lane_shape: tuple[int, ...], size: int, writes: list[int]) -> ReplayBuffer:
    """A buffer whose steps are numbered in the order of their lanes' writes."""
    lanes = int(np.prod(lane_shape, dtype=np.int64))
    buffer = ReplayBuffer(storage=storage(size * lanes, ndim=len(lane_shape) + 1))
    start = 0
    for count in writes:
        time = torch.arange(start, start + count).expand(*lane_shape, count)
        lane = torch.arange(lanes).reshape(*lane_shape, 1).expand(*lane_shape, count)
        nested = {"observation": 1_000 * lane + time, "next": {"reward": time[..., None].float()}}
        buffer.extend(TensorDict(nested, [*lane_shape, count]))
        start += count
    return buffer


@given(st.data())
def test_a_tuple_indexes_what_the_whole_is(data: st.DataObject) -> None:
    lane_shape = data.draw(st.sampled_from([(), (3,), (2, 2)]))
    size = data.draw(st.integers(2, 6))
    writes = data.draw(st.lists(st.integers(1, size), min_size=1, max_size=3))
    buffer = filled(data.draw(st.sampled_from(STORAGES)), lane_shape, size, writes)
    whole = buffer[:]["observation"].numpy()
    shape = (*lane_shape, min(size, sum(writes)))
    assert whole.shape == shape
    index = data.draw(basic_indices(shape, min_dims=0) | integer_array_indices(shape))
    index = index if isinstance(index, tuple) else (index,)
    found = buffer[index]
    assert found.batch_size == whole[index].shape
    assert (found["observation"].numpy() == whole[index]).all()
    assert (buffer.storage[index]["observation"].numpy() == whole[index]).all()  # type: ignore[index]


def test_lane_and_times() -> None:
    buffer = filled(LazyTensorStorage, (3,), 10, [6])
    assert buffer[1, 2:4]["observation"].tolist() == [1002, 1003]
    assert buffer[:, -1]["observation"].tolist() == [5, 1005, 2005]
    assert buffer[..., 0]["observation"].tolist() == [0, 1000, 2000]
    assert buffer[2, 3]["observation"].item() == 2003
    assert buffer[[0, 2], [1, 1]]["observation"].tolist() == [1, 2001]


@pytest.mark.parametrize("index", [(3, 0), (0, 6), (0, 0, 0)])
def test_what_is_not_stored_cannot_be_indexed(index: Any) -> None:
    with pytest.raises(IndexError):
        filled(LazyTensorStorage, (3,), 10, [6])[index]


def test_steps_of_a_lane_can_be_changed() -> None:
    buffer = filled(LazyTensorStorage, (3,), 10, [6])
    buffer[1, 2:4] = buffer[2, 2:4]
    assert buffer[1]["observation"].item() == 1
    assert buffer[1, :]["observation"].tolist() == [1000, 1001, 2002, 2003, 1004, 1005]
    with pytest.raises(SchemaMismatchError, match=r"steps of shape \[2\]: expected \[3\]"):
        buffer[1, 2:5] = buffer[2, 2:4]


def test_rows_count_from_the_end_of_the_last_lane() -> None:
    storage = LazyTensorStorage(32, ndim=2)  # which leaves two rows of it to no lane
    storage.append(TensorDict({"observation": torch.arange(30).reshape(3, 10)}, [3, 10]))
    assert storage[-1]["observation"].item() == 29


def test_a_key_is_that_of_all_steps() -> None:
    buffer = filled(LazyTensorStorage, (3,), 10, [6])
    assert (buffer["observation"] == buffer[:]["observation"]).all()
    assert (buffer["next", "reward"] == buffer[:]["next", "reward"]).all()
    with pytest.raises(KeyError, match="nothing"):
        buffer["nothing"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("index", [(0, slice(2, 5)), (slice(None), 3), (2, -1), (slice(1, None), slice(None, None, 2))])
def test_torchrl_gives_the_same(index: Any) -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    theirs = peers.TensorDictReplayBuffer(storage=peers.LazyTensorStorage(60, ndim=2), batch_size=4)
    ours = TensorDictReplayBuffer(storage=LazyTensorStorage(60, ndim=2), batch_size=4)
    steps = TensorDict({"observation": torch.arange(60).reshape(3, 20)}, [3, 20])
    for start in (0, 10):
        theirs.extend(steps[:, start : start + 10].clone())
        ours.extend(steps[:, start : start + 10])
    assert ours[index]["observation"].tolist() == theirs[index]["observation"].tolist()
