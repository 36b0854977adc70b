"""Where the files of a mapped storage are, and when they go; and storages over given tensors, which copy nothing."""

import gc
import os
import pickle
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rlx.buffer import LazyTensorStorage, ReplayBuffer, SliceSampler, TensorStorage
from rlx.buffer.storage import tensors
from rlx.buffer.storage.tensors import LazyMemmapStorage
from rlx.errors import DatasetExistsError, DiskFullError, SamplingError, SchemaMismatchError
from rlx.testing.storage import numbers_of, steps


def test_the_files_are_where_one_says_and_stay_there(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(10, scratch_dir=tmp_path / "new" / "scratch")
    storage.append(steps(range(4)))
    assert storage.scratch_dir == tmp_path / "new" / "scratch"
    names = sorted(path.name for path in storage.scratch_dir.iterdir())
    assert "observation.memmap" in names
    assert "next-observation.memmap" in names
    del storage
    gc.collect()
    assert sorted(path.name for path in (tmp_path / "new" / "scratch").iterdir()) == names


def test_temporary_files_go_with_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = LazyMemmapStorage(10)
    assert storage.scratch_dir is None
    storage.append(steps(range(4)))
    assert storage.scratch_dir is not None
    assert storage.scratch_dir.parent == tmp_path
    directory = storage.scratch_dir
    del storage
    gc.collect()
    assert not directory.exists()


def test_the_end_of_another_process_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = LazyMemmapStorage(10)
    storage.append(steps(range(4)))
    directory = storage.scratch_dir
    assert directory is not None
    tensors._remove(directory, os.getpid() + 1)
    copy = pickle.loads(pickle.dumps(storage))
    assert numbers_of(copy, np.arange(4)) == [0, 1, 2, 3]
    del copy
    gc.collect()
    assert numbers_of(storage, np.arange(4)) == [0, 1, 2, 3]
    assert directory.exists()


def test_no_signal_handler_is_touched() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    LazyMemmapStorage(10).append(steps(range(4)))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_is_pickled_is_where_the_files_are() -> None:
    storage = LazyMemmapStorage(10_000)
    storage.append(steps(range(4)))
    assert len(pickle.dumps(storage)) < 10_000
    copy = pickle.loads(pickle.dumps(storage))
    storage.update(np.array([2]), steps([7]))
    assert numbers_of(copy, np.arange(4)) == [0, 1, 7, 3]


def test_steps_that_another_process_keeps() -> None:
    """Changed steps take no room of others, and those of several lanes count once."""
    storage = LazyMemmapStorage(16, ndim=2)
    storage.append(numbered(2, time=6))
    storage.set(np.array([6]), numbered(2, time=1)[0])
    copy = pickle.loads(pickle.dumps(storage))
    rows = np.arange(6)
    for _ in range(9):
        storage.update(rows[:1], storage.get(rows[:1]))
    storage.append(numbered(2, time=1))
    assert (copy.get(rows)["a"] == storage.get(rows)["a"]).all()


@pytest.mark.parametrize("lanes", [1, 3])
def test_steps_that_another_process_overwrites(lanes: int) -> None:
    """The other one has a ring of its own, which does not know of them."""
    storage = LazyMemmapStorage(8 * lanes, ndim=2)
    storage.append(numbered(lanes, time=6))
    copy = pickle.loads(pickle.dumps(storage))
    rows = storage.row_at(np.arange(len(storage)))
    storage.append(numbered(lanes, time=2))
    assert (copy.get(rows)["a"] == storage.get(rows)["a"]).all()
    storage.append(numbered(lanes, time=1))
    with pytest.raises(SamplingError, match=r"has overwritten steps of .* with 3 new ones"):
        copy.get(rows)
    kept = rows[rows % 8 > 0]
    assert (copy.get(kept)["a"] == storage.get(kept)["a"]).all()
    with pytest.raises(SamplingError, match="another process wrote steps to"):
        copy.append(numbered(lanes, time=1))
    storage.append(numbered(lanes, time=1))
    again = pickle.loads(pickle.dumps(storage))
    again.append(numbered(lanes, time=1))
    with pytest.raises(SamplingError, match="with 1 new ones"):
        storage.get(storage.row_at(np.arange(len(storage))))


def test_files_of_an_earlier_storage(tmp_path: Path) -> None:
    LazyMemmapStorage(10, scratch_dir=tmp_path).append(steps(range(10)))
    with pytest.raises(DatasetExistsError, match="exists") as caught:
        LazyMemmapStorage(10, scratch_dir=tmp_path).append(steps([1]))
    assert caught.value.hint is not None
    again = LazyMemmapStorage(10, scratch_dir=tmp_path, existsok=True)
    again.append(steps([1]))
    assert numbers_of(again, np.array([0])) == [1]
    with pytest.raises(IndexError):
        again.get(np.array([1]))


def test_names_stay_in_the_directory(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(4, scratch_dir=tmp_path / "scratch")
    storage.append(TensorDict({"../out": torch.arange(2), "a": {"b": torch.arange(2)}, "a-b": torch.arange(2)}, [2]))
    assert len(list((tmp_path / "scratch").iterdir())) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


def test_a_disk_without_room(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="bytes left, expected "):
        LazyMemmapStorage(10**14, scratch_dir=tmp_path).append(steps([1]))


def numbered(*lanes: int, time: int = 10) -> TensorDict:
    count = int(np.prod(lanes, dtype=np.int64)) * time
    numbers = torch.arange(count).reshape(*lanes, time)
    episode = (torch.arange(time) // 5).expand(*lanes, time)
    return TensorDict({"a": numbers, "episode": episode, "next": {"b": numbers[..., None].float()}}, [*lanes, time])


@pytest.mark.parametrize("lanes", [(), (3,), (2, 2)])
def test_it_is_what_a_storage_that_was_filled_is(lanes: tuple[int, ...]) -> None:
    given, ndim = numbered(*lanes), len(lanes) + 1
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
    given = numbered()
    buffer = ReplayBuffer(storage=TensorStorage(given))
    assert buffer.extend(numbered()[7:]).tolist() == [0, 1, 2]
    assert given["a"].tolist() == [7, 8, 9, 3, 4, 5, 6, 7, 8, 9]
    buffer[3] = numbered()[0]
    assert given["next", "b"][3].item() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchrl_does_the_same() -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    given = [numbered().exclude("episode") for _ in range(2)]
    buffers: list[Any] = [
        peers.ReplayBuffer(storage=peers.TensorStorage(given[0]), batch_size=3),
        ReplayBuffer(storage=TensorStorage(given[1]), batch_size=3),
    ]
    for buffer in buffers:
        assert len(buffer) == 10
        buffer.extend(numbered().exclude("episode")[7:])
    assert (given[0] == given[1]).all()
    assert (buffers[0][:]["a"] == buffers[1][:]["a"]).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_size 4: expected 10, the steps of the TensorDict"):
        TensorStorage(numbered(), 4)
    with pytest.raises(SchemaMismatchError, match=r"expected a TensorDict of 2 dimensions, found \[10\]"):
        TensorStorage(numbered(), ndim=2)
    with pytest.raises(SchemaMismatchError, match="expected a TensorDict of 1 dimensions, found Tensor"):
        TensorStorage(torch.arange(3))  # type: ignore[arg-type]
    with pytest.raises(SchemaMismatchError, match="expected at least one tensor, found none"):
        TensorStorage(TensorDict({}, [3]))
    assert len(TensorStorage(numbered(), 10)) == 10


def test_a_size_may_be_written_as_a_float() -> None:
    storage = LazyTensorStorage(1e2)  # type: ignore[arg-type]
    assert storage.append(TensorDict({"a": torch.arange(5)}, [5])).tolist() == [0, 1, 2, 3, 4]
    assert repr(storage) == "LazyTensorStorage(max_size=100, ndim=1, steps=5)"


def test_files_of_preprocessed_steps_are_opened_anew_where_they_are_sent(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(TensorDict({"a": torch.arange(10)}, [10]))
    made = buffer.preprocess(lambda steps: steps, dest=tmp_path / "made")
    other = pickle.loads(pickle.dumps(made))
    assert other[:]["a"].tolist() == list(range(10))


def test_texts_have_no_memory_to_map() -> None:
    text = NonTensorStack(*(NonTensorData(word) for word in "abc"))
    with pytest.raises(SchemaMismatchError, match="text: expected a tensor, found text") as error:
        TensorStorage(TensorDict({"a": torch.arange(3), "text": text}, [3]))
    assert error.value.hint == "use LazyTensorStorage"
