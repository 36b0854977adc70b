import json
import shutil
from pathlib import Path

import rlx
from tests.conftest import SAMPLE_RUN, Cli
from tests.privileges import unprivileged


def test_nothing_to_do(cli: Cli, pong: Path) -> None:
    result = cli("repair", pong)
    assert (result.code, result.out, result.err) == (0, f"{pong}: kept 3 intact shards, dropped 0 (0 steps)\n", "")


def test_what_is_broken_is_dropped_and_the_same_command_gets_it_again(cli: Cli, tmp_path: Path) -> None:
    dataset = tmp_path / "pong"
    download = ("download", "Pong/5", "--source", SAMPLE_RUN, "-o", dataset, "--jobs", 1)
    assert cli(*download).code == 0
    whole = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file() and path.name != ".lock"}
    (dataset / "shards/00001/zarr.json").unlink()
    (dataset / "shards/stray").write_text("not rlx's")
    result = cli("repair", dataset, "--json")
    assert result.code == 0
    assert json.loads(result.out) == {
        "dataset": str(dataset),
        "kept": ["00000", "00002"],
        "dropped": ["00001"],
        "removed": ["shards/stray"],
        "lost_steps": 600,
        "hint": f"rlx download Pong/5 --source {SAMPLE_RUN} -o {dataset}",
        "aside": str(dataset / ".damaged"),
        "unreadable": [],
    }
    assert result.err == f"hint: {json.loads(result.out)['hint']}\n"
    assert cli("verify", dataset).code == 0
    assert "1 shard not written yet" in cli("verify", dataset).out
    assert cli(*download).code == 0
    shutil.rmtree(dataset / ".damaged")
    assert whole == {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file() and path.name != ".lock"}


def test_what_was_collected_is_collected_again_by_the_command_of_the_hint(cli: Cli, tmp_path: Path) -> None:
    dataset = tmp_path / "set"
    assert cli("collect", "CartPole-v1", "--steps", 60, "--seed", 1, "-o", dataset).code == 0
    (dataset / "shards/00000/zarr.json").unlink()
    hint = cli("repair", dataset).err.removeprefix("hint: rlx ").split()
    assert cli(*hint).code == 0
    assert len(rlx.open(dataset)) == 60


def test_for_people(cli: Cli, pong: Path) -> None:
    (pong / "shards/00001/zarr.json").unlink()
    result = cli("repair", pong)
    done = f"{pong}: kept 2 intact shards, dropped 1 (600 steps)\ndropped 00001\ndropped files are in {pong}/.damaged\n"
    assert (result.code, result.out) == (0, done)
    assert result.err == f"hint: rlx convert sample {pong}\n"


def test_a_damaged_manifest_is_put_aside(cli: Cli, pong: Path) -> None:
    (pong / "rlx.json").write_text("{}")
    result = cli("repair", pong)
    assert result.code == 0
    assert result.out.startswith(f"{pong}: kept 0 intact shards, dropped 3\n")
    assert result.err.startswith("hint: run the command that wrote the dataset again")
    assert cli("convert", SAMPLE_RUN, pong, "--jobs", 1).code == 0
    assert cli("verify", pong).code == 0


def test_what_cannot_be_read_is_neither_damaged_nor_dropped(cli: Cli, pong: Path) -> None:
    dataset = pong
    private = dataset / "shards/00001/zarr.json"
    with unprivileged():
        private.chmod(0)
        for command in ("verify", "repair"):
            result = cli(command, dataset)
            said = "shards/00001/zarr.json cannot be read: Permission denied"
            assert (result.code, result.err.splitlines()[0]) == (
                1,
                f"error: 1 file of {dataset} cannot be checked: {said}",
            )
            assert f"hint: ls -l {private} shows who may read it" in result.err
        assert json.loads(cli("verify", dataset, "--json").out)["problems"][0]["kind"] == "unreadable"
        private.chmod(0o644)
    assert cli("verify", dataset).code == 0


def test_leftovers_are_counted(cli: Cli, pong: Path) -> None:
    (pong / "shards/00001/zarr.json.1-2.partial").touch()
    result = cli("verify", pong)
    assert result.code == 0
    assert result.err.startswith("note: 1 leftover of interrupted commands, not damage")
    assert cli("repair", pong).out.endswith("removed shards/00001/zarr.json.1-2.partial\n")
    assert cli("verify", pong).err == ""
