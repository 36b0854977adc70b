"""``rlx`` in processes that start in milliseconds: forked from one that has imported everything, and used none of it.

    with Forks() as forks:
        started = forks.start(["verify", "set"], directory)
        started.signal(signal.SIGKILL)
        assert started.ended() == -signal.SIGKILL

``python -m tests.interruption.forks`` is the process that forks: it reads a JSON document a line, and answers each.
"""

import atexit
import faulthandler
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from types import TracebackType
from typing import Any, Self

import typer.main

from rlx import verbs
from rlx.formats.registry import formats, readable
from rlx_cli import entry
from tests.verbs.datasets import ROOT

OUT, ERR = ".stdout", ".stderr"
HUNG = 1000
IMPORTED = (
    *("gymnasium", "pydantic", "rich.progress", "rich.table", "rich.text", "rich.console", "h5py", "PIL.Image", "av"),
    *("zarr", "obstore", "obstore.store", "pyarrow", "pyarrow.parquet", "rlx.viewer.files"),
    *("rlx.checks.examination", "rlx.formats.finding", "rlx.formats.common.batches"),
    *("rlx.collector.dataset_collector", "rlx.engine.local_actors", "rlx.engine.ray_engine"),
    *(f"{one.folder}.reader" for one in readable().values()),
    *(f"{one.folder}.writer" for one in formats().values() if one.writes),
    *(f"rlx.verbs.{module.name}" for module in iter_modules(verbs.__path__)),
    *("rlx_cli.app",),
)


@dataclass(frozen=True, slots=True)
class Fork:
    """One process that runs ``rlx``, the leader of its own group.

    Args:
        forks: where it came from.
        pid: its number.
        directory: where it runs; ``.stdout`` and ``.stderr`` there are what it prints.
    """

    forks: "Forks"
    pid: int
    directory: Path

    def signal(self, number: int, *, whole_group: bool = False) -> None:
        """Send a signal, also to its workers where asked; nothing if it has ended."""
        with suppress(ProcessLookupError):
            (os.killpg if whole_group else os.kill)(self.pid, number)

    def ended(self, timeout_s: float = 60.0) -> int:
        """Wait for its end; return its exit code, minus the number of the signal that killed it, or HUNG."""
        return int(self.forks.ask({"wait": self.pid, "timeout_s": timeout_s}))

    def said(self) -> tuple[str, str]:
        """What it printed on stdout and stderr."""
        return tuple((self.directory / name).read_text(errors="replace") for name in (OUT, ERR))  # type: ignore[return-value]


class Forks:
    """The process that forks, as a context manager.

    Args:
        environment: variables on top of those of this process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
        # Threads that wait for each other in a loop take the processors from all the other processes.
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        self._environment = {**os.environ, **threads, **(environment or {}), "PYTHONPATH": path}

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.interruption.forks"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=pipe, text=True)
        assert self.ask({"ready": True}) is True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, arguments: Sequence[str], directory: Path) -> Fork:
        """Run ``rlx`` with these arguments in a directory."""
        return Fork(self, int(self.ask({"run": list(arguments), "directory": str(directory)})), directory)

    def run(self, arguments: Sequence[str], directory: Path) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a command that nobody disturbs."""
        started = self.start(arguments, directory)
        return started.ended(), *started.said()

    def ask(self, question: Mapping[str, Any]) -> Any:
        """What the process that forks answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _serve() -> list[str] | None:
    """Answer until the input ends; in a forked process, return its arguments."""
    for name in IMPORTED:
        importlib.import_module(name)
    typer.main.get_command = cache(typer.main.get_command)  # to build it takes as long as a short command
    typer.main.get_command(importlib.import_module("rlx_cli.app").app)
    gc.freeze()  # whoever collects garbage would copy every page
    for line in sys.stdin:
        question = json.loads(line)
        answer: Any = True
        if "run" in question:
            answer = os.fork()
            if not answer:
                _settle(Path(question["directory"]))
                return list(question["run"])
        elif "wait" in question:
            answer = _waited(question["wait"], question["timeout_s"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def _settle(directory: Path) -> None:
    os.setsid()
    os.chdir(directory)
    for name in (OUT, ERR):  # files of its own: what outlives a killed process still writes to those it had
        Path(name).unlink(missing_ok=True)
    for number, name in enumerate((os.devnull, OUT, ERR)):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL if number else os.O_RDONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it hangs, should it


def _waited(pid: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


def main() -> None:
    """Fork, and run ``rlx`` in what is forked."""
    arguments = _serve()
    if arguments is not None:
        sys.argv = ["rlx", *arguments]
        code: Any = 1
        try:
            entry.main()
        except SystemExit as exc:
            code = exc.code
        except BaseException:
            traceback.print_exc()
        # All of the end of a process but for tearing down what was imported, which takes longer than most verbs.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
