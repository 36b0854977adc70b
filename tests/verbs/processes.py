"""Verbs in processes that are killed, interrupted and looked after."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.verbs.datasets import ROOT, wait_until

_GRACE_S = 30  # for workers whose parent was killed


class Child:
    """``tests.verbs.child`` as the leader of its own group of processes, which has begun its verb."""

    def __init__(self, verb: str, source: str, destination: Path | str, jobs: int) -> None:
        command = [sys.executable, "-m", "tests.verbs.child", verb, source, str(destination), str(jobs)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self, *, whole_group: bool) -> None:
        """``kill -9`` of the process, or of its workers too, whether or not it is still running."""
        if whole_group:
            self.signal_group(signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def signal_group(self, number: int) -> None:
        """What Ctrl-C in a terminal does: everyone gets the signal."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def output(self) -> tuple[str, str]:
        """What it printed on stdout and stderr until its end."""
        return printed(self.process)

    def workers(self) -> list[int]:
        """Processes that convert."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children()
            return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
        return []

    def everyone(self) -> list[psutil.Process]:
        """Processes of its group that live."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def printed(process: "subprocess.Popen[str]", timeout_s: float = 60.0) -> tuple[str, str]:
    """What a process prints on stdout and stderr until its end. One that hangs is killed, and the test fails.

    What it printed is in the failure; with ``PYTHONFAULTHANDLER`` in its environment, the stacks of its threads too.
    """
    for _ in range(int(timeout_s)):  # not by the clock: a machine may stand still for a minute
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)
    process.send_signal(signal.SIGABRT)
    out, err = process.communicate(timeout=_GRACE_S)
    raise AssertionError(f"hangs: {out}{err}")


@contextmanager
def child(verb: str, source: str, destination: Path | str, jobs: int) -> Iterator[Child]:
    """A child that is gone at the end, all of its group with it."""
    started = Child(verb, source, destination, jobs)
    try:
        yield started
        started.process.wait(timeout=60)
        wait_until(lambda: not started.everyone())
    finally:
        started.kill(whole_group=True)
        started.output()
