import json
import shlex
from pathlib import Path

import pytest

import rlx
from rlx.verbs.arguments import with_destination
from tests.cli.test_convert import KEYS
from tests.conftest import Cli

HALF = ("--transform", "resize:height=42,width=42")
CODE = """
def smaller(steps):
    for key in ("observation", ("next", "observation")):
        steps[key] = steps[key][..., ::2, ::2]
    return steps

def nothing(steps):
    return None

def fails(steps):
    if (steps["collector", "traj_ids"] == 4).any():
        raise ValueError("no fours")
    return steps
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A file of functions."""
    path = tmp_path / "change.py"
    path.write_text(CODE)
    return path


def content(path: Path) -> dict[str, bytes]:
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def test_alone_it_prints_its_help(cli: Cli) -> None:
    result = cli("preprocess")
    assert (result.code, result.out) == (2, "")
    assert "rlx preprocess Pong/5 small --transform resize:height=42,width=42" in result.err


def test_for_people(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli("preprocess", pong, tmp_path / "small", *HALF, "--num-workers", 1)
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("Pong/5: 2,491 steps in 6 trajectories, 3 shards, ")
    assert second == str(tmp_path / "small")
    assert rlx.open(tmp_path / "small")[:4]["next", "observation"].shape == (4, 42, 42)


def test_for_scripts_and_again(cli: Cli, pong: Path, tmp_path: Path) -> None:
    arguments = (
        "preprocess",
        pong,
        tmp_path / "small",
        *HALF,
        "--transform",
        "sign_reward",
        "--num-workers",
        1,
        "--json",
    )
    result = cli(*arguments)
    assert (result.code, result.err) == (0, "")
    said = json.loads(result.out)
    assert list(said) == KEYS
    assert (said["id"], said["shards"], said["steps"], said["skipped_shards"]) == ("Pong/5", 3, 2491, 0)
    assert rlx.open(tmp_path / "small").manifest.notes["rewards"] == "clipped to [-1, 1], then sign_reward"
    again = json.loads(cli(*arguments).out)
    assert (again["steps"], again["skipped_shards"], again["steps_per_second"]) == (2491, 3, 0.0)


def test_a_function(cli: Cli, pong: Path, code: Path, tmp_path: Path) -> None:
    done = cli("preprocess", pong, tmp_path / "made", "--fn", f"{code}:smaller", "--num-workers", 1)
    assert done.code == 0, done.err
    before, after = rlx.open(pong)[:], rlx.open(tmp_path / "made")[:]
    assert (after["observation"] == before["observation"][:, ::2, ::2]).all()


def test_the_lineage_has_the_command_that_makes_it_again(cli: Cli, pong: Path, code: Path, tmp_path: Path) -> None:
    filtered = ("--transform", "filter:length > 10 and return < 100")
    chosen = (*filtered, "--fn", f"{code}:smaller", "--chunk-size", 100, "--steps", 300, "--codec", "lz4")
    assert cli("preprocess", pong, tmp_path / "made", *chosen, "--num-workers", 1).code == 0
    step = rlx.open(tmp_path / "made").manifest.lineage[-1]
    quoted = "'filter:length > 10 and return < 100'"
    assert step["command"] == (
        f"rlx preprocess {pong} --transform {quoted} --fn {code}:smaller --chunk-size 100 --steps 300 "
        "--codec lz4:level=1,chunk=8"
    )
    assert step["recipe"]["transforms"][-1] == f"fn:{code}:smaller,per=block,chunk=100"
    assert list(step["recipe"]["code"]) == [f"{code}:smaller"]
    shown = cli("inspect", tmp_path / "made").out
    command = with_destination(step["command"], tmp_path / "made")
    assert command in shown
    again = shlex.split(with_destination(step["command"], tmp_path / "again"))[1:]
    assert cli(*again, "--num-workers", 1).code == 0
    assert content(tmp_path / "again") == content(tmp_path / "made")


def test_a_dry_run(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli("preprocess", pong, tmp_path / "small", *HALF, "--transform", "return_to_go", "--dry-run")
    assert (result.code, result.err) == (0, "")
    assert "read     2,491 steps" in result.out
    assert "written  about 2,491 steps in 3 shards" in result.out
    assert "observation   observation  uint8    42 x 42  " in result.out
    assert not (tmp_path / "small").exists()
    said = json.loads(cli("preprocess", pong, *HALF, "--dry-run", "--json").out)
    assert (said["steps_read"], said["steps"], said["shards"]) == (2491, 2491, 3)
    assert said["step"]["observation"] | {"min": 0, "max": 0} == {
        "dtype": "uint8",
        "shape": [42, 42],
        "role": "observation",
        "min": 0,
        "max": 0,
    }
    assert said["step"]["reward"]["value"] == [0.0]
    made = json.loads(cli("preprocess", pong, tmp_path / "small", *HALF, "--num-workers", 1, "--json").out)
    assert 0.5 < said["bytes"] / made["bytes"] < 2


BAD = {
    "unknown transform": (
        ("--transform", "resise:height=1"),
        2,
        "error: transform 'resise' is unknown: did you mean resize?",
    ),
    "unknown parameter": (("--transform", "resize:hight=1"), 2, "did you mean height?"),
    "no transform": ((), 2, "no transform given: expected --transform or --fn"),
    "no function": (("--fn", "change.py"), 2, "expected module:name or file.py:name"),
    "no file": (("--fn", "nothing.py:change"), 2, "nothing.py does not exist"),
    "not parsed": (("--transform", "filter:return >"), 2, "filter:return >"),
    "calls code": (("--transform", "filter:__import__('os').system('true')"), 2, "filter"),
    "late selection": ((*HALF, "--transform", "filter:length > 3"), 2, "expected it before all transforms of steps"),
    "does not suit": (("--transform", "grayscale"), 1, "expected uint8, uint16 or float32 of shape [H, W, 3]"),
    "returns nothing": (("--fn", "{code}:nothing"), 1, "trajectory 0: it returns nothing: expected a TensorDict"),
    "raises": (("--fn", "{code}:fails", "--per", "trajectory"), 1, "fails on trajectory 4: ValueError: no fours"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_goes_wrong(cli: Cli, pong: Path, code: Path, tmp_path: Path, name: str) -> None:
    arguments, exit_code, message = BAD[name]
    before = content(pong)
    given = [argument.format(code=code) for argument in arguments]
    result = cli("preprocess", pong, tmp_path / "made", *given, "--num-workers", 1)
    assert (result.code, result.out) == (exit_code, "")
    assert message in result.err
    assert result.err.startswith("error: ")
    assert content(pong) == before
    finished = rlx.open(tmp_path / "made").manifest.listed if name == "raises" else set()
    assert finished == ({"00000", "00001"} if name == "raises" else set())
    assert (tmp_path / "made").exists() == (name == "raises")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing argument 'SRC'"),
        (("{pong}",), "missing argument 'DST'"),
        (("{pong}", "{pong}/made"), "is inside"),
    ],
)
def test_places_that_are_missing_or_refused(cli: Cli, pong: Path, arguments: tuple[str, ...], message: str) -> None:
    result = cli("preprocess", *(argument.format(pong=pong) for argument in arguments), *HALF)
    assert message in result.err
    assert result.code == (1 if "inside" in message else 2)
    assert not (pong / "made").exists()


def test_what_was_made_otherwise_is_refused_with_a_way_on(cli: Cli, pong: Path, tmp_path: Path) -> None:
    assert cli("preprocess", pong, tmp_path / "made", *HALF, "--num-workers", 1).code == 0
    other = ("preprocess", pong, tmp_path / "made", "--transform", "resize:height=21,width=21", "--num-workers", 1)
    result = cli(*other)
    assert result.code == 1
    assert "was created in another way: its transforms is ['resize:height=42,width=42']" in result.err
    assert "hint: --overwrite starts afresh" in result.err
    assert cli(*other, "--overwrite").code == 0
    assert rlx.open(tmp_path / "made").schema["observation"].shape == (21, 21)
