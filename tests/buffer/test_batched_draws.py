"""Batches that are drawn and located many at once are those that are drawn one by one."""

import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import rlx
from rlx.buffer import (
    Compose,
    DatasetStorage,
    FrameStack,
    NextAction,
    RandomSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    Timestep,
    unchanged,
)
from rlx.errors import RlxError, TransformError
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from tests.factories import LARGE, SMALL, make_block, write_dataset
from tests.kernels import HOW, reading


class OneByOne(SliceSampler):
    """Sampler whose draws are not made ahead, because it may do anything."""


class OneAtATime(RandomSampler):
    """The same of single steps."""


KINDS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "random": (RandomSampler, OneAtATime, {}),
    "slices": (SliceSampler, OneByOne, {"num_slices": 3}),
    "few starts": (SliceSampler, OneByOne, {"slice_len": 6}),
    "by trajectory": (SliceSampler, OneByOne, {"slice_len": 2, "weighting": "trajectory"}),
    "at reset": (SliceSampler, OneByOne, {"slice_len": 2, "start_at_reset": True, "truncated_key": None}),
    "shorter": (SliceSampler, OneByOne, {"slice_len": 6, "strict_length": False}),
    "span": (SliceSampler, OneByOne, {"slice_len": 3, "span": True}),
    "own flag": (SliceSampler, OneByOne, {"slice_len": 2, "truncated_key": ("next", "lives")}),
    "padded": (SliceSampler, OneByOne, {"slice_len": 6, "strict_length": False, "pad_output": True}),
}


@pytest.fixture(scope="module", params=HOW)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    schema = Schema({**LARGE.fields, "lives": Field("uint8", (), Role.NEXT)})
    blocks = [[make_block([3, 5, 9], first_episode=3 * shard, schema=schema)] for shard in range(2)]
    with reading(request.param):
        yield write_dataset(tmp_path_factory.mktemp("data") / "data", blocks, schema=schema)


def assert_same(one: Any, other: Any) -> None:
    """Compare batches with all their keys, in order, or dicts."""
    keys = [*one.keys(True, True)] if hasattr(one, "batch_size") else [*one]
    assert keys == ([*other.keys(True, True)] if hasattr(other, "batch_size") else [*other])
    for key in keys:
        assert one[key].dtype == other[key].dtype
        assert torch.equal(one[key], other[key])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize(
    "transform", [None, FrameStack(3), FrameStack(3, "zeros"), Compose(FrameStack(3), Timestep(), NextAction())]
)
def test_batches_are_those_drawn_one_by_one(
    dataset: Dataset, kind: str, make: Callable[..., ReplayBuffer], transform: Any
) -> None:
    ahead, alone, how = KINDS[kind]
    found, expected = (
        make(storage=dataset, sampler=cls(seed=1, **how), batch_size=6, transform=transform) for cls in (ahead, alone)
    )
    prefetched = make(storage=dataset, sampler=ahead(seed=1, **how), batch_size=6, transform=transform, prefetch=2)
    for number in range(20):
        batch, info = expected.sample(return_info=True)
        for buffer in (found, prefetched):
            mine, mine_info = buffer.sample(return_info=True)
            assert_same(mine, batch)
            assert_same(mine_info, info)
        assert found.sampler.state_dict() == expected.sampler.state_dict()
        if number == 9:
            found.load_state_dict(found.state_dict())
        if number == 12:
            prefetched = pickle.loads(pickle.dumps(prefetched))
    prefetched.shutdown()


