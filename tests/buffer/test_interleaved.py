"""The configurations of TorchRL's page "Collectors and Replay Buffers", and the one that it calls not supported."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensordict import TensorDictBase

from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.slices import SliceSampler
from rlx.buffer.storage.compressed import CompressedStorage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.tensors import LazyMemmapStorage, LazyTensorStorage
from tests.buffer import producers

Producer = Callable[[int, int], Iterator[TensorDictBase]]
CONFIGURATIONS: dict[str, tuple[Producer, int]] = {
    "single environment": (producers.single, 1),
    "ParallelEnv, or workers stacked": (producers.parallel, 2),
    "workers with a ParallelEnv each": (producers.parallel_workers, 3),
    "asynchronous workers": (producers.asynchronous, 1),
    "asynchronous workers with a ParallelEnv each": (producers.asynchronous_parallel, 2),
    "ParallelEnv, flattened": (producers.parallel, 1),
    "workers with a ParallelEnv each, flattened": (producers.parallel_workers, 1),
    "asynchronous workers with a ParallelEnv each, flattened": (producers.asynchronous_parallel, 1),
}
STORAGES: dict[str, Callable[[int, int, Path], Any]] = {
    "tensor": lambda size, ndim, _: LazyTensorStorage(size, ndim=ndim),
    "memmap": lambda size, ndim, path: LazyMemmapStorage(size, scratch_dir=path, ndim=ndim),
    "compressed": lambda size, ndim, _: CompressedStorage(size, ndim=ndim),
    "list": lambda size, ndim, _: ListStorage(size, ndim=ndim),
}
CAPACITY = 240


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_slices_are_consecutive_steps_of_one_trajectory(configuration: str, storage: str, tmp_path: Path) -> None:
    produce, ndim = CONFIGURATIONS[configuration]
    memory = ReplayBuffer(
        storage=STORAGES[storage](CAPACITY, ndim, tmp_path),
        sampler=SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"), seed=0),
    )
    for data in produce(30, 10):
        memory.extend(data.reshape(-1) if ndim == 1 else data)
        producers.check_slices(memory.sample(16), 4)
    assert len(memory) == CAPACITY
    assert memory.write_count > CAPACITY


def test_the_first_configuration_as_it_is_documented() -> None:
    memory = ReplayBuffer(storage=LazyTensorStorage(CAPACITY), transform=lambda data: data.reshape(-1))
    for data in producers.parallel(10, 10):
        memory.extend(data)
    batch = memory.sample(32)  # a row is 10 steps of one environment
    assert batch.batch_size == (320,)
    assert (batch["next", "observation"] == batch["observation"] + 1).all()
