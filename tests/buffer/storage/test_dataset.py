"""A dataset as a storage: what it reads, what it refuses, and which steps follow each other."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlx.buffer.ensemble_parts import StorageEnsemble
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.tensordict_replay_buffer import PrioritizedReplayBuffer
from rlx.errors import DatasetNotFoundError, SamplingError, SchemaMismatchError
from rlx.testing.storage import Oracle, assert_same, steps
from tests.factories import LARGE, SMALL, make_block, write_dataset

LENGTHS = [3, 5, 1, 7, 2]


@pytest.fixture(params=[("zarr", "zstd-dict"), ("zarr", "none"), ("memmap", "none")], ids="-".join)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> DatasetStorage:
    store, codec = request.param
    schema = LARGE if codec != "none" else SMALL
    shards = [[make_block(LENGTHS[:3], schema=schema)], [make_block(LENGTHS[3:], first_episode=3, schema=schema)]]
    return DatasetStorage(write_dataset(tmp_path / "dataset", shards, schema=schema, store=store, codec=codec))


def test_it_reads_what_the_dataset_reads(storage: DatasetStorage) -> None:
    assert (len(storage), storage.max_size, storage.ndim, storage.lanes, storage.lane_shape) == (18, 18, 1, 1, ())
    rows = np.array([17, 0, 5, 5, 8])
    assert (storage.get(rows) == storage.dataset[rows]).all()
    assert storage.row_at(rows).tolist() == rows.tolist()


def test_it_opens_a_dataset_by_path_or_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "Pong" / "5", [[make_block([3, 5])]])
    monkeypatch.setenv("RLX_HOME", str(tmp_path))
    for named in ("Pong/5", tmp_path / "Pong" / "5"):
        assert (DatasetStorage(named).get(np.arange(8)) == dataset[:]).all()
    with pytest.raises(DatasetNotFoundError, match="Pong/6"):
        DatasetStorage("Pong/6")


def test_a_buffer_takes_a_dataset_as_its_storage(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[make_block([3, 5])]])
    buffer = ReplayBuffer(storage=dataset, batch_size=4)
    prioritized = PrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=dataset, batch_size=4)
    for made in (buffer, prioritized):
        assert isinstance(made.storage, DatasetStorage)
        batch = made.sample()
        assert torch.equal(batch["observation"], dataset[batch["index"]]["observation"])
    assert isinstance(StorageEnsemble(dataset, dataset)[1], DatasetStorage)
    buffer.set_storage(dataset)
    assert isinstance(buffer.storage, DatasetStorage)


def test_only_some_keys_are_the_same(storage: DatasetStorage) -> None:
    rows = np.array([17, 0, 5, 5, 8])
    whole = storage.get(rows)
    leaves = list(whole.keys(include_nested=True, leaves_only=True))
    for key in leaves:
        assert storage.has(key)
        found = storage.get(rows, [key])
        assert list(found.keys(include_nested=True, leaves_only=True)) == [key]
        assert torch.equal(found[key], whole[key]), key
        assert found[key].dtype == whole[key].dtype
    assert (storage.get(rows, leaves) == whole).all()
    assert set(storage.get(rows, ["next"])["next"].keys()) == set(whole["next"].keys())
    assert not storage.has("next")
    with pytest.raises(KeyError, match="nothing"):
        storage.get(rows, ["nothing"])


def test_what_is_read_is_a_copy(storage: DatasetStorage) -> None:
    before = storage.get(np.arange(18)).clone()
    storage.get(np.arange(18)).apply_(lambda leaf: leaf.zero_())
    assert (storage.get(np.arange(18)) == before).all()


def test_a_row_that_is_none(storage: DatasetStorage) -> None:
    for row in (18, -1):
        with pytest.raises(IndexError, match=f"row {row} is out of range for 18 steps"):
            storage.get(np.array([0, row]))
        with pytest.raises(IndexError, match=f"row {row} "):
            storage.index().remaining(np.array([0, row]))


def test_trajectories_are_the_table(storage: DatasetStorage) -> None:
    oracle = Oracle(18, 1)
    rows = oracle.rows([0], 18)
    done = np.zeros(18, bool)
    done[np.cumsum(LENGTHS) - 1] = True
    oracle.write(rows, np.repeat(np.arange(5), LENGTHS), done)
    assert_same(storage.index(), oracle, has_ids=True)
    for keys in (("collector", "traj_ids"), None), ("episode", None), (None, ("next", "done")):
        assert_same(storage.index(*keys), oracle, has_ids=True)
    assert storage.index().generation == storage.index().generation


def test_a_trajectory_that_starts_in_mid_episode(tmp_path: Path) -> None:
    block = make_block([3, 4])
    block.from_reset[1] = False
    index = DatasetStorage(write_dataset(tmp_path / "dataset", [[block]])).index()
    assert index.at_reset(np.arange(7)).tolist() == [True, *[False] * 6]


def test_keys_that_are_not_there(storage: DatasetStorage) -> None:
    with pytest.raises(SamplingError, match="'nothing' is not stored"):
        storage.index(traj_key="nothing")
    with pytest.raises(SamplingError, match="'over' is not stored"):
        storage.index(end_key="over")


WRITES: dict[str, Callable[[DatasetStorage], Any]] = {
    "appended": lambda storage: storage.append(steps([1])),
    "written": lambda storage: storage.set(np.array([1]), steps([1])),
    "changed": lambda storage: storage.update(np.array([1]), steps([1])),
    "emptied": lambda storage: storage.empty(),
}


@pytest.mark.parametrize("what", WRITES)
def test_it_is_read_only(storage: DatasetStorage, what: str) -> None:
    with pytest.raises(TypeError, match=f"Test/1 is read-only: .* cannot be {what}"):
        WRITES[what](storage)


def test_its_state_is_which_dataset_it_is(storage: DatasetStorage, tmp_path: Path) -> None:
    file = io.BytesIO()
    torch.save(storage.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    storage.restore(state, [])
    other = DatasetStorage(write_dataset(tmp_path / "other", [[make_block([3])]]))
    with pytest.raises(SchemaMismatchError, match="checkpoint of"):
        other.restore(state, [])
