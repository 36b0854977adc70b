"""Tasks of the engines' contract; workers import this module alone, and so start quickly."""

import os
import time

from rlx.errors import DiskFullError
from rlx.progress import Progress


def square(task: int, progress: Progress) -> int:
    for _ in range(task):
        progress.advance("steps", 1)
    return task * task


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
