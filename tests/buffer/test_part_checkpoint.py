"""A storage, a sampler or a writer is written alone, and another continues from what was written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rlx.buffer import (
    CompressedStorage,
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
)
from rlx.errors import DatasetExistsError, DatasetNotFoundError, SchemaMismatchError

STORAGES = [CompressedStorage, LazyMemmapStorage, LazyTensorStorage, ListStorage]
SAMPLERS = {
    "random": RandomSampler,
    "without": SamplerWithoutReplacement,
    "prioritized": lambda **seed: PrioritizedSampler(64, 0.7, 0.9, **seed),
    "slices": lambda **seed: SliceSampler(slice_len=2, **seed),
    "slices without": lambda **seed: SliceSamplerWithoutReplacement(slice_len=2, **seed),
    "prioritized slices": lambda **seed: PrioritizedSliceSampler(64, 0.7, 0.9, slice_len=2, **seed),
}


def steps(start: int, count: int, lanes: int = 1) -> TensorDict:
    time = torch.arange(start, start + count).expand(lanes, count)
    lane = torch.arange(lanes)[:, None]
    named = {"observation": 1_000 * lane + time, "episode": time // 4, "next": {"reward": time.float()}}
    return TensorDict(named, [lanes, count])


@given(
    kinds=st.tuples(st.sampled_from(STORAGES), st.sampled_from(STORAGES)),
    lanes=st.integers(1, 3),
    writes=st.lists(st.integers(1, 5), max_size=4),
    room=st.sampled_from([0, 7]),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_storage_becomes_what_another_was(
    kinds: tuple[Any, Any], lanes: int, writes: list[int], room: int, tmp_path: Path
) -> None:
    ndim = 1 if lanes == 1 else 2
    before = kinds[0](8 * lanes, ndim=ndim)
    after = kinds[1]((8 + room) * lanes, ndim=ndim)
    for number, count in enumerate(writes):
        block = steps(5 * number, count, lanes)
        before.append(block if lanes > 1 else block[0])
    before.dumps(tmp_path / "storage")
    after.loads(tmp_path / "storage")
    assert len(after) == len(before)
    if not writes:
        return
    rows = before.row_at(torch.arange(len(before)).numpy())
    others = after.row_at(torch.arange(len(after)).numpy())
    if not room:
        assert (rows == others).all()
    assert (before.get(rows) == after.get(others)).all()
    theirs, ours = before.index(), after.index()
    assert (theirs.remaining(rows) == ours.remaining(others)).all()
    assert (theirs.elapsed(rows) == ours.elapsed(others)).all()


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_continues(make: Any, tmp_path: Path) -> None:
    storage = LazyTensorStorage(64)
    storage.append(steps(0, 40)[0])
    before, after = make(seed=1), make(seed=2)
    for _ in range(3):
        before.sample(storage, 8)
    before.dumps(tmp_path / "sampler")
    after.loads(tmp_path / "sampler")
    for _ in range(5):
        assert (before.sample(storage, 8)[0] == after.sample(storage, 8)[0]).all()


def test_an_ensemble_of_samplers_continues(tmp_path: Path) -> None:
    storage = LazyTensorStorage(64)
    storage.append(steps(0, 40)[0])
    before = SamplerEnsemble(RandomSampler(seed=1), RandomSampler(seed=2), seed=3)
    after = SamplerEnsemble(RandomSampler(), RandomSampler())
    before.dumps(tmp_path / "sampler")
    after.loads(tmp_path / "sampler")
    for _ in range(5):
        theirs, ours = (each.sample([storage, storage], 8) for each in (before, after))
        assert [part.buffer for part in theirs] == [part.buffer for part in ours]
        assert all((a.rows == b.rows).all() for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("make", [RoundRobinWriter, TensorDictMaxValueWriter])
def test_a_writer_continues(make: Any, tmp_path: Path) -> None:
    storages, writers = [LazyTensorStorage(6), LazyTensorStorage(6)], [make(), make()]
    writers[0].extend(storages[0], steps(0, 5)[0])
    storages[0].dumps(tmp_path / "storage")
    writers[0].dumps(tmp_path / "writer")
    storages[1].loads(tmp_path / "storage")
    writers[1].loads(tmp_path / "writer")
    rows = [writer.extend(storage, steps(5, 4)[0]) for writer, storage in zip(writers, storages, strict=True)]
    assert (rows[0] == rows[1]).all()
    assert (storages[0][:] == storages[1][:]).all()


def test_another_part_is_refused(tmp_path: Path) -> None:
    RandomSampler().dumps(tmp_path / "sampler")
    ReplayBuffer().dumps(tmp_path / "buffer")
    with pytest.raises(SchemaMismatchError, match="is a checkpoint of RandomSampler, expected one of SliceSampler"):
        SliceSampler(slice_len=2).loads(tmp_path / "sampler")
    with pytest.raises(SchemaMismatchError, match="is a checkpoint of RandomSampler, expected one of a storage"):
        ListStorage().loads(tmp_path / "sampler")
    with pytest.raises(SchemaMismatchError, match="is a checkpoint of a buffer, expected one of RandomSampler"):
        RandomSampler().loads(tmp_path / "buffer")
    with pytest.raises(SchemaMismatchError, match="is a checkpoint of RandomSampler, expected one of a buffer"):
        ReplayBuffer().loads(tmp_path / "sampler")


def test_a_storage_that_is_too_small_keeps_what_it_has(tmp_path: Path) -> None:
    large, small = ListStorage(8), ListStorage(4)
    large.append(steps(0, 6)[0])
    small.append(steps(0, 3)[0])
    large.dumps(tmp_path / "large")
    with pytest.raises(SchemaMismatchError, match="checkpoint has 6 steps, the storage has room for 4"):
        small.loads(tmp_path / "large")
    assert len(small) == 3


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DatasetExistsError):
        RandomSampler().dumps(tmp_path)
    with pytest.raises(DatasetNotFoundError):
        ImmutableDatasetWriter().loads(tmp_path)


def test_texts_survive_another_capacity(tmp_path: Path) -> None:
    before, after = LazyTensorStorage(4), LazyTensorStorage(6)
    texts = NonTensorStack(*(NonTensorData(word) for word in ("one", "two", "one")))
    before.append(TensorDict({"a": torch.arange(3), "text": texts}, [3]))
    before.dumps(tmp_path / "storage")
    after.loads(tmp_path / "storage")
    assert after[:]["text"] == ["one", "two", "one"]
    assert after[:]["a"].tolist() == [0, 1, 2]
