import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.schema import Field, Role, Schema
from tests.conftest import SAMPLE_RUN, Cli
from tests.factories import SMALL, collected, make_block, write_dataset


@pytest.fixture
def cartpole(tmp_path: Path) -> Path:
    return collected("CartPole-v1", tmp_path / "cartpole", episodes=12, seed=1)


def test_a_good_dataset(cli: Cli, cartpole: Path) -> None:
    result = cli("doctor", cartpole)
    steps = len(rlx.open(cartpole))
    assert (result.code, result.out) == (0, f"{cartpole}: no problems in 12 trajectories, {steps} steps\n")
    said = json.loads(cli("doctor", cartpole, "--json").out)
    assert (said["ok"], said["trajectories"], said["findings"], said["errors"]) == (True, 12, [], 0)


def test_files_of_another_project(cli: Cli) -> None:
    assert cli("doctor", SAMPLE_RUN / "Pong", "--from", "rlu").code == 0


def test_duplicates_are_found_and_left_out(cli: Cli, cartpole: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice"
    assert cli("merge", cartpole, shutil.copytree(cartpole, tmp_path / "copy"), "-o", twice).code == 0
    result = cli("doctor", twice)
    assert result.code == 3
    assert "duplicate" in result.out
    assert result.out.splitlines()[-1] == f"{twice}: 1 error in 24 trajectories, {len(rlx.open(twice))} steps"
    result = cli("doctor", twice, "--fix", "-o", tmp_path / "fixed", "--json")
    said = json.loads(result.out)
    assert (result.code, said["findings"][0]["fixable"]) == (3, True)
    assert said["fixed"] == {"dataset": str(tmp_path / "fixed"), "trajectories": 12, "left_out": 12}
    assert cli("doctor", tmp_path / "fixed").code == 0
    assert len(rlx.open(tmp_path / "fixed")) == len(rlx.open(cartpole))


def test_leaks_between_datasets(cli: Cli, cartpole: Path, tmp_path: Path) -> None:
    assert cli("split", cartpole, "--fractions", "0.5,0.5", "-o", tmp_path / "part").code == 0
    first, second = tmp_path / "part-1", tmp_path / "part-2"
    assert cli("doctor", first, "--against", second).code == 0
    result = cli("doctor", first, "--against", cartpole)
    assert (result.code, "leak" in result.out) == (3, True)


def test_damage_of_the_other_dataset_is_a_finding(cli: Cli, cartpole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(cartpole, other)
    victim = other / "shards/00000/reward/c/0"
    content = bytearray(victim.read_bytes())
    content[3] ^= 1
    victim.write_bytes(content)
    alone, found = (
        json.loads(cli("doctor", *argv, "--json").out) for argv in ([cartpole], [cartpole, "--against", other])
    )
    assert not found["ok"]
    damaged = [one for one in found["findings"] if one["check"] == "damaged"]
    assert len(damaged) == 1
    assert damaged[0]["what"].startswith(f"{other}: ")
    assert (found["steps"], found["trajectories"]) == (alone["steps"], alone["trajectories"])


def test_a_sample(cli: Cli, cartpole: Path) -> None:
    result = cli("doctor", cartpole, "--sample", 3)
    assert result.out.endswith(" steps of 12 trajectories\n")
    result = cli("doctor", cartpole, "--sample", 3, "--fix", "-o", "x")
    assert (result.code, result.err.splitlines()[0]) == (
        2,
        "error: --fix checks every trajectory and excludes --sample",
    )


def test_damage_is_a_finding(cli: Cli, cartpole: Path) -> None:
    victim = cartpole / "shards/00000/reward/c/0"
    content = bytearray(victim.read_bytes())
    content[3] ^= 1
    victim.write_bytes(content)
    result = cli("doctor", cartpole)
    assert (result.code, "damaged" in result.out) == (3, True)


def test_wrong_calls(cli: Cli, cartpole: Path, tmp_path: Path) -> None:
    assert cli("doctor", cartpole, "--fix").code == 2
    assert cli("doctor", tmp_path / "nothing").code == 5
    assert cli("doctor", cartpole, "--sample", 0).code == 2
    result = cli("doctor", SAMPLE_RUN / "Pong", "--from", "minary")
    assert (result.code, "did you mean minari?" in result.err) == (2, True)


def test_nothing_is_left_where_every_trajectory_has_an_error(cli: Cli, tmp_path: Path) -> None:
    block = make_block((3, 5))
    schema = Schema({**SMALL.fields, "observation": Field("float32", (2,), Role.OBSERVATION)})
    block = replace(block, data={**block.data, "observation": np.full((10, 2), np.nan, np.float32)})
    dataset = write_dataset(tmp_path / "d", [[block]], schema=schema).path
    result = cli("doctor", dataset, "--fix", "-o", tmp_path / "fixed")
    assert result.code != 0
    assert "every trajectory has an error, so nothing would be left" in result.err
    assert not (tmp_path / "fixed").exists()
