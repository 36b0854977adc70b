"""SIGTERM, SIGHUP and SIGQUIT end a command as Ctrl-C does: it says how to resume and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlx.errors import DatasetError
from rlx.manifest import Manifest
from rlx.store.verification import UNLISTED, verify
from rlx_cli.entry import main
from tests.verbs.datasets import ROOT, wait_until
from tests.verbs.processes import printed

PROGRAM = [sys.executable, "-c", "from rlx_cli.entry import main; main()"]
ENTERED = re.compile(
    rf'rlx_cli/(__init__|entry)\.py", line ([01], in <module>|{main.__code__.co_firstlineno}, in main)$'
)
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


def started(*arguments: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def steps_listed(path: Path) -> int:
    try:
        return Manifest.load(path).steps
    except DatasetError:
        return 0


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("is_group", [False, True])
def test_collect_with_workers(tmp_path: Path, number: signal.Signals, is_group: bool) -> None:
    path = tmp_path / "set"
    options = ("--steps", "9000000", "--shard-steps", "1000", "--workers", "2", "--quiet")
    process = started("collect", "CartPole-v1", "-o", str(path), *options)
    wait_until(lambda: steps_listed(path) > 0 or process.poll() is not None)
    (os.killpg if is_group else os.kill)(process.pid, number)
    out, err = printed(process)
    assert (process.returncode, out) == (130 if number == signal.SIGINT else 128 + number, "")
    assert err.startswith("error: interrupted; ")
    assert err.endswith("hint: run the same command with --resume\n")
    assert len(err.splitlines()) == 2
    assert {problem.problem for problem in verify(path).problems} <= {UNLISTED}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_modules_are_imported(tmp_path: Path, number: signal.Signals) -> None:
    for delay in (0.02, 0.05, 0.1, 0.2, 0.4):
        process = started("collect", "CartPole-v1", "-o", str(tmp_path / str(delay)), "--steps", "1000000", "--quiet")
        time.sleep(delay)
        process.send_signal(number)
        _, err = printed(process)
        # Before the ``try`` of ``main``, nobody can catch it: while Python starts, and enters the modules and ``main``.
        frames = [line for line in err.splitlines() if line.startswith("  File ") and "rlx_cli" in line]
        assert all(ENTERED.search(frame) for frame in frames), err
        assert process.returncode != 0


SWALLOWED = """
import signal, sys, time
from rlx_cli import entry
import rlx_cli.app

class Swallowing:
    def __del__(self):
        signal.raise_signal(signal.{name})

def work():
    Swallowing()
    time.sleep(30)

rlx_cli.app.main = work
entry.main()
"""
WHILE_SIGNAL_IS_IMPORTED = """
import sys, time
import rlx_cli.app
from rlx_cli import entry
from _signal import raise_signal

class Swallowing:
    def __del__(self):
        raise_signal(2)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "signal":
            Swallowing()

del sys.modules["signal"]
sys.meta_path.insert(0, Finder())
rlx_cli.app.main = lambda: time.sleep(30)
entry.main()
"""
CALLED_FROM_HDF5 = """
import functools, signal, sys, time
import rlx_cli.app
from rlx.formats.common.hdf5.output import Disk
from rlx_cli import entry

class Raw:
    tell = staticmethod(functools.partial(signal.raise_signal, signal.{name}))

def work():
    try:
        Disk(Raw()).tell()
    except TypeError:  # the result is no number
        time.sleep(30)
    except KeyboardInterrupt:
        sys.exit(99)

rlx_cli.app.main = work
entry.main()
"""
IN_A_CONDITION = """
import functools, signal, sys, threading, time
import rlx_cli.app
from rlx_cli import entry

class Lock:
    acquire = release = None
    is_left = False
    __enter__ = staticmethod(functools.partial(signal.raise_signal, signal.{name}))

    def __exit__(self, *_):
        Lock.is_left = True

def work():
    try:
        with threading.Condition(Lock()):
            time.sleep(30)
    except KeyboardInterrupt:
        sys.exit(99 if not Lock.is_left else 130)

rlx_cli.app.main = work
entry.main()
"""
AS_A_CLASS_IS_MADE = """
import signal
from rlx_cli import entry
import rlx_cli.app

class Named:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.{name})

def work():
    type("Owner", (), {{"named": Named()}})

rlx_cli.app.main = work
entry.main()
"""
AT_EXIT = """
import atexit, signal, sys, time
from rlx_cli import entry

def late():
    signal.raise_signal(signal.{name})
    sys.stdout.write("cleaned up")

atexit.register(late)
sys.argv = ["rlx", "--version"]
entry.main()
"""


def ended(program: str, number: signal.Signals) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
    command = [sys.executable, "-c", program.format(name=number.name)]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("program", "number"),
    [
        (SWALLOWED, signal.SIGINT),
        (SWALLOWED, signal.SIGTERM),
        (WHILE_SIGNAL_IS_IMPORTED, signal.SIGINT),
        (AS_A_CLASS_IS_MADE, signal.SIGTERM),
        (CALLED_FROM_HDF5, signal.SIGINT),
        (CALLED_FROM_HDF5, signal.SIGHUP),
    ],
    ids=["Ctrl-C", "SIGTERM", "while signal is imported", "as a class is made", "Ctrl-C in HDF5", "SIGHUP in HDF5"],
)
def test_a_signal_that_python_would_swallow(program: str, number: signal.Signals) -> None:
    """Python only prints what is raised in a finalizer, or while a weak reference is cleared; HDF5 crashes."""
    result = ended(program, number)
    assert (result.returncode, result.stderr) == (128 + number, "error: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_condition_locked(number: signal.Signals) -> None:
    """Raised after the lock was taken and before the ``with`` statement began, an exception would leave it locked."""
    assert ended(IN_A_CONDITION, number).returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_work_is_done(number: signal.Signals) -> None:
    result = ended(AT_EXIT, number)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("cleaned up")


def test_nohup_is_respected(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " + PROGRAM[-1]
    command = [sys.executable, "-c", program, "collect", "CartPole-v1", "-o", str(tmp_path / "set"), "--steps", "20000"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([*command, "--quiet"], env=environment, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "set").exists() or process.poll() is not None)
    process.send_signal(signal.SIGHUP)
    printed(process)
    assert process.returncode == 0
