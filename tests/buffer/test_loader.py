import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from rlx.block import single
from rlx.buffer.loader import StepDataset, unchanged
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from tests.factories import write_dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def dataset(path: Path, lengths: tuple[int, ...] = (7, 5, 11, 14)) -> Dataset:
    """A dataset of a shard for each trajectory; actions number its steps."""
    shards, first = [], 0
    for episode, length in enumerate(lengths):
        steps, ends = np.arange(first, first + length), np.zeros(length, bool)
        columns = {
            "observation": np.repeat(np.arange(length + 1, dtype="float32")[:, None], 3, 1),
            "action": steps,
            "reward": steps.astype("float32"),
            "terminated": ends,
            "truncated": ends,
        }
        shards.append([single(columns, episode=episode)])
        first += length
    return write_dataset(path, shards, schema=Schema.of(("float32", (3,)), ("int64", ())), codec="zstd")


def actions(batches: Any) -> list[int]:
    return [action for batch in batches for action in batch["action"].tolist()]


def test_workers_and_ranks_share_an_epoch_however_they_start(tmp_path: Path) -> None:
    source = dataset(tmp_path / "data")
    seen: list[list[int]] = []
    for rank, (method, workers) in enumerate([("fork", 2), ("spawn", 1)]):
        steps = StepDataset(source, 4, seed=1, rank=rank, world=2)
        loader = DataLoader(
            steps, batch_size=None, collate_fn=unchanged, num_workers=workers, multiprocessing_context=context(method)
        )
        seen.append(actions(loader))
    assert sorted(seen[0] + seen[1]) == list(range(len(source)))
    assert seen[0] != sorted(seen[0])


def context(method: str) -> Any:
    return multiprocessing.get_context(method)


def test_the_order_is_that_of_seed_and_epoch(tmp_path: Path) -> None:
    source = dataset(tmp_path / "data")
    first, again, other = StepDataset(source, 4), StepDataset(source, 4), StepDataset(source, 4, seed=1)
    assert actions(first) == actions(first) == actions(again) != actions(other)
    again.set_epoch(1)
    assert actions(first) != actions(again)
    assert sorted(actions(first)) == sorted(actions(again))


def test_workers_that_live_on_hear_of_the_epoch(tmp_path: Path) -> None:
    steps = StepDataset(dataset(tmp_path / "data"), 4)
    options: dict[str, Any] = {"multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(steps, batch_size=None, collate_fn=unchanged, num_workers=1, **options)
    first = actions(loader)
    steps.set_epoch(1)
    second = actions(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    del loader


def test_every_rank_makes_as_many_batches_where_the_last_are_dropped(tmp_path: Path) -> None:
    source = dataset(tmp_path / "data")
    batches = [list(StepDataset(source, 4, drop_last=True, rank=rank, world=3)) for rank in range(3)]
    assert [[len(batch) for batch in mine] for mine in batches] == [[4, 4, 4]] * 3
    taken = [action for mine in batches for action in actions(mine)]
    assert len(taken) == len(set(taken))


def test_a_buffer_is_read_oldest_first_through_its_transforms() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(6), transform=lambda batch: batch.set("b", batch["action"] * 2))
    buffer.extend(TensorDict({"action": torch.arange(8)}, [8]))
    found = list(StepDataset(buffer, 4, shuffle=False, transform=lambda batch: batch.set("c", batch["b"] + 1)))
    assert actions(found) == [2, 3, 4, 5, 6, 7]
    assert found[1]["c"].tolist() == [13, 15]


def test_arguments_that_mean_nothing() -> None:
    buffer = ReplayBuffer()
    with pytest.raises(ValueError, match="expected 1 or more"):
        StepDataset(buffer, 0)
    for rank, world in ((0, None), (2, 2), (None, 2)):
        with pytest.raises(ValueError, match="expected both, and 0 <= rank < world"):
            StepDataset(buffer, 1, rank=rank, world=world)
    assert list(StepDataset(buffer, 1)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_batches_a_dataset_by_itself(tmp_path: Path, workers: int) -> None:
    source = dataset(tmp_path / "data")
    method = "fork" if workers else None
    loader: Any = DataLoader(source, batch_size=8, num_workers=workers, multiprocessing_context=method)  # type: ignore[arg-type]
    batches = list(loader)
    assert [batch.batch_size for batch in batches] == [(8,)] * 4 + [(5,)]
    assert (torch.cat(batches) == source[:]).all()
    shuffled: Any = DataLoader(source, batch_size=8, shuffle=True)  # type: ignore[arg-type]
    assert sorted(actions(shuffled)) == list(range(len(source)))


def test_a_loader_reads_a_batch_at_once(tmp_path: Path) -> None:
    source = dataset(tmp_path / "data")
    read: list[Any] = []

    class Counted(Dataset):
        def __getitem__(self, index: Any) -> TensorDict:
            read.append(index)
            return super().__getitem__(index)

    loader: Any = DataLoader(Counted(source.path), batch_size=8)  # type: ignore[arg-type]
    list(loader)
    assert len(read) == 5
