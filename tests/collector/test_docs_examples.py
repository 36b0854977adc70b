"""The examples of TorchRL's documentation of collectors, word for word but for the imports and the sizes."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule

from rlx.buffer import LazyTensorStorage, ReplayBuffer, SliceSampler
from rlx.collector import (
    BaseCollector,
    Collector,
    DataCollectorBase,
    MultiaSyncDataCollector,
    MultiCollector,
    MultiSyncDataCollector,
    ParallelEnv,
    SerialEnv,
    SyncDataCollector,
)
from rlx.errors import CollectError
from tests.collector.environments import make_env, make_tagged, one, swing

N = 160


def sliced(ndim: int = 1) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(4 * N, ndim=ndim),
        sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"), seed=0),
        batch_size=32,
    )


def assert_consecutive(memory: ReplayBuffer) -> None:
    """A slice is some steps of one episode of one environment, one after the other."""
    for _ in range(20):
        slices = memory.sample().reshape(4, 8)
        observation = slices["observation"]
        assert (observation[:, :, :3] == observation[:, :1, :3]).all()
        assert (observation[:, :, 3].diff(dim=1) == 1).all()
        assert (slices["next", "observation"][:, :, 3] == observation[:, :, 3] + 1).all()


def filled(memory: ReplayBuffer, collector: Iterable[Any], batches: int = 6) -> list[int]:
    """The shape of the batches that were put in."""
    for number, data in enumerate(collector, 1):
        memory.extend(data)
        if number == batches:
            return list(data.shape)
    raise AssertionError("too few batches")


def test_quick_example() -> None:
    my_policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    env = ParallelEnv(4, make_env)
    collector = Collector(
        env,
        policy=my_policy,
        frames_per_batch=200,
        total_frames=1000,
    )
    count = 0
    for data in collector:
        assert data is not None
        assert data.shape == (4, 50)
        count += 1
        collector.update_policy_weights_()
    collector.shutdown()
    assert count == 5


def test_multi_collector_api() -> None:
    collector = MultiCollector(
        create_env_fn=[make_env] * 2,
        policy=swing,
        frames_per_batch=200,
        total_frames=1000,
        sync=True,
    )
    shapes = [list(data.shape) for data in collector if data is not None]
    collector.shutdown()
    assert shapes == [[2, 100]] * 5
    collector = MultiCollector(
        create_env_fn=[make_env] * 2,
        policy=swing,
        frames_per_batch=200,
        total_frames=1000,
        sync=False,
    )
    shapes = [list(data.shape) for data in collector if data is not None]
    collector.shutdown()
    assert shapes == [[200]] * 5


def test_legacy_names() -> None:
    assert SyncDataCollector is Collector
    assert DataCollectorBase is BaseCollector
    with MultiaSyncDataCollector([make_env] * 2, swing, frames_per_batch=10, total_frames=20) as collector:
        assert isinstance(collector, DataCollectorBase)
        assert isinstance(collector, MultiaSyncDataCollector)
        assert isinstance(collector, MultiCollector)
        assert not isinstance(collector, MultiSyncDataCollector)
        assert [list(data.shape) for data in collector if data is not None] == [[10], [10]]


def test_single_transitions() -> None:
    memory = ReplayBuffer(
        storage=LazyTensorStorage(N),
        transform=lambda data: data.reshape(-1),
        batch_size=8,
    )
    with SyncDataCollector(ParallelEnv(2, make_tagged), one, frames_per_batch=20, total_frames=60) as collector:
        for data in collector:
            assert data is not None
            memory.extend(data)
    assert len(memory) == 6  # a row is 10 steps of one environment, as in TorchRL
    sample = memory.sample()
    assert sample.shape == (80,)
    assert (sample["next", "observation"][:, 3] == sample["observation"][:, 3] + 1).all()


def test_single_environment() -> None:
    memory = sliced()
    with SyncDataCollector(make_tagged, one, frames_per_batch=N, total_frames=-1) as collector:
        assert filled(memory, collector) == [N]
    assert_consecutive(memory)


def test_batched_environments() -> None:
    memory = sliced(ndim=2)
    env = ParallelEnv(2, make_tagged)
    with SyncDataCollector(env, one, frames_per_batch=N, total_frames=-1) as collector:
        assert filled(memory, collector) == [2, N // 2]
    assert_consecutive(memory)


def test_multi_sync_and_regular_environments() -> None:
    memory = sliced(ndim=2)
    with MultiSyncDataCollector(
        [make_tagged] * 2, one, frames_per_batch=N, total_frames=-1, cat_results="stack"
    ) as collector:
        assert filled(memory, collector) == [2, N // 2]
    assert_consecutive(memory)


def test_multi_sync_and_parallel_environments() -> None:
    memory = sliced(ndim=3)
    with MultiSyncDataCollector(
        [ParallelEnv(2, make_tagged)] * 2, one, frames_per_batch=N, total_frames=-1, cat_results="stack"
    ) as collector:
        assert filled(memory, collector) == [2, 2, N // 4]
    assert_consecutive(memory)


@pytest.mark.parametrize("ndim", [1, 2])
def test_the_collector_fills_the_buffer_itself(ndim: int) -> None:
    memory = sliced(ndim)
    with MultiCollector(
        [make_tagged] * 2, one, frames_per_batch=N, total_frames=3 * N, replay_buffer=memory
    ) as collector:
        assert list(collector) == [None] * 3
    assert len(memory) == 3 * N
    assert_consecutive(memory)


def test_batches_of_other_dimensions_than_the_buffer_has() -> None:
    memory = sliced(ndim=3)
    with pytest.raises(CollectError, match=r"ndim=3, batches have shape \[2, 10\]") as error:
        list(Collector(ParallelEnv(2, make_tagged), one, frames_per_batch=20, replay_buffer=memory))
    assert error.value.hint is not None
    assert "ndim=2" in error.value.hint
    rows: Any = {"replay_buffer": ReplayBuffer(storage=LazyTensorStorage(100)), "frames_per_batch": 20}
    with pytest.raises(CollectError, match="total_frames=30: expected a multiple of 20, as the rows"):
        Collector(SerialEnv(2, make_tagged), one, total_frames=30, **rows)
    with Collector(
        SerialEnv(2, make_tagged), one, total_frames=30, postproc=lambda steps: steps.reshape(-1), **rows
    ) as collector:
        assert list(collector) == [None, None]
    with pytest.raises(CollectError, match="total_frames=31: expected a multiple of 2"):
        Collector(ParallelEnv(2, make_tagged), one, frames_per_batch=20, total_frames=31, replay_buffer=sliced(ndim=2))
