"""The storages that are written to, held to the contract."""

from pathlib import Path

import pytest

from rlx.buffer.storage.compressed import CompressedStorage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.tensors import LazyMemmapStorage, LazyTensorStorage
from rlx.testing.storage import StorageContract, TrajectoryKeysContract


class TestListStorage(StorageContract, TrajectoryKeysContract):
    def make(self, max_size: int, ndim: int = 1) -> RingStorage:
        return ListStorage(max_size, ndim=ndim)


class TestLazyTensorStorage(StorageContract, TrajectoryKeysContract):
    def make(self, max_size: int, ndim: int = 1) -> RingStorage:
        return LazyTensorStorage(max_size, ndim=ndim)


class TestLazyMemmapStorage(StorageContract, TrajectoryKeysContract):
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.scratch = tmp_path

    def make(self, max_size: int, ndim: int = 1) -> RingStorage:
        return LazyMemmapStorage(max_size, ndim=ndim, scratch_dir=self.scratch, existsok=True)


class TestCompressedStorage(StorageContract, TrajectoryKeysContract):
    def make(self, max_size: int, ndim: int = 1) -> RingStorage:
        return CompressedStorage(max_size, ndim=ndim)
