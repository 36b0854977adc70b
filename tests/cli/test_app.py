"""What all commands have in common: how errors end, where they are told, and that results stay alone on stdout."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rlx import errors
from rlx_cli.report import InterruptedWorkError, UsageError, exit_code
from tests.conftest import Cli
from tests.factories import numbered_dataset

PROGRAM = [sys.executable, "-c", "from rlx_cli.app import main; main()"]


def test_an_error_is_told_with_its_remedy(cli: Cli, home: Path) -> None:
    result = cli("inspect", "Pong/5")
    assert (result.code, result.out) == (5, "")
    message = f"no dataset at Pong/5, nor at {home}/Pong/5"
    assert result.err == f"error: {message}\nhint: rlx list --local\n"


@pytest.mark.parametrize("name", ["pong", "runs/pong"])
def test_a_mistyped_name_of_a_dataset(name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbered_dataset(tmp_path / name)
    result = cli("inspect", f"{name}g")
    assert (result.code, result.err.splitlines()[1]) == (5, f"hint: did you mean {name}?")


def test_json_tells_of_an_error_on_stdout_too(cli: Cli, home: Path) -> None:
    result = cli("inspect", "Pong/5", "--json")
    assert result.code == 5
    assert json.loads(result.out) == {
        "error": {
            "type": "DatasetNotFoundError",
            "message": f"no dataset at Pong/5, nor at {home}/Pong/5",
            "hint": "rlx list --local",
        }
    }
    assert result.err.startswith("error: no dataset at")


@pytest.mark.parametrize("arguments", [("--debug", "inspect", "Pong/5"), ("inspect", "Pong/5", "--debug")])
def test_debug_shows_the_traceback_of_an_error(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert result.code == 5
    assert result.err.startswith("Traceback (most recent call last):")
    assert "rlx.errors.DatasetNotFoundError: no dataset at" in result.err
    assert "error: no dataset at" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspct",), "no such command 'inspct'"),
        (("inspect",), "missing argument 'DATASET'"),
        (("inspect", "x", "--wrong"), "no such option: --wrong"),
        (("list", "--local", "--remote"), "--remote and --local are mutually exclusive"),
    ],
)
def test_wrong_usage_exits_with_2(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err.splitlines()[0]
    assert result.err.splitlines()[-1].startswith("hint: rlx")
    assert json.loads(cli(*arguments, "--json").out)["error"]["type"] == "UsageError"


def test_no_command_prints_the_help_and_exits_with_2(cli: Cli) -> None:
    result = cli()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: rlx [OPTIONS] COMMAND")


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert (result.code, result.out, result.err) == (0, f"rlx {version('rlx')}\n", "")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.RlxError, 1),
        (errors.DiskFullError, 1),
        (errors.DatasetLockedError, 75),
        (errors.DownloadError, 1),
        (errors.CodecError, 2),
        (errors.OptionError, 2),
        (errors.UnknownFormatError, 2),
        (errors.FileAccessError, 1),
        (UsageError, 2),
        (errors.CorruptShardError, 3),
        (errors.CorruptDatasetError, 3),
        (errors.ForbiddenError, 4),
        (errors.SourceNotFoundError, 5),
        (errors.PolicyNotFoundError, 5),
        (errors.DatasetNotFoundError, 5),
        (errors.PartialError, 6),
        (InterruptedWorkError, 130),
    ],
)
def test_every_class_of_errors_has_its_exit_code(kind: type[errors.RlxError], code: int) -> None:
    assert exit_code(kind("message")) == code


def test_a_bug_keeps_its_traceback() -> None:
    program = """
import sys
from rlx_cli.app import app, main

@app.command()
def broken() -> None:
    secret = "a local variable"
    [][0]

sys.argv = ["rlx", "broken"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "IndexError: list index out of range" in done.stderr
    assert "a local variable" not in done.stderr


def test_windows_is_refused_by_name() -> None:
    """Windows has no fcntl."""
    program = (
        "import sys; sys.modules['fcntl'] = None; from rlx_cli.entry import main; sys.argv = ['rlx', 'list']; main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "error: Windows cannot lock files as POSIX does\nhint: use WSL 2 or rlx's container\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*PROGRAM, "list", "--remote", "--json"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_colour_only_where_it_is_wanted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in cli("inspect", "Pong/5").err
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31merror:\x1b[0m no dataset" in cli("inspect", "Pong/5").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in cli("inspect", "Pong/5").err
