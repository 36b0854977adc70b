"""Where the files of a mapped storage are, and when they go."""

import gc
import os
import pickle
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx.buffer.storage import tensors
from rlx.buffer.storage.tensors import LazyMemmapStorage
from rlx.errors import DatasetExistsError, DiskFullError
from tests.contracts.storage import numbers_of, steps


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
    assert len(list((tmp_path / "scratch").iterdir())) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


def test_a_disk_without_room(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="bytes left, expected "):
        LazyMemmapStorage(10**14, scratch_dir=tmp_path).append(steps([1]))
