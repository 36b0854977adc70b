"""Tasks of the engines' contract; workers import this module alone, and so start quickly."""

import os
import time
from pathlib import Path

from rlx.errors import DiskFullError
from rlx.progress import Progress


def square(task: int, progress: Progress) -> int:
    for _ in range(task):
        progress.advance("steps", 1)
    return task * task


def meet(files: tuple[Path, Path], progress: Progress) -> int:  # noqa: ARG001
    """Make the first file, and wait for the second one, which another task makes; return the number of the process."""
    mine, other = files
    mine.touch()
    deadline = time.monotonic() + 30
    while not other.exists():
        assert time.monotonic() < deadline, "the other task was not started"
        time.sleep(0.005)
    return os.getpid()


def sleep(seconds: float, progress: Progress) -> float:  # noqa: ARG001
    time.sleep(seconds)
    return seconds


def fail(task: str, progress: Progress) -> None:  # noqa: ARG001
    raise DiskFullError(task, hint="free some space")


def has_a_bug(task: int, progress: Progress) -> int:  # noqa: ARG001
    return [0][task]


def die(task: int, progress: Progress) -> None:
    progress.advance("steps", task)
    os._exit(1)


def sleep_for_ever(task: object, progress: Progress) -> None:  # noqa: ARG001
    while True:
        progress.advance("naps", 1)
        time.sleep(0.1)
