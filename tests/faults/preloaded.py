"""A process whose calls on files fail as asked, or are recorded: ``calls.c``, compiled and loaded before all else."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.verbs.datasets import ROOT


@dataclass(frozen=True, slots=True)
class Fault:
    """One call that fails.

    Args:
        call: as ``calls.c`` names it.
        number: which one of them, from 0.
        code: what it fails with.
        forever: whether all that follow fail too.
    """

    call: str
    number: int
    code: int
    forever: bool = False

    def __str__(self) -> str:
        return f"{self.call} {self.number}{' and later' if self.forever else ''}: {errno.errorcode[self.code]}"


class Preloaded:
    """The functions of ``works.py`` in forks of a process with ``calls.c``, as a context manager.

    Args:
        directory: an empty one. ``data`` in it is what they read; ``place`` is where they write.
    """

    def __init__(self, directory: Path) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None or sys.platform != "linux":
            pytest.skip("no C compiler, or not Linux")
        self._library = directory / "calls.so"
        source = Path(__file__).with_name("calls.c")
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True, capture_output=True)
        self.directory = directory
        self.data, self.place = directory / "data", directory / "place"

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "commands")]),
            "OMP_NUM_THREADS": "1",
            "RLX_HOME": str(self.directory / "home"),
        }
        command = [sys.executable, "-m", "tests.faults.works"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert self.run("prepare") == {"error": None}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, work: str, *, below: Path | None = None, **environment: str) -> dict[str, Any]:
        """Run one in an empty directory; return what ``works.outcome`` does.

        Args:
            below: the calls on files below this directory count; ``place`` by default.
            environment: for ``calls.c``.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        if work == "repair":
            shutil.copytree(self.data / "damaged", self.place / "out")
        asked = {
            "work": work,
            "data": str(self.data),
            "place": str(self.place),
            "said": str(self.directory / "said"),
            "environment": {"CALLS_BELOW": str(below or self.place), **environment},
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def fail(self, work: str, fault: Fault, *, below: Path | None = None) -> dict[str, Any]:
        """Run one in which a call fails."""
        plan = f"{fault.call} {fault.number} {fault.code} {int(fault.forever)}"
        return self.run(work, below=below, CALLS_FAIL=plan)

    def calls(self, work: str, *, below: Path | None = None) -> Sequence[tuple[str, str]]:
        """The names and paths of all calls of one."""
        named = self.directory / "named"
        named.write_text("")
        found = self.run(work, below=below, CALLS_NAMED=str(named))
        assert found["error"] is None, found["trace"]
        return [(call, path) for call, _, path in (line.partition(" ") for line in named.read_text().splitlines())]

    def said(self) -> str:
        """What the last one printed."""
        return (self.directory / "said").read_text(errors="replace")
