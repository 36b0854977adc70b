"""What every sampler keeps to: a suite that a sampler's own test file subclasses.

One method comes from a subclass::

    class TestMySampler(SamplerContract):
        batch_size = 8

        def make(self, **seeding: Any) -> MySampler:
            return MySampler(**seeding)
"""

import io
import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from rlx.buffer.protocol import Rows, Sampler
from rlx.errors import SamplingError
from rlx.testing.listed_storage import ListedStorage, episodes

BATCHES = 12


def saved(state: Mapping[str, Any]) -> Any:
    """The state after a round trip that trusts nothing."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Whether two dicts hold the same arrays."""
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


class SamplerContract(ABC):
    """A test class of a sampler inherits this and says how to make it."""

    batch_size = 8

    @abstractmethod
    def make(self, **seeding: Any) -> Sampler:
        """A sampler for storages of 64 rows."""

    @pytest.fixture
    def storage(self) -> ListedStorage:
        """Ten trajectories, the last of which is open: 50 of 64 rows."""
        storage = episodes(ListedStorage(64), 4, 6, 5, 4, 7, 5, 4, 6, 5)
        storage.write(*[(9, "")] * 4)
        return storage

    def draw(self, sampler: Sampler, storage: ListedStorage, batches: int = BATCHES) -> list[Rows]:
        return [sampler.sample(storage, self.batch_size)[0] for _ in range(batches)]

    def test_rows_are_stored_ones(self, storage: ListedStorage) -> None:
        for rows in self.draw(self.make(seed=1), storage):
            assert rows.dtype == np.int64
            assert 0 < len(rows) <= self.batch_size
            assert set(rows.tolist()) <= set(storage.steps)

    def test_what_comes_beside_is_as_long(self, storage: ListedStorage) -> None:
        rows, info = self.make(seed=1).sample(storage, self.batch_size)
        assert all(len(values) == len(rows) for values in info.values())

    def test_the_seed_decides(self, storage: ListedStorage) -> None:
        one, same_seed, other = (np.concatenate(self.draw(self.make(seed=s), storage)) for s in (1, 1, 2))
        assert np.array_equal(one, same_seed)
        assert not np.array_equal(one, other)

    def test_a_generator_seeds(self, storage: ListedStorage) -> None:
        def drawn(number: int) -> Rows:
            sampler = self.make(generator=torch.Generator().manual_seed(number))
            return np.concatenate(self.draw(sampler, storage))

        assert np.array_equal(drawn(3), drawn(3))
        assert not np.array_equal(drawn(3), drawn(4))

    def test_seed_and_generator_exclude_each_other(self) -> None:
        with pytest.raises(TypeError, match="either seed or generator"):
            self.make(seed=1, generator=torch.Generator())

    def test_fresh_ones_differ(self, storage: ListedStorage) -> None:
        one, other = (np.concatenate(self.draw(self.make(), storage)) for _ in range(2))
        assert not np.array_equal(one, other)

    def test_global_randomness_is_left_alone(self, storage: ListedStorage) -> None:
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
        self.draw(self.make(), storage)
        assert random.getstate() == before[0]
        assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), before[2])

    @pytest.mark.parametrize("batches", range(8))
    def test_it_goes_on_where_it_stopped(self, storage: ListedStorage, batches: int) -> None:
        sampler = self.make(seed=1)
        for rows in self.draw(sampler, storage, batches):
            sampler.update_priority(rows, rows % 5 / 4)
        again = self.make(seed=7)
        again.load_state_dict(saved(sampler.state_dict()))
        for _ in range(BATCHES):
            (rows, info), (other_rows, other_info) = (s.sample(storage, self.batch_size) for s in (sampler, again))
            assert np.array_equal(rows, other_rows)
            assert same(info, other_info)

    def test_it_crosses_process_boundaries(self, storage: ListedStorage) -> None:
        sampler = self.make(seed=1)
        self.draw(sampler, storage, 3)
        copy = pickle.loads(pickle.dumps(sampler))
        assert all(map(np.array_equal, self.draw(sampler, storage), self.draw(copy, storage)))

    def test_shards_differ_and_leave_the_whole_alone(self, storage: ListedStorage) -> None:
        sampler = self.make(seed=1)
        one, other = (np.concatenate(self.draw(sampler.shard(index, 2), storage)) for index in range(2))
        assert not np.array_equal(one, other)
        assert all(map(np.array_equal, self.draw(sampler, storage), self.draw(self.make(seed=1), storage)))

    @pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
    def test_there_are_so_many_shards(self, index: int, count: int) -> None:
        with pytest.raises(ValueError, match="shard index of range"):
            self.make(seed=1).shard(index, count)

    def test_an_empty_storage(self, storage: ListedStorage) -> None:
        with pytest.raises(SamplingError, match="cannot draw 8 steps: the storage is empty"):
            self.make().sample(ListedStorage(64), 8)
        sampler = self.make()
        self.draw(sampler, storage)
        storage.empty()
        sampler.emptied()
        with pytest.raises(SamplingError, match="the storage is empty"):
            sampler.sample(storage, 8)

    def test_a_batch_of_nothing(self, storage: ListedStorage) -> None:
        with pytest.raises(ValueError, match="batch_size 0: expected at least 1"):
            self.make().sample(storage, 0)

    def test_after_emptying_only_new_rows(self, storage: ListedStorage) -> None:
        sampler = self.make(seed=1)
        self.draw(sampler, storage)
        storage.empty()
        sampler.emptied()
        sampler.extended(storage, storage.write(*[(1, "")] * 12))
        for rows in self.draw(sampler, storage):
            assert rows.max() < 12
