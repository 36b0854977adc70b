"""Progress as it really comes out: bars on a terminal, plain lines elsewhere, nothing with ``--quiet``."""

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rlx_cli.progress import Lines
from tests.conftest import SAMPLE_RUN, Cli
from tests.gcs_server import Fault, GcsServer

PROGRAM = [sys.executable, "-c", "from rlx_cli.app import main; main()"]
FILE = "Pong/run_5-00000-of-00050"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[GcsServer]:
    shutil.copytree(SAMPLE_RUN, tmp_path / "objects")
    with GcsServer(tmp_path / "objects") as server:
        server.fault(FILE, Fault(trickle=(40_000, 0.1)))
        yield server


def download(server: GcsServer, *more: str) -> list[str]:
    return [*PROGRAM, "download", "Pong/5", "--source", server.url, "--shards", "0", "--jobs", "1", *more]


def on_terminal(command: list[str], columns: int, **environment: str) -> tuple[str, str]:
    """Stdout, and what a terminal of that many columns got as stderr."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen(
        command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, text=True, env={**os.environ, **environment}
    )
    os.close(slave)
    drawn = b"".join(_until_hung_up(master))
    os.close(master)
    out, _ = process.communicate()
    assert process.returncode == 0
    return out, drawn.decode()


def _until_hung_up(terminal: int) -> Iterator[bytes]:
    try:
        while piece := os.read(terminal, 4096):
            yield piece
    except OSError:  # how Linux tells that nobody holds the other end any more
        return


@pytest.mark.parametrize("columns", [60, 100])
def test_bars_on_a_terminal(slow_server: GcsServer, columns: int) -> None:
    out, drawn = on_terminal(download(slow_server), columns)
    assert out.startswith("Pong/5: 871 steps in 1 trajectory, 1 shard, ")
    assert "\x1b[" in drawn
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", _CONTROL.sub("", drawn))]
    size = (SAMPLE_RUN / FILE).stat().st_size // 1000
    assert any(re.search(rf"^download Pong/5 .*━.* \d+/{size} kB +[\d.]+ kB/s", line) for line in lines)
    assert any(re.search(r"━.* 0/1 shards", line) for line in lines)
    assert max(map(len, lines)) < columns
    # The bars are gone in the end: the cursor went up over them and the lines were erased.
    assert drawn.rstrip().endswith("\x1b[2K")


def test_no_colour_on_a_terminal(slow_server: GcsServer) -> None:
    _, drawn = on_terminal(download(slow_server), 100, NO_COLOR="1")
    assert "━" in drawn
    assert not re.search(r"\x1b\[[0-9;]*3[0-9](;[0-9]+)*m", drawn)


def test_a_dumb_terminal_gets_no_bars(slow_server: GcsServer) -> None:
    _, drawn = on_terminal(download(slow_server), 100, TERM="dumb")
    assert "\x1b" not in drawn
    assert "━" not in drawn


def test_quiet_is_silent_on_a_terminal(slow_server: GcsServer) -> None:
    _, drawn = on_terminal(download(slow_server, "--quiet"), 100)
    assert drawn == ""


def test_forced_colour_makes_no_bars_in_a_log(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli("convert", SAMPLE_RUN, tmp_path / "pong", "--jobs", 1).err == ""


def test_lines_come_while_nothing_moves() -> None:
    printed = io.StringIO()
    with Lines("download Pong/5", Console(file=printed), every_s=0.01) as lines:
        lines.expect("shards", 50)
        while printed.getvalue().count("\n") < 3:
            threading.Event().wait(0.01)
    assert printed.getvalue().splitlines()[-1] == "download Pong/5: 0 of 50 shards"


def test_a_line_says_how_much_how_fast_and_how_long() -> None:
    lines = Lines("download Pong/5", Console(file=io.StringIO()))
    assert lines.line(1.0) == "download Pong/5: starting"
    lines.expect("bytes", 500_000_000)
    lines.expect("bytes", 500_000_000)
    lines.expect("shards", 50)
    lines.advance("bytes", 100_000_000)
    lines.advance("shards", 2)
    lines.advance("steps", 12_345)
    assert (
        lines.line(10.0)
        == "download Pong/5: 100 MB of 1.00 GB, 2 of 50 shards, 12,345 steps, 10.0 MB/s, 1 min 30 s left"
    )


def test_lines_count_from_any_thread() -> None:
    lines = Lines("convert", Console(file=io.StringIO()))

    def work() -> None:
        for _ in range(1000):
            lines.advance("steps", 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines.line(1.0) == "convert: 8,000 steps"
