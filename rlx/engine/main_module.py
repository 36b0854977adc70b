"""Processes of multiprocessing that do not run the user's script again: no script needs a ``__main__`` guard."""

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from types import ModuleType
from typing import ClassVar

_LOCK = threading.Lock()  # of two that hide it, the second would restore the substitute of the first


@contextmanager
def hidden() -> Iterator[None]:
    """Keep processes that start in this context from importing ``__main__``: send them its objects by value."""
    with _LOCK:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def context(method: str | None = None) -> BaseContext:
    """Return the context of multiprocessing for a start method, whose processes do not import ``__main__``.

    Args:
        method: ``spawn``, ``forkserver`` or ``fork``, whose processes import nothing; Python's default if not given.

    Example:
        >>> context("spawn").get_start_method()
        'spawn'
    """
    found = multiprocessing.get_context(method)
    return {"spawn": _Spawn, "forkserver": _ForkServer}.get(found.get_start_method(), lambda: found)()


class _SpawnedProcess(SpawnProcess):
    def start(self) -> None:
        with hidden():
            super().start()


class _Spawn(SpawnContext):
    Process: ClassVar[type[SpawnProcess]] = _SpawnedProcess


class _ServedProcess(ForkServerProcess):
    def start(self) -> None:
        with hidden():
            super().start()


class _ForkServer(ForkServerContext):
    Process: ClassVar[type[ForkServerProcess]] = _ServedProcess
