import json
from pathlib import Path

import rlx
from tests.cli.test_convert import KEYS
from tests.conftest import Cli


def test_there_and_back(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli("split", pong, "--fractions", "0.5,0.5", "--jobs", 1, "--json")
    assert (result.code, result.err) == (0, "")
    parts = json.loads(result.out)
    assert [list(part) for part in parts] == [KEYS, KEYS]
    assert [part["dataset"] for part in parts] == [f"{pong}-1", f"{pong}-2"]
    assert [part["trajectories"] for part in parts] == [3, 3]
    result = cli("merge", f"{pong}-1", f"{pong}-2", "-o", tmp_path / "whole", "--json")
    assert (result.code, result.err) == (0, "")
    assert list(json.loads(result.out)) == KEYS
    before, after = rlx.open(pong), rlx.open(tmp_path / "whole", verify=True)
    assert (len(after), sorted(after.trajectories.episode)) == (len(before), sorted(before.trajectories.episode))
    commands = [step["command"] for step in after.manifest.lineage]
    assert commands == [
        "rlx convert sample",
        f"rlx split {pong} --fractions 0.5,0.5 --part 1",
        f"rlx split {pong} --fractions 0.5,0.5 --part 2",
        f"rlx merge {pong}-1 {pong}-2",
    ]


def test_the_command_of_a_part_remakes_it(cli: Cli, pong: Path, tmp_path: Path) -> None:
    assert cli("split", pong, "--fractions", "0.7,0.3", "--seed", 3, "-o", tmp_path / "x", "--jobs", 1).code == 0
    command = rlx.open(tmp_path / "x-2").manifest.lineage[-1]["command"]
    assert command == f"rlx split {pong} --fractions 0.7,0.3 --seed 3 --part 2"
    assert cli(*command.split()[1:], "-o", tmp_path / "again", "--jobs", 1).code == 0
    assert (tmp_path / "again/rlx.json").read_bytes() == (tmp_path / "x-2/rlx.json").read_bytes()


def test_for_people(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli(
        "split", pong, "--fractions", "0.5,0.25", "--by", "trajectory", "-o", tmp_path / "a", "-o", tmp_path / "b"
    )
    assert result.code == 0
    first, _, second, _ = result.out.splitlines()
    assert first.startswith("Pong/5-1: ")
    assert second.startswith("Pong/5-2: ")
    result = cli("merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c")
    assert result.out.startswith("Pong/5-1+Pong/5-2: ")


def test_another_codec(cli: Cli, pong: Path, tmp_path: Path) -> None:
    assert cli("convert", pong, tmp_path / "lz4", "--codec", "lz4", "--jobs", 1).code == 0
    result = cli("merge", pong, tmp_path / "lz4", "-o", tmp_path / "both")
    assert result.code == 1
    assert "codec is lz4:level=1,chunk=8, expected zstd-dict:level=6,chunk=1" in result.err
    assert (
        "hint: --to zarr --codec zstd-dict:level=6,chunk=1 re-encodes shards that use another store or codec\n"
        in result.err
    )
    result = cli(
        "merge", pong, tmp_path / "lz4", "-o", tmp_path / "both", "--codec", "zstd-dict", "--jobs", 1, "--json"
    )
    assert result.code == 0
    assert json.loads(result.out)["steps"] == 2 * 2491


def test_what_is_wrong_is_named(cli: Cli, pong: Path, tmp_path: Path) -> None:
    assert cli("split", pong, "--fractions", "0.9,x").code == 2
    assert cli("split", pong).code == 2
    assert cli("split", tmp_path / "nothing", "--fractions", "0.9,0.1").code == 5
    assert cli("merge", tmp_path / "nothing", "-o", tmp_path / "out").code == 5
    result = cli("split", pong, "--fractions", "0.9,0.2")
    assert (result.code, "fractions 0.9,0.2 add up to 1.1, expected at most 1" in result.err) == (2, True)
    result = cli("split", pong, "--fractions", "0.4,0.3,0.3", "-o", tmp_path / "a", "-o", tmp_path / "b")
    assert (result.code, "found 2 directories for 3 parts" in result.err) == (2, True)
    assert "hint: rlx split --help" in result.err
    result = cli("merge", pong, pong, "-o", tmp_path / "out")
    assert (result.code, "is given twice" in result.err) == (1, True)
