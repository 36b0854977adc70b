"""Functions of the actors' contract; actors import this module alone, and so start quickly."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlx.errors import CollectError


class Adder:
    """Adds up what it is given; some tasks are orders."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, task: int | str) -> int:
        if isinstance(task, int):
            self.total += task
        elif task == "fail":
            raise CollectError("too hot", hint="wait")
        elif task == "exit":
            os._exit(3)
        elif task == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif task == "pid":
            return os.getpid()
        elif task == "sleep":
            time.sleep(60)
        return self.total


class CannotBeMadeAgain(Exception):
    def __init__(self, one: int, another: int) -> None:
        super().__init__(f"{one} and {another}")


def misbehaving(_: None) -> Callable[[str], Any]:
    def function(task: str) -> Any:
        if task == "exception":
            raise CannotBeMadeAgain(1, 2)
        return (number for number in range(3))

    return function


def failing_to_start(reason: str) -> Callable[[int], int]:
    raise CollectError(reason)


class Closing:
    """Leaves a note when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def close(self) -> None:
        self._path.write_text("closed")
