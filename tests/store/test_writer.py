import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlx.block import Block
from rlx.errors import DatasetError, DiskFullError, IncompleteDatasetError, SchemaMismatchError
from rlx.manifest import Manifest
from rlx.schema import Schema
from rlx.store.codec import DEFAULT
from rlx.store.dataset import Dataset
from rlx.store.verification import verify
from rlx.store.writer import ShardFormat, write_shard
from tests.factories import SMALL, cut, join, make_block, write_dataset

FORMAT = ShardFormat(SMALL, "zarr", DEFAULT)
WHOLE = make_block([3, 5])


def with_data(**changed: np.ndarray) -> Block:
    return replace(WHOLE, data={**WHOLE.data, **changed})


def flagged(name: str, step: int) -> Block:
    flags = WHOLE.data[name].copy()
    flags[step] = True
    return with_data(**{name: flags})


def open_block(length: int, episode: int) -> Block:
    return cut(make_block([length + 1], first_episode=episode), [length])[0]


def without_rows() -> Block:
    columns = ("lengths", "episodes", "from_reset", "final_recorded", "cut")
    data = {name: rows[:0] for name, rows in WHOLE.data.items()}
    return replace(WHOLE, data=data, is_open=True, **{name: getattr(WHOLE, name)[:0] for name in columns})


REFUSED = {
    "open without a segment": ([without_rows()], "is open, but has no segment"),
    "a first trajectory without a step": ([replace(WHOLE, lengths=np.array([0, 8]))], "first trajectory has no step"),
    "a later trajectory without a step": ([replace(WHOLE, lengths=np.array([8, 0]))], "a segment has no step"),
    "terminated in mid-trajectory": ([flagged("terminated", 1)], "step 1 is terminated"),
    "truncated in mid-trajectory": ([flagged("truncated", 4)], "step 4 is truncated"),
    "another dtype": ([with_data(reward=np.ones(8, "float64"))], r"reward is float64\[8\], expected float32\[8\]"),
    "another byte order": ([with_data(action=np.ones(8, ">i8"))], "action is >i8"),
    "another shape": ([with_data(observation=np.ones((10, 3), "int32"))], r"int32\[10, 3\], expected int32\[10, 2\]"),
    "an observation short": ([with_data(observation=np.ones((9, 2), "int32"))], r"\[9, 2\]"),
    "a step short": ([with_data(action=np.ones(7, "int64"))], r"action is int64\[7\]"),
    "a field too many": ([with_data(extra=np.ones(8))], r"extra \['extra'\]"),
    "a field too few": ([replace(WHOLE, data={"action": WHOLE.data["action"]})], r"fields missing \['observation'"),
    "an open end": ([open_block(3, 0)], "open trajectory"),
    "another episode where one is open": (
        [open_block(3, 0), make_block([2], first_episode=1)],
        "continues episode 1",
    ),
    "a trajectory without a step": ([make_block([])] * 2 + [replace(WHOLE, lengths=np.array([8, 0]))], "no step"),
    "a column short": ([replace(WHOLE, episodes=np.array([0]))], "episodes has 1 rows, expected 2"),
}


