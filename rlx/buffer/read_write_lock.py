"""A lock that many readers may hold at once, or one writer alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ReadWriteLock:
    """Lets readers overlap and a writer have what they read to itself; a writer that waits keeps new readers out.

    Neither side may be entered again by the thread that is in it.

    Example:
        >>> lock = ReadWriteLock()
        >>> with lock.read():
        ...     pass
        >>> with lock.write():
        ...     pass
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._readers = 0
        self._waiting_writers = 0
        self._is_writing = False

    def __reduce__(self) -> tuple[Any, ...]:
        # What another process gets a copy of, nobody reads or writes there yet.
        return type(self), ()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Shared with other readers."""
        with self._condition:
            while self._is_writing or self._waiting_writers:
                self._condition.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Alone."""
        with self._condition:
            self._waiting_writers += 1
            while self._is_writing or self._readers:
                self._condition.wait()
            self._waiting_writers -= 1
            self._is_writing = True
        try:
            yield
        finally:
            with self._condition:
                self._is_writing = False
                self._condition.notify_all()
