"""``ReplayBuffer.save_dataset``: what was written into a buffer comes back from a dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rlx
from rlx.buffer import (
    CompressedStorage,
    DatasetStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    saved_dataset,
)
from rlx.errors import DatasetExistsError, DiskFullError, OptionError, SamplingError, SchemaMismatchError
from tests.conftest import Cli


def episode(number: int, length: int, *, end: str | None = "terminated", **extra: Any) -> Any:
    """An episode whose observation is ``1000 * number + t``; it ends with this flag."""
    frame = 1000 * number + torch.arange(length + 1, dtype=torch.float32)[:, None].expand(-1, 3)
    flags = {name: torch.zeros(length, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    if end is not None:
        flags["done"][-1] = flags[end][-1] = True
    after = {"observation": frame[1:], "reward": torch.full((length, 1), float(number)), **flags}
    ids = torch.full((length,), number)
    root: dict[Any, Any] = {
        "observation": frame[:-1],
        "action": torch.arange(length),
        ("collector", "traj_ids"): ids,
        **extra,
    }
    return TensorDict({"next": TensorDict(after, [length])}, [length]).update(TensorDict(root, [length]))


def buffer_of(*parts: Any, size: int = 100, **arguments: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(**{"storage": LazyTensorStorage(size), **arguments})
    for part in parts:
        buffer.extend(part)
    return buffer


@pytest.mark.parametrize("kind", [ListStorage, LazyTensorStorage, LazyMemmapStorage, CompressedStorage])
@pytest.mark.parametrize("store", ["zarr", "memmap"])
def test_trajectories_and_roles_are_kept(kind: Any, store: str, tmp_path: Path) -> None:
    episodes = [episode(1, 5), episode(2, 3, end="truncated"), episode(3, 4, end=None)]
    for number, one in enumerate(episodes):
        one["task"] = [f"task {number}"] * len(one)
        one["logits"] = torch.rand(len(one), 2)
        one["next", "lives"] = torch.arange(len(one))
    buffer_of(*episodes, storage=kind(100)).save_dataset(tmp_path / "saved", store=store)
    data = rlx.open(tmp_path / "saved", verify=True)
    assert data.manifest.id == "saved"
    assert data.manifest.store == store
    assert {name: str(data.schema[name].role) for name in data.schema} == {
        "observation": "observation",
        "action": "step",
        "logits": "step",
        "task": "step",
        "lives": "next",
        "reward": "next",
        "terminated": "next",
        "truncated": "next",
    }
    table = data.trajectories
    assert table.length.tolist() == [5, 3, 4]
    assert table.terminated.tolist() == [True, False, False]
    assert table.truncated.tolist() == [False, True, True]
    assert table.cut.tolist() == [False, False, True]
    assert table.from_reset.tolist() == [True] * 3
    assert table.episode.tolist() == [0, 1, 2]
    assert table.final_recorded.all()
    for one, trajectory in zip(episodes, data, strict=True):
        for key in ("observation", "action", "logits", ("next", "observation"), ("next", "reward"), ("next", "lives")):
            assert torch.equal(one[key], trajectory[key]), key
        assert one["task"] == trajectory["task"]


def test_it_is_what_convert_makes_of_a_dump(tmp_path: Path, cli: Cli) -> None:
    """The fast path against the slow one: a dump on disk, read by the source of dumps."""
    random = np.random.default_rng(0)
    parts = [episode(n, int(random.integers(1, 9)), end=random.choice(["terminated", "truncated"])) for n in range(40)]
    buffer = buffer_of(*parts, size=1000)
    buffer.save_dataset(tmp_path / "saved")
    buffer.dumps(tmp_path / "dump")
    result = cli("convert", tmp_path / "dump", tmp_path / "converted")
    assert result.code == 0, result.err
    saved, converted = rlx.open(tmp_path / "saved"), rlx.open(tmp_path / "converted")
    assert (saved[:] == converted[:]).all()
    for column, expected in converted.trajectories.columns().items():
        assert np.array_equal(saved.trajectories.columns()[column], expected), column
    assert saved.stats == converted.stats


def test_lanes_and_a_ring_that_wrapped(tmp_path: Path) -> None:
    lanes = [torch.cat([episode(lane, 6), episode(10 + lane, 6)]) for lane in range(2)]
    buffer = ReplayBuffer(storage=LazyTensorStorage(16, ndim=2))
    for start in range(0, 12, 4):
        buffer.extend(torch.stack([lane[start : start + 4] for lane in lanes]))
    buffer.save_dataset(tmp_path / "saved")
    data = rlx.open(tmp_path / "saved")
    seen = [trajectory["observation"][:, 0].int().tolist() for trajectory in data]
    assert sorted(seen) == [[4, 5], [1004, 1005], [*range(10000, 10006)], [*range(11000, 11006)]]
    whole = [one[0] >= 10000 for one in seen]
    assert data.trajectories.from_reset.tolist() == whole


@pytest.mark.parametrize("size", [1, 2, 7, 4096])
def test_blocks_and_shards_of_any_size(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_dataset, "_BLOCK_STEPS", size)
    monkeypatch.setattr(saved_dataset, "STEPS_PER_SHARD", 6)
    parts = [episode(n, length, end=end) for n, (length, end) in enumerate([(5, None), (1, "terminated"), (9, None)])]
    buffer_of(*parts).save_dataset(tmp_path / "saved")
    data = rlx.open(tmp_path / "saved", verify=True)
    assert [record.steps for record in data.shard_records] == [6, 9]
    assert data.trajectories.length.tolist() == [5, 1, 9]
    assert data.trajectories.episode.tolist() == [0, 1, 2]
    assert torch.equal(data[:]["next", "observation"], torch.cat([part["next", "observation"] for part in parts]))


def test_a_flag_or_a_jump_ends_a_trajectory(tmp_path: Path) -> None:
    """Even within one id: the writer of a dataset would refuse a flag in the middle."""
    steps: Any = torch.cat([episode(1, 3), episode(2, 2, end=None), episode(3, 2)])
    steps["collector", "traj_ids"][:] = 7
    del steps["next", "done"]
    buffer_of(steps).save_dataset(tmp_path / "saved")
    table = rlx.open(tmp_path / "saved").trajectories
    assert table.length.tolist() == [3, 2, 2]
    assert table.cut.tolist() == [False, True, False]
    assert table.terminated.tolist() == [True, False, True]


def test_steps_without_next_observations(tmp_path: Path) -> None:
    parts = [episode(1, 3), episode(2, 2, end="truncated")]
    for part in parts:
        del part["next", "observation"], part["next", "terminated"], part["next", "truncated"]
    buffer_of(*parts).save_dataset(tmp_path / "saved")
    data = rlx.open(tmp_path / "saved")
    assert data.trajectories.length.tolist() == [3, 2]
    assert data.trajectories.terminated.all()  # all that "done" says
    assert not data.trajectories.final_recorded.any()
    assert torch.equal(data[:]["observation"], torch.cat([part["observation"] for part in parts]))


def test_a_buffer_over_a_dataset(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    ReplayBuffer(storage=DatasetStorage(data)).save_dataset(tmp_path / "saved", codec="zstd")
    saved = rlx.open(tmp_path / "saved")
    assert (saved[:] == data[:]).all()
    assert saved.manifest.codec["name"] == "zstd"
    for column in ("length", "return", "terminated", "truncated", "from_reset"):
        assert np.array_equal(saved.trajectories.columns()[column], data.trajectories.columns()[column]), column


def test_a_saved_dataset_feeds_a_learner(tmp_path: Path, cli: Cli) -> None:
    buffer_of(*(episode(n, 8) for n in range(4))).save_dataset(tmp_path / "saved", id="Mine/1")
    assert cli("verify", tmp_path / "saved").code == 0
    assert "Mine/1" in cli("inspect", tmp_path / "saved").out
    sampled = ReplayBuffer(storage=rlx.open(tmp_path / "saved"), sampler=SliceSampler(slice_len=4), batch_size=8)
    assert sampled.sample()["observation"].shape == (8, 3)


def test_what_a_dataset_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def refused(steps: Any, match: str, **arguments: Any) -> None:
        with pytest.raises(SchemaMismatchError, match=match):
            buffer_of(steps).save_dataset(tmp_path / "saved", **arguments)
        assert not (tmp_path / "saved" / "manifest.json").exists()

    halves = episode(1, 3, value=torch.zeros(3, dtype=torch.bfloat16))
    refused(halves, "value cannot be saved: torch.bfloat16")
    refused(episode(1, 3, reward=torch.zeros(3, 1)), "reward cannot be saved: next/reward")
    wide = episode(1, 3)
    wide["next", "observation"] = wide["next", "observation"].double()
    refused(wide, r"observation cannot be saved: it is float32\[3\], and float64\[3\] under next")
    twice = episode(1, 3).set("a/b", torch.zeros(3)).set(("a", "b"), torch.ones(3))
    refused(twice, "a/b cannot be saved: another key would be saved as a/b too")
    refused(episode(1, 3).set("a b", torch.zeros(3)), "a b cannot be saved: field name")
    refused(episode(1, 3).exclude(("next", "reward")), "next/reward is missing")
    refused(episode(1, 3).exclude(("next", "done"), ("next", "terminated")), "next/done is missing")
    two = episode(1, 3)
    two["next", "reward"] = torch.zeros(3, 2)
    refused(two, r"next/reward is float32\[2\]: expected one number")
    with pytest.raises(SamplingError, match=r"rows of shape \[3\]: expected single steps"):
        buffer_of(episode(1, 6).reshape(2, 3)).save_dataset(tmp_path / "saved")
    with pytest.raises(SchemaMismatchError, match="no steps"):
        ReplayBuffer(storage=LazyTensorStorage(3)).save_dataset(tmp_path / "saved")
    values_alone = TensorDict({"observation": torch.zeros(2), "next": {"reward": torch.zeros(2)}}, [2])
    with pytest.raises(SamplingError, match="no trajectories"):
        buffer_of(values_alone).save_dataset(tmp_path / "saved")


@pytest.mark.parametrize("key", [("value",), ("info", "lives"), ("discount",), ("state_value",)])
def test_a_key_under_next_that_is_another_value_is_saved_beside_it(key: tuple[str, ...], tmp_path: Path) -> None:
    steps = episode(1, 6)
    now, after = torch.rand(6, 1), torch.rand(6, 1)
    steps[key], steps["next", *key] = now, after
    buffer_of(steps).save_dataset(tmp_path / "saved")
    saved = rlx.open(tmp_path / "saved")
    assert saved.trajectories.length.tolist() == [6]
    renamed = (*key[:-1], f"next_{key[-1]}")
    assert torch.equal(saved[:][key].reshape(6, 1), now)
    assert torch.equal(saved[:]["next", *renamed].reshape(6, 1), after)
    assert saved.manifest.notes["renamed"] == {"/".join(("next", *key)): "/".join(("next", *renamed))}
    steps[key][1:] = after[:-1]
    buffer_of(steps).save_dataset(tmp_path / "once")
    assert torch.equal(rlx.open(tmp_path / "once")[:]["next", *key].reshape(6, 1), after)


def test_one_key_to_exclude_and_an_unknown_store(tmp_path: Path) -> None:
    buffer = buffer_of(episode(1, 3, value=torch.zeros(3)))
    buffer.save_dataset(tmp_path / "saved", exclude="value")
    assert "value" not in rlx.open(tmp_path / "saved").schema
    with pytest.raises(OptionError, match="`store` 'zar' is unknown: expected zarr, memmap"):
        buffer.save_dataset(tmp_path / "other", store="zar")
    assert not (tmp_path / "other").exists()


def test_an_existing_dataset_is_replaced_only_if_asked(tmp_path: Path) -> None:
    buffer_of(episode(1, 3)).save_dataset(tmp_path / "saved")
    with pytest.raises(DatasetExistsError, match="holds a dataset") as caught:
        buffer_of(episode(2, 4)).save_dataset(tmp_path / "saved")
    assert caught.value.hint == "overwrite=True replaces it"
    assert len(rlx.open(tmp_path / "saved")) == 3
    buffer_of(episode(2, 4)).save_dataset(tmp_path / "saved", overwrite=True)
    assert len(rlx.open(tmp_path / "saved")) == 4
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("text")
    with pytest.raises(DatasetExistsError, match=r"thesis\.txt"):
        buffer_of(episode(1, 3)).save_dataset(tmp_path / "other")


class FailingStorage(LazyTensorStorage):
    """Storage whose last step cannot be read."""

    error: BaseException

    def get(self, rows: Any, keys: Any = None) -> Any:
        if len(rows) and int(rows.max()) == len(self) - 1:
            raise self.error
        return super().get(rows, keys)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", [True, False])
def test_the_old_dataset_stays_until_the_new_one_is_complete(
    old: bool, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_dataset, "STEPS_PER_SHARD", 2)
    path = tmp_path / "saved"
    parts = [episode(1, 3), episode(2, 4)]
    if old:
        buffer_of(*parts).save_dataset(path, store="memmap")
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "shards" in file.parts}
    storage = FailingStorage(100)
    storage.error = error
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else DiskFullError):
        buffer_of(episode(3, 5), episode(4, 2), storage=storage).save_dataset(path, overwrite=True)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "shards" in file.parts} == files
    if old:
        data = rlx.open(path, verify=True)
        assert torch.equal(data[:]["observation"], torch.cat([part["observation"] for part in parts]))
    else:
        assert not list(path.glob("*"))


def test_a_dataset_is_replaced_by_a_selection_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_dataset, "STEPS_PER_SHARD", 2)
    path = tmp_path / "saved"
    buffer_of(*(episode(n, 3) for n in range(5))).save_dataset(path)
    for left in (4, 3):
        data = rlx.open(path)
        ReplayBuffer(storage=data.filter(f"episode < {left}")).save_dataset(path, overwrite=True)
        saved = rlx.open(path, verify=True)
        assert saved.trajectories.length.tolist() == [3] * left
        assert saved[:]["observation"][:, 0].tolist() == [1000 * n + t for n in range(left) for t in range(3)]
        assert len(list((path / "shards").iterdir())) == left


def test_a_key_to_leave_out_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"exclude: no key 'rewad': expected one of ") as caught:
        buffer_of(episode(2, 4)).save_dataset(tmp_path / "saved", exclude=["rewad"])
    assert "reward" in str(caught.value.hint)
    assert not (tmp_path / "saved").exists()


def test_what_a_collector_wrote(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed")
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    with rlx.Collector("CartPole-v1", frames_per_batch=50, total_frames=50) as collector:
        for batch in collector:
            buffer.extend(batch)
    buffer.save_dataset(tmp_path / "saved")
    saved = rlx.open(tmp_path / "saved")[:]
    for key in ("is_init", "observation", ("next", "observation"), ("next", "done")):
        assert torch.equal(saved[key][:-1], buffer[:][key][:-1])  # the last step is cut
