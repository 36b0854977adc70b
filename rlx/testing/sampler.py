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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDict, TensorDictBase

from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.protocol import Keys, Rows, Sampler, Storage
from rlx.errors import SamplingError

BATCHES = 12


class ListedStorage(Storage):
    """Steps in a list; ``trajectories`` are put together anew, from all that was ever written, with every write."""

    def __init__(self, max_size: int, lanes: int = 1, extra: Sequence[str] = ()) -> None:
        self.max_size, self._lanes, self.ndim = max_size, lanes, 1 if lanes == 1 else 2
        self.generation = 0
        self.extra = extra
        self.log: list[tuple[int, int, bool]] = []  # row, trajectory id, done
        self.steps: dict[int, dict[Any, Any]] = {}
        self.heads = [0] * lanes
        self.paths: list[list[int]] = []  # the stored rows of every trajectory
        self.from_reset: list[bool] = []
        self.place: dict[int, tuple[int, int]] = {}  # row -> path, place in it

    def write(self, *steps: tuple[int, str], lane: int = 0) -> Rows:
        """Appends steps: (trajectory id, "" or "terminated" or "truncated")."""
        size, rows = self.max_size // self.lanes, []
        for ident, end in steps:
            row = lane * size + self.heads[lane] % size
            self.heads[lane] += 1
            self.log.append((row, ident, end != ""))
            self.steps[row] = {"number": len(self.log) - 1, "end": end}
            rows.append(row)
        self._index()
        return np.array(rows, np.int64)

    def _index(self) -> None:
        self.generation += 1
        newest = {row: number for number, (row, _, _) in enumerate(self.log)}
        paths: list[list[int]] = []
        open_paths: dict[int, int] = {}
        for number, (_, ident, done) in enumerate(self.log):
            if ident not in open_paths:
                open_paths[ident] = len(paths)
                paths.append([])
            paths[open_paths[ident]].append(number)
            if done:
                del open_paths[ident]
        self.paths, self.from_reset = [], []
        for path in paths:
            kept = [self.log[n][0] for n in path if newest[self.log[n][0]] == n]
            if kept:
                self.paths.append(kept)
                self.from_reset.append(newest[self.log[path[0]][0]] == path[0])
        self.place = {row: (p, i) for p, path in enumerate(self.paths) for i, row in enumerate(path)}

    def starts(self, slice_len: int, *, strict: bool = True) -> list[int]:
        """Every valid start."""
        return sorted(
            row
            for path in self.paths
            for i, row in enumerate(path)
            if len(path) - i >= slice_len or (not strict and i == 0)
        )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def lanes(self) -> int:
        return self._lanes

    @property
    def lane_shape(self) -> tuple[int, ...]:
        return (self.lanes,) if self.ndim > 1 else ()

    def row_at(self, ordinals: Rows) -> Rows:
        return np.array(sorted(self.steps), np.int64)[ordinals]

    def has(self, key: NestedKey) -> bool:
        return key in (("next", "done"), ("next", "truncated"), ("next", "terminated"), *self.extra)

    def get(self, rows: Rows, keys: Keys | None = None) -> TensorDictBase:
        ends = [self.steps[row]["end"] for row in rows.tolist()]
        flags: dict[Any, list[bool]] = {
            ("next", "done"): [end != "" for end in ends],
            ("next", "truncated"): [end == "truncated" for end in ends],
            ("next", "terminated"): [end == "terminated" for end in ends],
            "is_init": [self.place[row][1] == 0 for row in rows.tolist()],
        }
        chosen = flags if keys is None else {key: flags[key] for key in keys}
        batch = TensorDict({}, [len(rows)])
        for key, values in chosen.items():
            batch.set(key, torch.tensor(values).reshape(-1, 1))
        return batch

    def append(self, steps: TensorDictBase) -> Rows:
        raise NotImplementedError

    def set(self, rows: Rows, steps: TensorDictBase) -> None:
        raise NotImplementedError

    def replace(self, rows: Rows, steps: TensorDictBase) -> None:
        raise NotImplementedError

    def update(self, rows: Rows, steps: TensorDictBase) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any], steps: Any) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        self.log, self.steps, self.heads = [], {}, [0] * self.lanes
        self._index()

    def index(self, traj_key: Any = None, end_key: Any = None) -> "ListedIndex":
        return ListedIndex(self, traj_key, end_key)


class RingedStorage(ListedStorage):
    """The same with the index that real storages have; what the samplers are held against stays the slow one's."""

    def index(self, traj_key: Any = None, end_key: Any = None) -> Any:  # noqa: ARG002
        if self.known != self.generation:
            self.ring, self.known = RingTrajectoryIndex(self.max_size // self.lanes, self.lanes), self.generation
            for row, ident, done in self.log:
                self.ring.write(np.array([row]), np.array([ident]), np.array([done]))
            self.ring._generation = self.generation
        return self.ring

    known = -1
    ring: RingTrajectoryIndex


class ListedIndex:
    """The index of a ListedStorage, and the keys it was asked for by."""

    def __init__(self, storage: ListedStorage, traj_key: Any, end_key: Any) -> None:
        self.storage, self.keys = storage, (traj_key, end_key)

    @property
    def generation(self) -> int:
        return self.storage.generation

    def __len__(self) -> int:
        return len(self.storage)

    def row_at(self, ordinals: Rows) -> Rows:
        return self.storage.row_at(ordinals)

    def remaining(self, rows: Rows) -> Rows:
        places = [self.storage.place[row] for row in rows.tolist()]
        return np.array([len(self.storage.paths[p]) - i for p, i in places], np.int64)

    def elapsed(self, rows: Rows) -> Rows:
        return np.array([self.storage.place[row][1] for row in rows.tolist()], np.int64)

    def at_reset(self, rows: Rows) -> NDArray[np.bool_]:
        places = [self.storage.place[row] for row in rows.tolist()]
        return np.array([i == 0 and self.storage.from_reset[p] for p, i in places], bool)

    def follow(self, rows: Rows, steps: int) -> Rows:
        table = [[self._at(row, k) for k in range(steps)] for row in rows.tolist()]
        return np.array(table, np.int64).reshape(len(rows), steps)

    def after(self, rows: Rows, steps: Rows) -> Rows:
        return np.array([self._at(row, k) for row, k in zip(rows.tolist(), steps.tolist(), strict=True)], np.int64)

    def precede(self, rows: Rows, steps: int) -> Rows:
        table = [[self._at(row, k) for k in range(1 - steps, 1)] for row in rows.tolist()]
        return np.array(table, np.int64).reshape(len(rows), steps)

    def trajectories(self) -> tuple[Rows, Rows]:
        paths = self.storage.paths
        return np.array([p[0] for p in paths], np.int64), np.array([len(p) for p in paths], np.int64)

    def _at(self, row: int, steps: int) -> int:
        path, place = self.storage.place[row]
        rows = self.storage.paths[path]
        return rows[place + steps] if 0 <= place + steps < len(rows) else -1


def episodes(storage: ListedStorage, *lengths: int, end: str = "terminated") -> ListedStorage:
    """Writes whole episodes of these lengths, one after the other; ids go on from 0."""
    for ident, length in enumerate(lengths):
        storage.write(*[(ident, "")] * (length - 1), (ident, end))
    return storage


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
