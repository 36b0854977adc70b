import json
from pathlib import Path

import pytest

import rlx
from tests.cli.test_convert import KEYS
from tests.conftest import Cli


def test_for_people(cli: Cli, tmp_path: Path) -> None:
    result = cli("collect", "CartPole-v1", "-o", tmp_path / "set", "--steps", 100, "--envs", 2)
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("CartPole-v1: 100 steps in ")
    assert second == str(tmp_path / "set")


def test_the_default_environment_below_home(cli: Cli, home: Path) -> None:
    result = cli("collect", "--steps", 40, "--seed", 3, "--shard-steps", 50, "--json")
    assert result.code == 0
    (warning,) = [line for line in result.err.splitlines() if line.startswith("warning")]
    assert warning.startswith("warning: info that is not kept: env_id, lives, ")
    assert warning.endswith("; --info all or --info KEY,... keeps it")
    said = json.loads(result.out)
    assert list(said) == KEYS
    assert (said["id"], said["steps"], said["dataset"]) == ("ALE/Pong-v5", 40, str(home / "ALE/Pong-v5"))
    (made,) = rlx.open("ALE/Pong-v5").manifest.lineage
    assert made["command"] == "rlx collect ALE/Pong-v5 --steps 40 --envs 4 --policy random --seed 3 --shard-steps 50"


def test_episodes_with_a_policy_in_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def act(observation):\n    return (observation[:, 2] > 0).astype(int)\n")
    (tmp_path / "env.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    arguments = ("--episodes", 5, "--policy", f"{tmp_path}/agent.py:act", "--store", "memmap", "--json")
    said = json.loads(cli("collect", f"{tmp_path}/env.py:make", "-o", tmp_path / "set", *arguments).out)
    assert (said["id"], said["trajectories"], said["store"]) == ("CartPole-v1", 5, "memmap")
    steps = rlx.open(tmp_path / "set")[range(said["steps"])]
    assert (steps["action"] == (steps["observation"][:, 2] > 0)).all()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["CartPool-v1"],
            1,
            "error: environment 'CartPool-v1' is unknown to gymnasium\nhint: did you mean CartPole-v1",
        ),
        (["CartPole-v1", "--steps", 1, "--episodes", 1], 2, "error: --steps and --episodes are mutually exclusive\n"),
        (["module:make"], 2, "error: module:make has no id to derive a directory from: -o is required\n"),
        (["CartPole-v1", "--steps", 0], 2, "error: invalid value for '--steps'"),
        (
            ["CartPole-v1", "--policy", "nobody:act"],
            1,
            "note: this runs code of nobody\nerror: nobody cannot be imported: ModuleNotFoundError",
        ),
        (["CartPole-v1", "--store", "memmap", "--codec", "zstd"], 2, "error: store memmap cannot hold codec"),
    ],
)
def test_mistakes(cli: Cli, arguments: list[object], code: int, message: str) -> None:
    result = cli("collect", *arguments)
    assert result.code == code
    assert result.err.startswith(message)


def test_a_dataset_is_there_already(cli: Cli, home: Path) -> None:
    assert cli("collect", "CartPole-v1", "--steps", 20).code == 0
    again = cli("collect", "CartPole-v1", "--steps", 30)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"error: {home / 'CartPole-v1'} holds a dataset\nhint: --resume collects what")
    resumed = cli("collect", "CartPole-v1", "--steps", 30, "--resume", "--json")
    assert json.loads(resumed.out)["steps"] == 30


def test_a_finished_collection_repeated_is_done(cli: Cli, tmp_path: Path) -> None:
    command = ("collect", "CartPole-v1", "--steps", 60, "-o", tmp_path / "set", "--json")
    assert cli(*command).code == 0
    before = (tmp_path / "set/rlx.json").read_bytes()
    again = cli(*command)
    said = json.loads(again.out)
    assert (again.code, said["steps"], said["skipped_shards"], said["steps_per_second"]) == (0, 60, 1, 0.0)
    assert (tmp_path / "set/rlx.json").read_bytes() == before
    other = cli("collect", "CartPole-v1", "--steps", 70, "-o", tmp_path / "set")
    assert (other.code, "holds a dataset" in other.err) == (1, True)