@pytest.mark.parametrize(("blocks", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("store", ["zarr", "memmap"])
def test_what_a_shard_refuses(tmp_path: Path, store: str, blocks: list[Block], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        write_shard(tmp_path / "00000", "00000", replace(FORMAT, store=store), blocks)
    assert not (tmp_path / "00000").exists()


def test_a_trajectory_that_never_steps_is_refused(tmp_path: Path) -> None:
    nothing = Block(
        {name: column[: (2 if name == "observation" else 0)] for name, column in WHOLE.data.items()},
        np.array([0, 0]),
        np.array([0, 1]),
        np.array([True, True]),
        np.array([True, True]),
    )
    with pytest.raises(SchemaMismatchError, match="no step"):
        write_shard(tmp_path / "00000", "00000", FORMAT, [nothing])


def test_an_error_of_the_source_leaves_nothing(tmp_path: Path) -> None:
    def blocks() -> Iterator[Block]:
        yield WHOLE
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        write_shard(tmp_path / "00000", "00000", FORMAT, blocks())
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "00000").mkdir()
    (tmp_path / "00000" / "left over").touch()
    record = write_shard(tmp_path / "00000", "00000", FORMAT, [WHOLE])
    assert "left over" not in record.files
    assert (record.steps, record.trajectories) == (8, 2)


def test_numbers_beyond_what_a_sum_can_hold(tmp_path: Path) -> None:
    schema = Schema.of(("float64", (2,)), ("float64", ()), reward="float64")
    block = make_block([3, 5], schema=schema)
    odd = np.array([1e308, 1e308, np.inf, -np.inf, 1e308, np.nan, 0.0, -1e308])
    block = replace(block, data={**block.data, "reward": odd, "action": odd, "observation": np.full((10, 2), 1e308)})
    dataset = write_dataset(tmp_path / "data", [[block], [block]], schema=schema)
    assert verify(dataset.path).ok
    statistics = Manifest.load(dataset.path).shards[0].statistics
    of_each = {"count": 8, "sum": None, "sum_of_squares": None, "min": 1e308, "max": 1e308}
    assert statistics["observation"] == {key: [figure] * 2 for key, figure in of_each.items()}
    assert np.array_equal(dataset.trajectories.returns, [np.inf, np.nan] * 2, equal_nan=True)


def incompressible(lengths: list[int], first_episode: int) -> Block:
    block = make_block(lengths, first_episode=first_episode, schema=NOISE)
    rows = np.random.default_rng(first_episode).integers(0, 2**16, (len(block.data["observation"]), 1024))
    return replace(block, data={**block.data, "observation": rows.astype("uint16")})


NOISE = Schema.of(("uint16", (1024,)), ("int64", ()))


@pytest.mark.parametrize(("store", "codec"), [("zarr", "zstd:chunk=1"), ("zarr", "none"), ("memmap", "none")])
def test_a_full_disk(small_disk: Path, store: str, codec: str) -> None:
    path = small_disk / "data"
    shards = [[incompressible([60], 0)], [incompressible([60], 1)], [incompressible([100], 2)]]
    with pytest.raises(DiskFullError, match="no room left"):
        write_dataset(path, shards, schema=NOISE, store=store, codec=codec)
    found = verify(path)
    assert (found.ok, found.shards, found.missing_shards) == (True, 2, ["00002"])
    assert list(Dataset(path).trajectories.episode) == [0, 1]
    assert sorted(entry.name for entry in (path / "shards").iterdir()) == ["00000", "00001"]
    # With more room the same command does the rest.
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    again = write_dataset(path, shards, schema=NOISE, store=store, codec=codec)
    assert verify(path).ok
    assert np.array_equal(next(again.blocks(10**6)).data["observation"], join(shards[0]).data["observation"])
    assert list(again.trajectories.episode) == [0, 1, 2]


@pytest.mark.parametrize("room", range(0, 64, 4))
def test_a_disk_that_fills_at_any_moment(small_disk: Path, room: int) -> None:
    path = small_disk / "data"
    (small_disk / "ballast").write_bytes(b"\1" * (512 - room) * 1024)
    try:
        dataset = write_dataset(path, [[make_block([3])], [make_block([4], first_episode=1)]])
    except DiskFullError:
        try:
            found = verify(path)
        except (IncompleteDatasetError, FileNotFoundError):
            return
        assert [problem for problem in found.problems if problem.shard] == []
        assert len(Dataset(path)[:]) == Manifest.load(path).steps
    else:
        assert len(dataset) == 7
        assert room > 8


def test_every_error_here_is_one_of_datasets() -> None:
    assert issubclass(DiskFullError, DatasetError)
    assert issubclass(SchemaMismatchError, DatasetError)
