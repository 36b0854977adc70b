"""Batches of some keys are those of all keys, without the others, which are not read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer import (
    CompressedStorage,
    DatasetStorage,
    FrameStack,
    LazyTensorStorage,
    ListStorage,
    NStep,
    ReplayBuffer,
    ReturnToGo,
    RewardClip,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
)
from rlx.buffer.loader import Loader
from rlx.errors import CorruptDatasetError, OptionError
from rlx.store.dataset import Dataset
from rlx.transform.protocol import wanted
from tests.factories import LARGE, make_block, write_dataset

KEYS: list[Any] = [
    "observation",
    "action",
    ("next", "observation"),
    ("next", "reward"),
    ("next", "done"),
    "next",
    "collector",
    ("collector", "traj_ids"),
    "index",
    "truncated",
]
STORAGES: Any = st.sampled_from([DatasetStorage, CompressedStorage, LazyTensorStorage, ListStorage])
TRANSFORMS: dict[str, Any] = {
    "none": None,
    "clipped": RewardClip(-0.5, 0.5),
    "stacks": FrameStack(3),
    "zeros": FrameStack(3, padding="zeros"),
    "n steps": NStep(3, gamma=0.5),
    "returns": ReturnToGo(0.5),
    "stacks of n steps": rlx.buffer.Compose(FrameStack(2), NStep(2)),
    "a function, then stacks": rlx.buffer.Compose(lambda steps: steps, FrameStack(2)),
}
MADE: dict[str, list[Any]] = {
    "n steps": ["gamma", "steps_to_next_obs", ("next", "original_reward")],
    "returns": ["return_to_go"],
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    blocks = [make_block((7, 2, 9, 1, 12))]
    return rlx.open(write_dataset(tmp_path_factory.mktemp("data") / "one", [blocks]).path)


def stored(kind: Any, dataset: Dataset) -> Any:
    if kind is DatasetStorage:
        return DatasetStorage(dataset)
    storage = kind(len(dataset))
    storage.append(dataset[:])
    return storage


def check(some: TensorDictBase, every: TensorDictBase, keys: list[Any], beside: set[Any] = frozenset()) -> None:  # type: ignore[assignment]
    """A batch of some keys has them as the batch of all keys does, and nothing else."""
    leaves: Any = every.keys(True, True)
    expected = {key for key in leaves if wanted(key, [*keys, *beside])}
    assert set(some.keys(True, True)) == expected
    for key in expected:
        assert torch.equal(some[key], every[key]), key


@settings(max_examples=60, deadline=None)
@given(kind=STORAGES, how=st.sampled_from(sorted(TRANSFORMS)), slices=st.booleans(), data=st.data())
def test_batches_of_a_buffer(dataset: Dataset, kind: Any, how: str, slices: bool, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(KEYS + MADE.get(how, [])), min_size=1, unique=True))
    storage = stored(kind, dataset)

    def buffer(keys: Any) -> ReplayBuffer:
        sampler = SliceSampler(slice_len=4, pad="left", seed=5) if slices else None
        seeding: dict[str, Any] = {"generator": None if slices else torch.Generator().manual_seed(5)}
        return ReplayBuffer(
            storage=storage, sampler=sampler, transform=TRANSFORMS[how], batch_size=8, keys=keys, **seeding
        )

    some, every = buffer(keys), buffer(None)
    beside = {("collector", "mask"), ("collector", "slice_end")} if slices else set()
    for _ in range(3):
        check(some.sample(), every.sample(), keys, beside)
    check(some[3:9], every[3:9], keys)
    check(every.get([5, 0, 5], keys), every[[5, 0, 5]], keys)
    assert (some["observation"] == every["observation"]).all()


@settings(max_examples=30, deadline=None)
@given(
    how=st.sampled_from(sorted(TRANSFORMS)),
    cutting=st.sampled_from([{}, {"slice_len": 4}, {"slice_len": 4, "pad": "right"}, {"slice_len": 4, "stream": True}]),
    in_buffer=st.booleans(),
    data=st.data(),
)
def test_batches_of_a_loader(
    dataset: Dataset, how: str, cutting: dict[str, Any], in_buffer: bool, data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.sampled_from(KEYS + MADE.get(how, [])), min_size=1, unique=True))

    def loader(keys: Any) -> Loader:
        transform = TRANSFORMS[how]
        source = ReplayBuffer(storage=dataset, transform=transform) if in_buffer else dataset
        options = {"transform": None if in_buffer else transform, "keys": keys, **cutting}
        return Loader(source, 8, seed=3, prefetch=0, **options)

    pad, stream = cutting.get("pad"), cutting.get("stream")
    beside = {("collector", "mask")} if pad else {("collector", "slice_end"), "is_init"} if stream else set()
    for some, every in zip(loader(keys), loader(None), strict=True):
        check(some, every, keys, beside)


@given(
    keys=st.lists(st.sampled_from(KEYS), min_size=1, unique=True), index=st.sampled_from([3, slice(2, 9), [4, 1, 4]])
)
def test_steps_of_a_dataset(dataset: Dataset, keys: list[Any], index: Any) -> None:
    check(dataset.get(index, keys), dataset[index], keys)
    check(dataset.trajectory(-1, keys), dataset.trajectory(-1), keys)
    chosen = rlx.open(dataset.path).filter("length > 5")
    check(chosen.get(index, keys), chosen[index], keys)


def test_what_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [[make_block((20,), schema=LARGE)]], schema=LARGE)
    for file in (data.path / "shards" / "00000" / "observation" / "c").rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))
    broken = rlx.open(data.path)
    keys: list[Any] = ["action", ("next", "reward")]
    with pytest.raises(CorruptDatasetError):
        broken[:8]
    assert len(broken.get([1, 5], keys)) == 2
    assert len(ReplayBuffer(storage=broken, batch_size=8, keys=keys, transform=FrameStack(2)).sample()) == 8
    assert len(list(Loader(broken, 5, keys=keys))) == 4


def test_priorities_and_rows_come_with_any_keys(dataset: Dataset) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=dataset, batch_size=8, keys=["action"])
    batch = buffer.sample()
    assert set(batch.keys()) == {"action", "index", "priority_weight"}
    buffer.update_tensordict_priority(batch.set("td_error", torch.ones(8)))


def test_dicts_of_arrays_have_these_keys() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, keys=["observation", ("next", "reward")])
    steps = torch.arange(10.0)
    buffer.extend({"observation": steps, "action": steps, "next": {"reward": steps, "observation": steps}})
    batch: Any = buffer.sample()
    assert set(batch) == {"observation", "next"}
    assert set(batch["next"]) == {"reward"}


def test_an_epoch_goes_by_other_keys_than_these(dataset: Dataset) -> None:
    buffer = ReplayBuffer(storage=dataset, sampler=SamplerWithoutReplacement(), batch_size=8, keys=["action"])
    assert sum(len(batch) for batch in buffer) == len(dataset)


@pytest.mark.parametrize("transform", [None, FrameStack(2)])
def test_unknown_keys_are_named(dataset: Dataset, transform: Any) -> None:
    for storage in (dataset, stored(LazyTensorStorage, dataset)):
        with pytest.raises(KeyError, match="'pixels' is n"):
            ReplayBuffer(storage=storage, batch_size=4, keys=["action", "pixels"], transform=transform).sample()
    with pytest.raises(KeyError, match="'next/pixels' is n"):
        next(iter(Loader(dataset, 4, keys=[("next", "pixels")], transform=transform)))
    with pytest.raises(KeyError, match="'pixels' is not stored"):
        dataset.get(0, ["pixels"])


@pytest.mark.parametrize("keys", ["action", [], 5])
def test_bad_keys(dataset: Dataset, keys: Any) -> None:
    with pytest.raises(OptionError, match=r"keys .*: expected a list of keys"):
        ReplayBuffer(storage=dataset, keys=keys)
    with pytest.raises(OptionError, match=r"keys .*: expected a list of keys"):
        Loader(dataset, 4, keys=keys)


def test_a_group_is_read_once_for_n_steps(dataset: Dataset) -> None:
    keys = [("next", "original_reward")]
    buffer = ReplayBuffer(storage=dataset, transform=NStep(2), batch_size=4, keys=keys)
    assert isinstance(buffer.sample(), TensorDict)
