"""What all buffers, loaders and transforms keep to: every key of a batch has memory of its own.

A batch that is changed in place, key after key, changes once in every element; and the steps, the samplers and the
batches that follow are as if nobody had changed it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

import rlx
from rlx import buffer as parts
from rlx.buffer import (
    DatasetStorage,
    FrameStack,
    HERReplayBuffer,
    LazyTensorStorage,
    Normalize,
    NStep,
    OfflineToOnlineReplayBuffer,
    ReplayBuffer,
    ReplayBufferEnsemble,
    ReturnToGo,
    RewardClip,
    RewardSign,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    ToDevice,
    ToDtype,
    ToFloat,
)
from rlx.schema import Field, Role, Schema
from rlx.verbs.dataset import Dataset
from tests.factories import make_block, write_dataset
from tests.kernels import HOW, reading

SIZE = 6
# Compressed rows, small rows, and rewards that NStep need not cast.
SCHEMA = Schema(
    {
        **Schema.of(observation=("uint16", (20, 30)), action=("int64", ())).fields,
        "vector": Field("float32", (3,), Role.OBSERVATION),
        "reward": Field("float64", (), Role.NEXT),
    }
)
STACKED = ("observation", "vector")
Make = Callable[[Dataset], Iterator[Any]]


@pytest.fixture(scope="module", params=[*(f"zarr:zstd-dict:{how}" for how in HOW), "memmap:none:python"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    store, codec, how = request.param.split(":")
    blocks = [[make_block([SIZE, 9, SIZE + 5], first_episode=3 * shard, schema=SCHEMA)] for shard in range(2)]
    with reading(how):
        path = tmp_path_factory.mktemp("data") / "data"
        yield rlx.open(write_dataset(path, blocks, schema=SCHEMA, store=store, codec=codec).path)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    block = make_block([SIZE, 9, SIZE + 5, 2], schema=SCHEMA)
    return rlx.open(write_dataset(tmp_path_factory.mktemp("one") / "data", [[block]], schema=SCHEMA).path)


STORAGES: dict[str, Callable[[Dataset], Any]] = {
    "tensors": lambda data: filled(parts.LazyTensorStorage(100), data),
    "memory maps": lambda data: filled(parts.LazyMemmapStorage(100), data),
    "compressed": lambda data: filled(parts.CompressedStorage(100), data),
    "a list": lambda data: filled(parts.ListStorage(100), data),
    "a lazy stack": lambda data: filled(parts.LazyStackStorage(100), data),
    "given tensors": lambda data: parts.TensorStorage(data.get(slice(None), copy=True)),
}
SAMPLERS: dict[str, Callable[[], Any]] = {
    "steps": lambda: parts.RandomSampler(seed=0),
    "each step once": lambda: parts.SamplerWithoutReplacement(seed=0),
    "steps by priority": lambda: parts.PrioritizedSampler(100, 0.6, 0.4, seed=0),
    "a slice": lambda: parts.SliceSampler(num_slices=1, seed=0),
    "slices": lambda: parts.SliceSampler(slice_len=2, seed=0),
    "padded slices": lambda: parts.SliceSampler(slice_len=SIZE, strict_length=False, pad_output=True, seed=0),
    "each slice once": lambda: parts.SliceSamplerWithoutReplacement(slice_len=2, seed=0),
    "slices by priority": lambda: parts.PrioritizedSliceSampler(100, 0.6, 0.4, slice_len=2, seed=0),
}
TRANSFORMS: dict[str, Callable[[Dataset], Any]] = {
    "none": lambda _: None,
    "stacks": lambda _: FrameStack(4, keys=STACKED),
    "stacks with zeros": lambda _: FrameStack(4, "zeros", keys=STACKED),
    "stacks of one": lambda _: FrameStack(1, keys=STACKED),
    "transitions": lambda _: NStep(3),
    "transitions of one": lambda _: NStep(1, gamma=1),
    "stacked transitions": lambda _: parts.Compose(FrameStack(3, keys=STACKED), NStep(2)),
    "returns": lambda _: ReturnToGo(),
    "numbers": lambda data: parts.Compose(
        ToFloat(scale=2.0, keys=["action"]), ToDtype(torch.float64), RewardClip(), RewardSign(), Normalize(data)
    ),
    "a cast that changes nothing": lambda _: parts.Compose(ToDtype(torch.float64, keys=["reward"]), ToDevice("cpu")),
}


def filled(storage: Any, data: Dataset) -> Any:
    ReplayBuffer(storage=storage).extend(data.get(slice(None), copy=True))
    return storage


def drawn(buffer: Any) -> Iterator[Any]:
    """Batches of a buffer and what it says of them, then steps by index."""
    for _ in range(3):
        batch, info = buffer.sample(return_info=True)
        yield batch, {key: value for key, value in info.items() if isinstance(value, torch.Tensor)}
    yield buffer[: SIZE - 1], {}
    yield buffer[[3, 3, 0]], {}


def leaves(batch: Any) -> dict[Any, torch.Tensor]:
    """The tensors of a batch, of a lazy stack too, or of a batch and the dict beside it."""
    if isinstance(batch, tuple):
        return leaves(batch[0]) | {("info", key): value for key, value in batch[1].items()}
    if type(batch).__name__ == "LazyStackedTensorDict":
        found = [(n, key, leaf) for n, one in enumerate(batch.tensordicts) for key, leaf in leaves(one).items()]
        return {(n, key): leaf for n, key, leaf in found}
    assert isinstance(batch, TensorDictBase)
    return {key: batch.get(key) for key in batch.keys(True, True)}


def other(leaf: torch.Tensor) -> torch.Tensor:
    """A tensor none of whose elements is what it was."""
    numbers = leaf.numpy()  # torch adds no uint16
    return torch.from_numpy(np.asarray(~numbers if leaf.dtype == torch.bool else numbers * numbers.dtype.type(3) + 1))


def check_apart(batch: Any) -> None:
    """Change all leaves in place, one after the other: each must have changed once."""
    before = {key: leaf.clone() for key, leaf in leaves(batch).items()}
    for key, leaf in leaves(batch).items():
        repeats = [dim for dim, step in enumerate(leaf.stride()) if not step and leaf.shape[dim] > 1]
        assert not repeats, f"{key} repeats its memory"
        leaf.copy_(other(before[key]))
    for key, leaf in leaves(batch).items():
        assert torch.equal(leaf, other(before[key])), f"{key} shares memory with another key"
    for key, leaf in leaves(batch).items():
        leaf.copy_(before[key])
        leaf.copy_(other(leaf.clone()))


def check(make: Callable[[], Iterator[Any]]) -> None:
    """Compare what is drawn by two twins, of which one has all batches spoilt."""
    count = 0
    for batch, twin in zip(make(), make(), strict=True):
        found, expected = leaves(batch), leaves(twin)
        assert found.keys() == expected.keys()
        for key, leaf in found.items():
            torch.testing.assert_close(leaf, expected[key], rtol=0, atol=0, equal_nan=True)
        check_apart(batch)
        count += 1
    assert count > 1


def made(stored: Any, sampler: str, **options: Any) -> Iterator[Any]:
    return drawn(TensorDictReplayBuffer(storage=stored, sampler=SAMPLERS[sampler](), batch_size=SIZE, **options))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_datasets_by_all_samplers(dataset: Dataset, sampler: str) -> None:
    for stored in (dataset, dataset.filter("length > 6")):
        check(partial(made, stored, sampler))


@pytest.mark.parametrize("storage", STORAGES)
def test_storages_by_all_samplers(one: Dataset, storage: str) -> None:
    for sampler in SAMPLERS:
        check(partial(made, STORAGES[storage](one), sampler))


def through(stored: Any, transform: Any) -> None:
    """Check batches of steps and of one slice through a transform, read ahead or not."""
    check(partial(made, stored, "steps", transform=transform, prefetch=2))
    check(partial(made, stored, "a slice", transform=transform))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_datasets_through_all_transforms(dataset: Dataset, transform: str) -> None:
    through(dataset, TRANSFORMS[transform](dataset))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_storages_through_all_transforms(one: Dataset, transform: str) -> None:
    for storage, make in STORAGES.items():
        if storage != "a lazy stack":  # whose steps may differ in shape
            through(make(one), TRANSFORMS[transform](one))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("slice_len", [None, SIZE])
def test_loaders(dataset: Dataset, transform: str, slice_len: int | None) -> None:
    made = TRANSFORMS[transform](dataset)

    def batches(source: Any, **options: Any) -> Iterator[Any]:
        size = SIZE if slice_len is None else slice_len
        loader = rlx.loader(source, 2 * size, slice_len=slice_len, seed=0, prefetch=0, **options)
        return islice(loader, 3)

    check(lambda: batches(dataset, transform=made))
    check(lambda: batches(dataset, transform=made, replacement=True))
    check(lambda: batches([dataset, dataset.filter("length > 6")], weights=[1, 1], transform=made))
    check(lambda: batches(ReplayBuffer(storage=dataset, transform=made)))


BUFFERS: dict[str, Callable[[Dataset], Any]] = {
    "priorities": lambda data: TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=data, batch_size=SIZE, generator=torch.Generator().manual_seed(0)
    ),
    "goals": lambda data: HERReplayBuffer(
        lambda steps: steps["next", "reward"] + 1,
        goal_key="vector",
        achieved_goal_key="vector",
        storage=data,
        sampler=SAMPLERS["steps"](),
        transform=FrameStack(2),
        batch_size=SIZE,
        seed=0,
    ),
    "several": lambda data: ReplayBufferEnsemble(
        *(ReplayBuffer(storage=data, sampler=parts.SliceSampler(slice_len=3, seed=seed)) for seed in range(2)),
        sample_from_all=True,
        batch_size=2 * SIZE,
        seed=0,
    ),
    "offline and online": lambda data: online(data),
    "generations": lambda data: ReplayBuffer(
        storage=filled(LazyTensorStorage(100), data),
        sampler=SAMPLERS["steps"](),
        writer=parts.RoundRobinWriter(track_generations=True),
        batch_size=SIZE,
    ),
}


def online(data: Dataset) -> OfflineToOnlineReplayBuffer:
    made = OfflineToOnlineReplayBuffer(data, online_capacity=50, batch_size=SIZE, seed=0)
    made.extend(data.get(slice(0, 20), copy=True))
    return made


@pytest.mark.parametrize("kind", BUFFERS)
def test_other_buffers(one: Dataset, kind: str) -> None:
    check(lambda: sampled(BUFFERS[kind](one)))


def sampled(buffer: Any) -> Iterator[Any]:
    for _ in range(4):
        yield buffer.sample()


def test_what_a_dataset_gives(dataset: Dataset) -> None:
    """Slices share, unless told otherwise; other steps do not."""
    length = int(dataset.trajectories.length[1])
    shared = dataset.trajectory(1)
    assert shared["vector"].data_ptr() + 12 == shared["next", "vector"].data_ptr()
    check(lambda: iter([dataset.trajectory(1, copy=True), dataset.get(slice(SIZE, SIZE + length), copy=True)]))
    check(lambda: iter([dataset[[5, 4, 3]], dataset.get([0, 1, 2], copy=True), dataset[4], dataset.get(-1)]))
    storage = DatasetStorage(dataset)
    rows = torch.arange(3).numpy()
    check(lambda: iter([storage.get(rows), storage.get(rows, ["observation", ("next", "observation"), "index"])]))
    assert rows.tolist() == [0, 1, 2]


def test_steps_of_a_torch_data_loader(dataset: Dataset) -> None:
    check(lambda: iter(dataset.__getitems__([0, 1, 2])))
