"""``preprocess`` of buffers; of those over datasets see ``tests/datasets``."""

import multiprocessing
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlx.buffer.preprocess import ChunkFunction, Workers, preprocess
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import RewardClip
from rlx.errors import DatasetExistsError, DatasetLockedError, OptionError, SchemaMismatchError


def filled(storage: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    steps = {"observation": torch.arange(40).reshape(20, 2), "next": {"reward": torch.ones(20, 1)}}
    buffer.extend(TensorDict(steps, [20]))
    return buffer


def doubled(steps: Any) -> Any:
    return steps.select("observation").apply(lambda leaf: leaf * 2)


HOW: list[dict[str, Any]] = [
    {},
    {"chunksize": 0},
    {"num_chunks": 3},
    {"num_workers": 2, "chunksize": 3, "mp_start_method": "fork"},
]
SPAWNED = {"num_workers": 1, "chunksize": 15, "mp_start_method": "spawn"}


@pytest.mark.parametrize(
    ("storage", "how"), [*product([LazyTensorStorage, ListStorage], HOW), (LazyTensorStorage, SPAWNED)]
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_steps_in_memory(storage: Any, how: dict[str, Any], tmp_path: Path) -> None:
    made = filled(storage(30)).preprocess(doubled, dest=tmp_path / "made", num_frames=18, **how)
    buffer = ReplayBuffer(storage=made, batch_size=4)
    assert buffer[:]["observation"].tolist() == (torch.arange(36).reshape(18, 2) * 2).tolist()
    assert list(buffer.sample().keys()) == ["observation"]
    assert len(made) == 18
    assert (made[:] == buffer[:]).all()
    for index in (slice(3, 12, 2), [17, 0], -1):
        assert (made[index] == made[:][index]).all()
    assert made[-1].shape == ()
    with pytest.raises(IndexError):
        made[18]


def test_lanes_that_are_not_full(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    buffer.extend(TensorDict({"observation": torch.arange(12).reshape(2, 6)}, [2, 6]))
    made = buffer.preprocess(doubled, dest=tmp_path / "made", chunksize=4)
    assert made[:]["observation"].tolist() == list(range(0, 24, 2))


def test_a_transform_has_no_part_in_it(tmp_path: Path) -> None:
    buffer = filled(LazyTensorStorage(30))
    buffer.append_transform(RewardClip(0, 0))
    made = buffer.preprocess(lambda steps: steps, dest=tmp_path / "made")
    assert ReplayBuffer(storage=made)[:]["next", "reward"].unique().tolist() == [1]


def test_an_empty_buffer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no steps to apply"):
        ReplayBuffer(storage=LazyTensorStorage(3)).preprocess(doubled, dest=tmp_path / "made")


def test_two_writers_of_one_target_do_not_mix(tmp_path: Path) -> None:
    dest = tmp_path / "made"
    one, other = (
        ChunkFunction(filled(LazyTensorStorage(30)).storage, fn) for fn in (doubled, lambda steps: doubled(steps) + 1)
    )
    first = preprocess(one, [(0, 10), (10, 20)], dest, Workers())
    next(first)
    with pytest.raises(DatasetLockedError, match=f"{dest} is being written by this process, pid"):
        next(preprocess(other, [(0, 20)], dest, Workers()))
    assert len(list(first)) == 1
    assert TensorDict.load_memmap(dest)["observation"].flatten().tolist() == list(range(0, 80, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_target_that_is_written_anew_by_the_same_processes(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for number in range(2):
            if number:
                shutil.rmtree(tmp_path / "made")
            made = filled(LazyTensorStorage(30)).preprocess(doubled, dest=tmp_path / "made", chunksize=5, pool=pool)
            assert made[:]["observation"].flatten().tolist() == list(range(0, 80, 2))


def test_a_target_that_is_written_anew_after_a_failure(tmp_path: Path) -> None:
    fails = [False, False, True]

    def once(steps: Any) -> Any:
        if fails and fails.pop(0):
            raise RuntimeError("out of coffee")
        return doubled(steps)

    buffer = filled(LazyTensorStorage(30))
    with pytest.raises(RuntimeError, match="out of coffee"):
        buffer.preprocess(once, dest=tmp_path / "made", chunksize=5)
    assert list(tmp_path.iterdir()) == []
    made = buffer.preprocess(once, dest=tmp_path / "made", chunksize=5)
    assert made[:]["observation"].flatten().tolist() == list(range(0, 80, 2))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dim": 1}, ValueError, "dim 1: expected 0, the only dimension of stored steps"),
        ({"chunksize": 3, "num_chunks": 2}, ValueError, "chunksize and num_chunks exclude each other"),
        *(
            ({"chunksize": None, name: value}, OptionError, f"{name} {value}: expected at least {least}")
            for name, value, least in [
                ("num_frames", 0, 1),
                ("num_workers", -1, 0),
                ("chunksize", -1, 0),
                ("num_chunks", 0, 1),
                ("max_tasks_per_child", 0, 1),
                ("worker_threads", 0, 1),
            ]
        ),
        ({"num_workers": 1.5}, OptionError, "num_workers 1.5: expected a whole number"),
        ({"fn": lambda steps: steps[:1]}, ValueError, r"gave \[1\] for 5 steps: expected as many"),
    ],
)
def test_what_cannot_be_preprocessed(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    options = {"fn": doubled, "dest": tmp_path / "made", "chunksize": 5, **change}
    with pytest.raises(error, match=message):
        filled(LazyTensorStorage(30)).preprocess(options.pop("fn"), **options)
    assert list(tmp_path.iterdir()) == []


def test_chunks_of_other_keys_and_a_target_that_is_not_empty(tmp_path: Path) -> None:
    def growing(steps: Any) -> Any:
        return steps if steps["observation"][0, 0] == 0 else steps.set("more", torch.zeros(len(steps)))

    buffer = filled(LazyTensorStorage(30))
    with pytest.raises(SchemaMismatchError, match=r"steps 5 to 10: .*more.* is .*, expected None"):
        buffer.preprocess(growing, dest=tmp_path / "made", chunksize=5)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").touch()
    with pytest.raises(DatasetExistsError, match="made is not empty; expected a new directory"):
        buffer.preprocess(doubled, dest=tmp_path / "made")
