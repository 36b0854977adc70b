"""Tasks in this process and in others of this machine."""

import os
import sys
import threading
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlx.engine import local_engine
from rlx.engine.engines import cores, open_engine
from rlx.engine.local_engine import LocalEngine
from rlx.errors import EngineError, FileAccessError
from rlx.progress import Progress, Silent
from tests.contracts.engine import EngineContract, WorkersContract
from tests.contracts.progress import Tally
from tests.contracts.tasks import die, sleep_for_ever, square
from tests.verbs.datasets import wait_until


class TestOneJob(EngineContract):
    def make_engine(self, progress: Progress) -> LocalEngine:
        return LocalEngine(1, progress)


class TestTwoJobs(WorkersContract):
    def make_engine(self, progress: Progress) -> LocalEngine:
        return LocalEngine(2, progress)


def test_a_worker_that_dies_breaks_the_pool() -> None:
    tally = Tally()
    with LocalEngine(2, tally) as engine:
        assert isinstance(engine.submit(die, 7).exception(), BrokenExecutor)
        with pytest.raises(BrokenExecutor):
            engine.submit(square, 1)
    assert tally.done["steps"] == 7


def test_only_the_pool_closes_its_pipe_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread that closes it may close a file that was opened meanwhile and got its number."""
    closing: list[str] = []
    close = Connection.close

    def noted(pipe: "Connection[Any, Any]") -> None:
        if pipe is tasks:
            closing.append(threading.current_thread().name)
        close(pipe)

    with suppress(BrokenExecutor), LocalEngine(2, Tally()) as engine:
        pool: Any = engine._workers._pool  # type: ignore[union-attr]  # of two jobs
        tasks = pool._call_queue._reader
        monkeypatch.setattr(Connection, "close", noted)
        engine.submit(die, 7).result()
    expected = [] if sys.version_info >= (3, 11, 5) else [threading.current_thread().name]
    assert [name for name in closing if name == threading.current_thread().name] == expected
    assert closing


def test_an_interpreter_that_cannot_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").touch()
    monkeypatch.setattr("multiprocessing.spawn._python_exe", os.fsencode(tmp_path / "python"))
    with pytest.raises(FileAccessError, match="python: this interpreter cannot be executed"):
        LocalEngine(2, Tally())


def test_no_process_is_left_after_an_exception() -> None:
    before = set(psutil.Process().children(recursive=True))
    tally = Tally()

    def interrupted() -> None:
        with LocalEngine(2, tally) as engine:
            for _ in range(8):
                engine.submit(sleep_for_ever, bytes(2**20))  # more than the pipe to the workers holds
            wait_until(lambda: tally.done["naps"] > 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    left = set(psutil.Process().children(recursive=True)) - before
    assert [process for process in left if "spawn_main" in " ".join(process.cmdline())] == []


def test_what_a_worker_has_of_progress() -> None:
    receiver, sender = Pipe(duplex=False)
    progress = local_engine._Relayed(sender)
    progress.advance("steps", 3)
    assert receiver.recv() == ("steps", 3)
    with pytest.raises(NotImplementedError, match="the submitter of the tasks knows the queue"):
        progress.expect("steps", 3)
    with pytest.raises(RuntimeError, match="no worker process"):
        local_engine._work(b"")


def test_engines_by_name() -> None:
    with pytest.raises(EngineError, match="engine 'dask' is unknown: expected one of local, ray"):
        open_engine("dask", 1, Silent())
    assert cores() == len(os.sched_getaffinity(0))
