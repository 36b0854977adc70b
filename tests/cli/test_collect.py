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
    assert made["command"] == "rlx collect ALE/Pong-v5 --envs 4 --steps 40 --policy random --seed 3 --shard-steps 50"


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
        (["CartPole-v1", "--resume", "--overwrite"], 2, "error: --resume and --overwrite are mutually exclusive\n"),
        (["module:make"], 2, "error: module:make has no id to derive a directory from: --output is required\n"),
        (["CartPole-v1", "--steps", 0], 2, "error: invalid value for '--steps'"),
        (
            ["CartPole-v1", "--policy", "nobody:act"],
            1,
            "note: this runs code of nobody\nerror: nobody cannot be imported: ModuleNotFoundError",
        ),
        (["CartPole-v1", "--store", "memmap", "--codec", "zstd"], 2, "error: store memmap does not support codec"),
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


_ENDING = """
import sys, time
from pathlib import Path
from tests.collector.environments import Ending

def once():
    return Ending(lambda: time.sleep(1e6), 70, Path(__file__).with_name("flag"))

def hangs():
    return Ending(lambda: time.sleep(1e6), 2)

def leaves():
    return Ending(lambda: sys.exit(0), 2)

def mended():
    return Ending(lambda: None, 70)
"""


@pytest.fixture
def ending(tmp_path: Path) -> Path:
    """A file of environments that hang in step 71 of a process, or do so, or end it, before an episode has ended."""
    path = tmp_path / "ending.py"
    path.write_text(_ENDING)
    return path


def test_an_environment_that_hangs_once(cli: Cli, ending: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    sizes = ("--envs", 1, "--steps", 300, "--shard-steps", 40)
    found = cli("collect", f"{ending}:once", "-o", out, *sizes, "--workers", 3, "--async", "--step-timeout", 3)
    assert found.code == 0, found.err
    (warning,) = [line for line in found.err.splitlines() if line.startswith("warning")]
    assert "died (an actor did not finish a step within 3 s, at " in warning
    assert warning.endswith("and its unfinished episodes are collected again")
    assert cli("verify", out).code == 0
    assert rlx.open(out).manifest.steps == 300


@pytest.mark.parametrize(
    ("name", "workers", "message"),
    [
        ("hangs", 1, "error: worker 0 died 3 times without progress, the last time so: an actor did not finish a step"),
        ("leaves", 2, "died 3 times without progress, the last time so: an actor's process ended with exit code 0"),
        ("leaves", 1, "died 3 times without progress, the last time so: an actor's process ended with exit code 0"),
    ],
)
def test_an_environment_that_never_gets_further(
    name: str, workers: int, message: str, cli: Cli, ending: Path, tmp_path: Path
) -> None:
    out = tmp_path / "set"
    sizes = ("--envs", 1, "--steps", 300, "--workers", workers)
    limit = ("--step-timeout", 1) if name == "hangs" else ()
    failed = cli("collect", f"{ending}:{name}", "-o", out, *sizes, *limit)
    assert failed.code == 1
    assert message in failed.err
    found = cli("collect", f"{ending}:mended", "-o", out, *sizes, "--resume", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["steps"] == 300
    assert cli("verify", out).code == 0


def test_step_timeouts_that_mean_nothing(cli: Cli, tmp_path: Path) -> None:
    arguments = ("collect", "CartPole-v1", "-o", tmp_path / "set", "--steps", 10)
    assert cli(*arguments, "--step-timeout", 0).code == 2
    refused = cli(*arguments, "--step-timeout", 1, "--engine", "ray")
    assert refused.code == 1
    assert "step timeout: expected workers of this machine (engine local), found engine ray" in refused.err
