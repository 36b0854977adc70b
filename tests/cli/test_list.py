import json
import shutil
import socket
from pathlib import Path

import pytest

from rlx.formats.rl_unplugged import GAMES, URL
from tests.conftest import SAMPLE_RUN, Cli
from tests.factories import collected
from tests.gcs_server import GcsServer
from tests.privileges import unprivileged


def test_nothing_is_here(cli: Cli) -> None:
    result = cli("list", "--local")
    assert (result.code, result.out, result.err) == (0, "", "hint: nothing to list\n")
    assert cli("list", "--local", "--json").out == "[]\n"


def test_runs_to_download_one_line_a_game(cli: Cli) -> None:
    result = cli("list", "--remote")
    assert (result.code, result.err) == (0, "")
    source, header, *lines = result.out.splitlines()
    assert source == f"at {URL} (built-in list)"
    assert header.split() == ["game", "runs", "shards", "local"]
    assert len(lines) == len(GAMES)
    assert lines[0].split() == ["Alien", "1-5", "50", "-"]
    assert next(line for line in lines if line.startswith("Gravitar ")).split()[2] == "49"


def test_runs_to_download_for_scripts(cli: Cli) -> None:
    runs = json.loads(cli("list", "--remote", "--json").out)
    assert len(runs) == 5 * len(GAMES)
    assert runs[0] == {
        "id": "Alien/1",
        "game": "Alien",
        "run": 1,
        "source": URL,
        "shards": 50,
        "local": False,
        "steps": None,
        "asked": False,
    }


def test_one_game_in_any_case(cli: Cli) -> None:
    assert {run["game"] for run in json.loads(cli("list", "--game", "pong", "--json").out)} == {"Pong"}
    result = cli("list", "--game", "Chess")
    assert (result.code, result.out, result.err) == (0, "", "hint: no run or dataset of game Chess\n")


def test_what_is_here_comes_first_and_once(cli: Cli, home: Path, pong: Path) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    assert [line.split() for line in cli("list", "--game", "Pong").out.splitlines()] == [
        ["dataset", "steps", "shards", "whole", "episodes", "mean", "return", "mean", "length", "pieces", "path"],
        ["Pong/5", "2,491", "3", "2", "-20.5", "870.5", "4", str(home / "Pong/5")],
        [],
        ["at", URL, "(built-in", "list)"],
        ["game", "runs", "shards", "local"],
        ["Pong", "1-5", "50", "5"],
    ]
    runs = json.loads(cli("list", "--game", "Pong", "--json").out)
    assert [(run["id"], run["local"]) for run in runs] == [
        ("Pong/5", True),
        ("Pong/1", False),
        ("Pong/2", False),
        ("Pong/3", False),
        ("Pong/4", False),
    ]
    assert runs[0]["steps"] == 2491
    figures = {key: runs[0][key] for key in ("episodes", "pieces", "mean_return", "mean_length")}
    assert figures == pytest.approx({"episodes": 2, "pieces": 4, "mean_return": -20.5, "mean_length": 870.5})
    assert [run["local"] for run in json.loads(cli("list", "--remote", "--game", "Pong", "--json").out)] == [
        *[False] * 4,
        True,
    ]


def test_a_server_is_asked(cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE_RUN, tmp_path / "objects")
    for run in (1, 2):
        logs = tmp_path / f"dopamine/dqn/Skiing/{run}/replay_logs"
        logs.mkdir(parents=True)
        (logs / "$store$_action_ckpt.0.gz").write_bytes(b"")
    with GcsServer(tmp_path / "objects") as server:
        (run,) = json.loads(cli("list", "--remote", "--source", server.url, "--game", "pong", "--json").out)
        assert (run["id"], run["source"], run["asked"]) == ("Pong/5", server.url, True)
        assert {request.method for request in server.requests} == {"HEAD"}
        result = cli("list", "--remote", "--source", server.url, "--game", "Breakout")
        assert (result.code, result.out, result.err) == (0, "", "hint: no run or dataset of game Breakout\n")
        shutil.copytree(tmp_path / "dopamine", tmp_path / "objects", dirs_exist_ok=True)
        runs = json.loads(cli("list", "--remote", "--source", server.url, "--game", "Skiing", "--json").out)
        assert [run["id"] for run in runs] == ["Skiing/1", "Skiing/2"]


