"""Tasks in this process and in others: the same results, errors and progress."""

import os
from concurrent.futures import BrokenExecutor, Future

import psutil
import pytest

from rlx.engine.local import LocalEngine
from rlx.errors import DiskFullError
from rlx.progress import Progress, Silent
from tests.contracts.base import Tally
from tests.pipeline.datasets import wait_until


def square(task: int, progress: Progress) -> int:
    for _ in range(task):
        progress.advance("steps", 1)
    return task * task


def fail(task: str, progress: Progress) -> None:  # noqa: ARG001
    raise DiskFullError(task, hint="free some room")


def has_a_bug(task: int, progress: Progress) -> int:  # noqa: ARG001
    return [0][task]


def die(task: int, progress: Progress) -> None:
    progress.advance("steps", task)
    os._exit(1)


def sleep_for_ever(task: None, progress: Progress) -> None:  # noqa: ARG001
    progress.advance("started", 1)
    while True:
        os.sched_yield()


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_and_progress(jobs: int) -> None:
    tally = Tally()
    with LocalEngine(jobs, tally) as engine:
        futures = [engine.submit(square, task) for task in range(40)]
    assert [future.result() for future in futures] == [task * task for task in range(40)]
    assert tally.done["steps"] == sum(range(40))


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_come_back_whole(jobs: int) -> None:
    with LocalEngine(jobs, Silent()) as engine:
        known, bug = engine.submit(fail, "disk full").exception(), engine.submit(has_a_bug, 1).exception()
    assert isinstance(known, DiskFullError)
    assert (str(known), known.hint) == ("disk full", "free some room")
    assert isinstance(bug, IndexError)


def test_a_worker_that_dies_breaks_the_pool() -> None:
    tally = Tally()
    with LocalEngine(2, tally) as engine:
        assert isinstance(engine.submit(die, 7).exception(), BrokenExecutor)
        with pytest.raises(BrokenExecutor):
            engine.submit(square, 1)
    assert tally.done["steps"] == 7


def test_an_exception_ends_the_workers_at_once() -> None:
    before = set(psutil.Process().children(recursive=True))
    tally = Tally()
    futures: list[Future[None]] = []

    def interrupted() -> None:
        with LocalEngine(2, tally) as engine:
            futures.extend(engine.submit(sleep_for_ever, None) for _ in range(3))
            wait_until(lambda: tally.done["started"] > 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(future.done() for future in futures)
    left = set(psutil.Process().children(recursive=True)) - before
    assert [process for process in left if "spawn_main" in " ".join(process.cmdline())] == []
