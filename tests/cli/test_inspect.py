import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.store.dataset import Dataset
from rlx_cli.app import main
from tests.conftest import SAMPLE_RUN, Cli
from tests.factories import make_block, write_dataset

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"


def test_for_people(cli: Cli, pong: Path) -> None:
    result = cli("inspect", pong)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:5] == [
        "Pong/5",
        f"path     {pong}",
        "steps    2,491 in 6 trajectories",
        "whole    2 episodes, 4 pieces; mean return -20.5, mean length 870.5",
        "shards   3",
    ]
    assert lines[5].startswith("size     ")
    assert lines[5].endswith(" times smaller than raw (17.7 MB)")
    assert lines[6:10] == [
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
    table = dataset.trajectories
    figures = {"return": table.returns[table.whole], "length": table.length[table.whole]}
    figures |= {"trajectory_return": table.returns, "trajectory_length": table.length}
    for name, values in figures.items():
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
    assert ["length", "870", "871", "870.5", "0.5"] in lines
    assert ["trajectory_length", "100", "871", "415.2", "327.6"] in lines
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
    assert lines[-7].split() == ["trajectory", "shard", "start", "length", "return", "end", "whole"]
    assert lines[-6].split() == ["0", "00000", "0", "871", "-21", "terminated", "yes"]


@pytest.mark.parametrize("form", [["--json"], []])
def test_memory_does_not_grow_with_the_trajectories(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the table of them, whose rows take 29 bytes each and are copied a few times."""
    peaks, counts = {}, (1, 4_097, 12_289)
    with Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        for count in counts:  # the first imports what is needed
            path = write_dataset(tmp_path / str(count), [[make_block([1] * count)]]).path
            monkeypatch.setattr(sys, "argv", ["rlx", "inspect", str(path), "--trajectories", *form])
            tracemalloc.start()
            with pytest.raises(SystemExit, match=r"^0$"):
                main()
            peaks[count] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    growth = (peaks[12_289] - peaks[4_097]) / 8_192
    assert growth < 150


@pytest.fixture
def pieces(tmp_path: Path) -> Dataset:
    """Episodes of 3, 5 and 2 steps, of which the second one was cut, and one of 4 whose beginning is missing."""
    block = make_block([3, 5, 2, 4])
    from_reset, cut = np.array([True, True, True, False]), np.array([False, True, False, False])
    return write_dataset(tmp_path / "pieces", [[replace(block, from_reset=from_reset, cut=cut)], []])


def test_the_mean_return_of_each_shard_is_drawn(cli: Cli, tmp_path: Path) -> None:
    # make_block's reward is 1 a step; the shard without episodes has no mean.
    dataset = write_dataset(tmp_path / "data", [[make_block([length])] for length in (1, 2, 9)] + [[]])
    said = json.loads(cli("inspect", dataset.path, "--json").out)
    assert [shard["mean_return"] for shard in said["shards"]] == [1, 2, 9, None]
    (row,) = [line for line in cli("inspect", dataset.path).out.splitlines() if line.startswith("returns")]
    assert row == "returns  ▁▂█ 1 to 9, mean of each shard"


def test_the_returns_of_one_shard_are_drawn(cli: Cli, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block([1, 2, 9])]])
    assert "returns  ▁▂█ 1 to 9, in order of episodes" in cli("inspect", dataset.path).out.splitlines()
    shutil.rmtree(next(dataset.path.glob("shards/*/trajectories")))
    assert "returns  " not in cli("inspect", dataset.path).out


def test_returns_and_lengths_are_those_of_whole_episodes(cli: Cli, pieces: Dataset) -> None:
    said = json.loads(cli("inspect", pieces.path, "--stats", "--trajectories", "--json").out)
    assert said["episodes"] == {"whole": 2, "pieces": 2, "mean_return": 2.5, "mean_length": 2.5}
    whole = {"min": 2, "max": 3, "mean": 2.5, "std": 0.5}
    assert said["stats"]["return"] == said["stats"]["length"] == whole
    assert said["stats"]["trajectory_length"] == pytest.approx({"min": 2, "max": 5, "mean": 3.5, "std": 1.25**0.5})
    assert [row["whole"] for row in said["trajectory"]] == [True, False, True, False]
    lines = cli("inspect", pieces.path, "--stats").out.splitlines()
    assert "whole   2 episodes, 2 pieces; mean return 2.5, mean length 2.5" in lines
    assert [line.split()[0] for line in lines if line.startswith("trajectory_")] == [
        "trajectory_return",
        "trajectory_length",
    ]


def test_pieces_alone_have_no_returns_of_episodes(cli: Cli, pieces: Dataset, tmp_path: Path) -> None:
    only = tmp_path / "only"
    assert cli("preprocess", pieces.path, only, "--transform", "filter:not whole").code == 0
    said = json.loads(cli("inspect", only, "--stats", "--json").out)
    assert said["episodes"] == {"whole": 0, "pieces": 2, "mean_return": None, "mean_length": None}
    assert said["stats"]["return"]["mean"] is None
    assert said["stats"]["trajectory_return"]["mean"] == 4.5
    assert "whole   0 episodes, 2 pieces" in cli("inspect", only).out.splitlines()


def test_a_dataset_of_an_older_rlx_says_what_is_known(cli: Cli) -> None:
    said = json.loads(cli("inspect", GOLDEN, "--stats", "--json").out)
    assert said["episodes"] == {"whole": None, "pieces": None, "mean_return": None, "mean_length": None}
    assert said["stats"]["length"] == said["stats"]["trajectory_length"]
    assert said["stats"]["length"]["max"] == 7
    assert "whole   unknown: an earlier rlx did not count whole episodes" in cli("inspect", GOLDEN).out.splitlines()


def test_statistics_that_nobody_wrote(cli: Cli, pieces: Dataset) -> None:
    shard = pieces.manifest.shards[0]
    for bad in ({"count": 5}, {"count": "many"}, 5):
        damaged = replace(shard, statistics={**shard.statistics, "whole_length": bad})
        replace(pieces.manifest, shards=[damaged]).save(pieces.path)
        result = cli("inspect", pieces.path)
        assert (result.code, "rlx.json is damaged" in result.err or "statistics are damaged" in result.err) == (3, True)


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