ODD: dict[str, dict[str, Field]] = {
    "of no numbers": {"nothing": Field("float32", (2, 0), Role.STEP)},
    "of several steps": {"steps_to_next_obs": Field("int64", (1,), Role.STEP)},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
@pytest.mark.parametrize("transform", [None, FrameStack(2), FrameStack(2, keys=("action",))])
def test_odd_fields_are_read_or_refused_as_one_by_one(tmp_path: Path, fields: dict[str, Field], transform: Any) -> None:
    schema = Schema({**SMALL.fields, **fields})
    dataset = write_dataset(tmp_path / "data", [[make_block([3, 5], schema=schema)]], schema=schema)
    buffers = [ReplayBuffer(storage=dataset, sampler=cls(seed=1), batch_size=4) for cls in (RandomSampler, OneAtATime)]

    def outcome(buffer: ReplayBuffer) -> Any:
        try:
            return buffer.sample()
        except TransformError as exc:
            return {"error": torch.tensor(list(str(exc).encode()))}

    for buffer in buffers:
        buffer.append_transform(transform or unchanged)
    for _ in range(4):
        assert_same(*map(outcome, buffers))


@pytest.mark.parametrize(("kind", "batch_size"), [("random", 1), ("slices", 3 * 401)])
def test_errors_come_as_one_by_one(kind: str, batch_size: int, tmp_path: Path) -> None:
    """Some steps are damaged, and no trajectory has 401 steps."""
    schema = Schema({**SMALL.fields, "noise": Field("int64", (40,), Role.STEP)})
    shards = [[make_block([400], first_episode=number, schema=schema)] for number in range(2)]
    write_dataset(tmp_path / "data", shards, schema=schema, store="memmap", codec="none")
    with next((tmp_path / "data").glob("shards/00001/noise*")).open("r+b") as file:
        file.truncate(100)

    def outcome(buffer: ReplayBuffer) -> Any:
        try:
            return buffer.sample()["index"].tolist()
        except RlxError as exc:
            return str(exc)

    ahead, alone, how = KINDS[kind]
    samplers = [cls(seed=1, **how) for cls in (ahead, alone)]
    found, expected = (
        ReplayBuffer(storage=rlx.open(tmp_path / "data"), sampler=sampler, batch_size=batch_size)
        for sampler in samplers
    )
    assert [outcome(found) for _ in range(9)] == [outcome(expected) for _ in range(9)]
    assert samplers[0].state_dict() == samplers[1].state_dict()


class NumberedStorage(DatasetStorage):
    """Storage that adds a key to the steps of a dataset."""

    def get(self, rows: Any, keys: Any = None) -> Any:
        return super().get(rows, keys).set("number", torch.from_numpy(rows))


def test_a_storage_that_reads_in_its_own_way(dataset: Dataset) -> None:
    buffer = ReplayBuffer(storage=NumberedStorage(dataset), sampler=RandomSampler(seed=0), batch_size=4)
    assert all("number" in buffer.sample() for _ in range(3))


def test_changes_between_batches(dataset: Dataset) -> None:
    buffers = [ReplayBuffer(storage=dataset, sampler=cls(seed=1)) for cls in (RandomSampler, OneAtATime)]

    def compare() -> None:
        for size in (4, 4, 4, 5, 5):
            assert_same(*(buffer.sample(size) for buffer in buffers))

    compare()
    for buffer in buffers:
        buffer.append_transform(FrameStack(2))
    compare()
    for buffer in buffers:
        buffer.sampler.load_state_dict(RandomSampler(seed=7).state_dict())
    compare()
    for buffer, cls in zip(buffers, (SliceSampler, OneByOne), strict=True):
        buffer.set_sampler(cls(slice_len=1, seed=2))
    compare()
    for buffer in buffers:
        buffer.sampler.weighting = "trajectory"  # type: ignore[attr-defined]
    compare()
    for buffer in buffers:
        buffer.set_storage(rlx.open(dataset.path).filter("length > 3"))
    compare()


def test_batches_share_no_memory(dataset: Dataset, tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=dataset, sampler=SliceSampler(slice_len=2, seed=0), batch_size=4)
    batches = [buffer.sample() for _ in range(20)]
    for one, other in pairwise(batches):
        for key in one.keys(True, True):
            assert one[key].untyped_storage().data_ptr() != other[key].untyped_storage().data_ptr()
    torch.save(batches[5]["index"], tmp_path / "index")
    assert (tmp_path / "index").stat().st_size < 4_000
