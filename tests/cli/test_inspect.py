import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from tests.conftest import SAMPLE_RUN, Cli


def test_for_people(cli: Cli, pong: Path) -> None:
    result = cli("inspect", pong)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:4] == [
        "Pong/5",
        f"path     {pong}",
        "steps    2,491 in 6 trajectories",
        "shards   3",
    ]
    assert lines[4].startswith("size     ")
    assert lines[4].endswith(" times smaller than raw (17.7 MB)")
    assert lines[5:9] == [
        "store    zarr, zstd-dict:level=6,chunk=1, format version 1",
        "dropped  2 terminal filler, 4 cut",
        "",
        "field        role         dtype    shape    space",
    ]
    assert "observation  observation  uint8    84 x 84" in lines
    assert "rewards            clipped to [-1, 1]" in lines
    assert lines[-2] == "lineage"
    assert lines[-1].endswith("  rlx convert sample")


def test_for_scripts(cli: Cli, pong: Path) -> None:
    result = cli("inspect", pong, "--json")
    assert (result.code, result.err) == (0, "")
    said = json.loads(result.out)
    manifest = rlx.open(pong).manifest
    assert {key: said[key] for key in ("id", "path", "format_version", "store", "codec", "steps", "trajectories")} == {
        "id": "Pong/5",
        "path": str(pong),
        "format_version": 1,
        "store": "zarr",
        "codec": "zstd-dict:level=6,chunk=1",
        "steps": 2491,
        "trajectories": 6,
    }
    assert [shard["name"] for shard in said["shards"]] == ["00000", "00001", "00002"]
    assert sum(shard["steps"] for shard in said["shards"]) == 2491
    assert said["bytes"] == sum(path.stat().st_size for path in (pong / "shards").rglob("*") if path.is_file())
    assert said["raw_bytes"] == (2491 + 6) * 84 * 84 + 2491 * (8 + 4 + 1 + 1)
    assert said["ratio"] == pytest.approx(said["raw_bytes"] / said["bytes"], abs=1e-3)
    assert said["schema"]["observation"] == {"dtype": "uint8", "shape": [84, 84], "role": "observation"}
    assert said["notes"] == dict(manifest.notes)
    assert said["lineage"] == [dict(made) for made in manifest.lineage]
    assert said["missing_shards"] == []
    assert "stats" not in said
    assert "trajectory" not in said


def test_stats(cli: Cli, pong: Path) -> None:
    stats = json.loads(cli("inspect", pong, "--stats", "--json").out)["stats"]
    dataset = rlx.open(pong)
    returns, lengths = dataset.trajectories.returns, dataset.trajectories.length
    for name, values in (("return", returns), ("length", lengths)):
        expected = {"min": values.min(), "max": values.max(), "mean": values.mean(), "std": values.std()}
        assert stats[name] == pytest.approx(expected)
    taken = np.concatenate([block.data["action"] for block in dataset.blocks()])
    actions, counts = np.unique(taken, return_counts=True)
    assert stats["action"]["counts"] == {
        str(action): count for action, count in zip(actions.tolist(), counts.tolist(), strict=True)
    }
    assert set(stats["observation"]) == set(stats["reward"]) == {"min", "max", "mean", "std"}
    lines = [line.split() for line in cli("inspect", pong, "--stats").out.splitlines()]
    assert ["min", "max", "mean", "std"] in lines
    assert ["length", "100", "871", "415.2", "327.6"] in lines
    assert ["action", "steps", "share"] in lines


def test_trajectories(cli: Cli, pong: Path) -> None:
    rows = json.loads(cli("inspect", pong, "--trajectories", "--json").out)["trajectory"]
    assert [row["id"] for row in rows] == list(range(6))
    assert [row["shard"] for row in rows] == ["00000", "00001", "00001", "00001", "00002", "00002"]
    assert [row["start"] for row in rows] == [0, 871, 1171, 1371, 1471, 2341]
    assert [row["length"] for row in rows] == [871, 300, 200, 100, 870, 150]
    assert [(row["terminated"], row["truncated"]) for row in rows[:2]] == [(True, False), (False, True)]
    assert rows[0]["return"] == -21
    lines = cli("inspect", pong, "--trajectories").out.splitlines()
    assert lines[-7].split() == ["trajectory", "shard", "start", "length", "return", "end"]
    assert lines[-6].split() == ["0", "00000", "0", "871", "-21", "terminated"]


def test_missing_shards_are_told(cli: Cli, tmp_path: Path) -> None:
    source, dataset = tmp_path / "source", tmp_path / "dataset"
    shutil.copytree(SAMPLE_RUN, source)
    (source / "Pong/run_5-00001-of-00050").write_bytes(b"no gzip")
    assert cli("convert", source, dataset, "--jobs", 1).code == 6
    assert "shards   2 of 3; missing 00001" in cli("inspect", dataset).out.splitlines()
    assert json.loads(cli("inspect", dataset, "--json").out)["missing_shards"] == ["00001"]


def test_an_id_below_home(cli: Cli, home: Path, pong: Path) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    assert json.loads(cli("inspect", "Pong/5", "--json").out)["path"] == str(home / "Pong/5")


def test_a_damaged_manifest(cli: Cli, pong: Path) -> None:
    manifest = pong / "rlx.json"
    manifest.write_text(manifest.read_text().replace("Pong/5", "Pong/4"))
    result = cli("inspect", pong)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(f"error: {manifest} is damaged: expected crc32c ")
    assert result.err.endswith(f"hint: rlx repair {pong}\n")


def test_a_file_name_is_no_markup(cli: Cli, pong: Path) -> None:
    bracketed = pong.rename(pong.parent / "[red]pong")
    assert f"path     {bracketed}" in cli("inspect", bracketed).out


@pytest.mark.parametrize("flags", [[], ["--stats"], ["--trajectories"]])
def test_torch_and_zarr_stay_asleep(pong: Path, flags: list[str]) -> None:
    program = """
import sys
from rlx_cli.app import main
try:
    main()
finally:
    assert not {"torch", "tensordict", "zarr", "requests"}.intersection(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", pong, *flags], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