def test_a_server_that_does_not_answer(cli: Cli) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/base"
    result = cli("list", "--remote", "--source", url)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: {url}")


def test_a_mistyped_game(cli: Cli) -> None:
    assert cli("list", "--game", "Pnog").err == "hint: no run or dataset of game Pnog; did you mean Pong?\n"


def test_runs_of_a_directory(cli: Cli) -> None:
    (run,) = json.loads(cli("list", "--remote", "--source", SAMPLE_RUN, "--json").out)
    assert (run["id"], run["shards"], run["source"]) == ("Pong/5", 3, str(SAMPLE_RUN))


def test_only_the_runs_of_a_directory(cli: Cli, home: Path, pong: Path) -> None:
    home.mkdir(exist_ok=True)
    pong.rename(home / "mine")
    (run,) = json.loads(cli("list", SAMPLE_RUN, "--json").out)
    assert (run["id"], run["shards"], run["source"]) == ("Pong/5", 3, str(SAMPLE_RUN))
    assert len(json.loads(cli("list", "--source", SAMPLE_RUN, "--json").out)) == 2


@pytest.mark.parametrize("option", [["--local"], ["--source", "x"]])
def test_a_place_excludes(option: list[str], cli: Cli) -> None:
    result = cli("list", SAMPLE_RUN, *option)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {SAMPLE_RUN}: a location excludes --local and --source\n")


def test_a_directory_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    result = cli("list", "--source", tmp_path / "nowhere")
    assert (result.code, result.out) == (5, "")
    assert result.err == f"error: {tmp_path}/nowhere: no such directory\n"


def test_many_datasets_are_aligned_as_few_are(cli: Cli, home: Path) -> None:
    collected("CartPole-v1", home / "set", steps=20)
    few = cli("list", "--local").out.splitlines()
    for number in range(600):
        (home / f"{number:03d}").mkdir()
        shutil.copy(home / "set/rlx.json", home / f"{number:03d}")
    many = cli("list", "--local").out.splitlines()
    assert len(many) == 602
    assert many[0].split() == few[0].split()
    assert many[-1].split() == few[-1].split()
    assert [line.split()[:1] for line in many[1:-1]] == [[f"{number:03d}"] for number in range(600)]
    end = many[0].index("steps") + len("steps")
    assert {line[end - 3 : end] for line in many[1:]} == {" 20"}


def test_datasets_of_a_directory(cli: Cli, tmp_path: Path, pong: Path) -> None:
    shelf = tmp_path / "shelf"
    (shelf / "games/Pong").mkdir(parents=True)
    pong.rename(shelf / "games/Pong/5")
    (shelf / "games/around").symlink_to(shelf / "games/around")
    shutil.copytree(SAMPLE_RUN, shelf / "logged")
    (dataset, run) = json.loads(cli("list", shelf, "--json").out)
    assert (dataset["id"], dataset["steps"], dataset["source"]) == ("games/Pong/5", 2491, str(shelf / "games/Pong/5"))
    assert (run["id"], run["local"], run["steps"]) == ("Pong/5", False, None)
    assert [line.split()[:3] for line in cli("list", shelf).out.splitlines()[1:2]] == [["games/Pong/5", "2,491", "3"]]
    (shelf / "games/Pong/5/rlx.json").write_text("{}")
    result = cli("list", shelf, "--json")
    assert [entry["id"] for entry in json.loads(result.out)] == ["Pong/5"]
    assert f"{shelf}/games/Pong/5/rlx.json is damaged" in result.err


def test_a_directory_that_cannot_be_read_is_named(cli: Cli, home: Path, pong: Path) -> None:
    home.mkdir(exist_ok=True)
    pong.rename(home / "mine")
    (home / "theirs").mkdir(mode=0)
    with unprivileged():
        result = cli("list", "--local", "--json")
    assert [entry["id"] for entry in json.loads(result.out)] == ["mine"]
    assert result.err.startswith(f"warning: {home}/theirs")
    assert "permission denied" in result.err
