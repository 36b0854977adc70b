"""The README: its Python runs from top to bottom, its commands are commands."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SAMPLE_RUN, Cli

PAGE = Path(__file__).parents[2] / "README.md"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_python_runs(pong: Path, home: Path) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    names: dict[str, Any] = {}
    for block in _blocks("python"):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["batch"]["observation"].shape == (128, 4, 84, 84)
    assert names["batch"]["index"].shape[0] == 128
    assert names["longest"] == 871
    assert len(names["good"].trajectories) == 1
    assert names["loss"].isfinite()


def test_the_picture_is_there_and_small() -> None:
    (picture,) = re.findall(r"^!\[.+\]\((.+)\)$", PAGE.read_text(), re.MULTILINE)
    assert 10_000 < (PAGE.parent / picture).stat().st_size < 400_000
    assert f" {picture}" in (PAGE.parent / "scripts/picture").read_text()


def test_the_table_of_extras_is_all_that_users_can_choose() -> None:
    extras = tomllib.loads((PAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = re.search(r"^\| extra \|.*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    named = re.findall(r"`([\w-]+)`", " ".join(line.split("|")[1] for line in table[0].splitlines() if line))
    assert sorted(named) == sorted(set(extras) - {"bench", "dev", "torch"})  # rlx has torch; rlx-core adds it so


def _commands() -> list[Any]:
    lines = [line.split("  #")[0].split(" | ")[0].strip() for block in _blocks("sh") for line in block.splitlines()]
    marks = {True: [pytest.mark.xdist_group("ray")], False: []}
    return [pytest.param(line, marks=marks["--engine ray" in line]) for line in lines if line.startswith("rlx ")]


@pytest.mark.parametrize("line", _commands())
def test_a_command_runs(
    line: str,
    cli: Cli,
    pong: Path,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if "--engine ray" in line:
        request.getfixturevalue("two_workers_of_ray")
    argv = shlex.split(line)[1:]
    monkeypatch.chdir(tmp_path)
    if argv[0] == "download":
        # The bucket is out of a test's reach, and so is /data: the same commands on the sample run that lies here.
        result = cli("download", "Pong/5", *_without_source(argv[2:]), "--source", str(SAMPLE_RUN))
    else:
        (home / "Pong").mkdir(parents=True)
        pong.rename(home / "Pong/5")
        argv = [str(SAMPLE_RUN) if word.startswith("/data") else word for word in argv]
        result = cli(*argv)
    assert result.code == 0, result.err


def _without_source(options: list[str]) -> list[str]:
    """The options less those that name a source, or shards that the sample run lacks."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in ("--source", "--shards") for word in pair]
