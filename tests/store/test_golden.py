"""A dataset that was written when format version 1 began, and must open for ever."""

from pathlib import Path

import google_crc32c
import numpy as np
import zarr

import rlx
from rlx.store.verification import verify

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
CRC32C = {
    "action": "2c7954a5",
    "collector/traj_ids": "3b868a48",
    "done": "daeda3e9",
    "index": "54057c9e",
    "next/cost": "7f10f4da",
    "next/done": "14825964",
    "next/observation/pixels": "f0b447a2",
    "next/observation/position": "20a9683a",
    "next/reward": "eb254bd1",
    "next/terminated": "7c8175ac",
    "next/truncated": "b2ee8f21",
    "observation/pixels": "2bcca254",
    "observation/position": "105c6c35",
    "terminated": "daeda3e9",
    "truncated": "daeda3e9",
}


def test_it_is_whole() -> None:
    found = verify(GOLDEN)
    assert (found.problems, found.missing_shards, found.shards) == ([], [], 2)


def test_every_step_reads_as_it_did() -> None:
    dataset = rlx.open(GOLDEN)
    steps = dataset[:].flatten_keys("/")
    found = {name: f"{google_crc32c.value(steps[name].contiguous().numpy().tobytes()):08x}" for name in steps.keys()}  # noqa: SIM118
    assert found == CRC32C


def test_its_figures() -> None:
    dataset = rlx.open(GOLDEN)
    table = dataset.trajectories
    assert dataset.manifest.id == "Golden/1"
    assert table.length.tolist() == [4, 7, 6]
    assert table.returns.tolist() == [3.0, 16.0, 25.0]
    assert table.terminated.tolist() == [True, False, True]
    assert table.truncated.tolist() == [False, True, False]
    assert table.from_reset.tolist() == [True, True, False]
    step = dataset[10]
    assert step["observation", "position"].tolist() == [6.0, 3.0, 1.0]
    assert step["next", "observation", "position"].tolist() == [7.0, 3.5, 1.0]
    assert step["next", "cost"].tolist() == [6.0, -6.0]
    assert dataset.schema["action"].space == {"type": "Discrete", "n": 4}


def test_zarr_reads_it() -> None:
    pixels = np.asarray(zarr.open_group(str(GOLDEN / "shards" / "00001"), mode="r")["observation/pixels"])
    assert np.array_equal(pixels[:6], rlx.open(GOLDEN)[11:]["observation", "pixels"].numpy())
