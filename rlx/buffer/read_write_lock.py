"""A lock that many readers may hold at once, or one writer alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlx.errors import ForkError
from rlx.fork import on_fork


class ReadWriteLock:
    """Lock that lets readers overlap and gives a writer exclusive access; a waiting writer blocks new readers.

    Neither side may be entered again by the thread that is in it. A fork waits for both sides, so that what they read
    and write is whole in the child, whose lock is free.

    Raises:
        ForkError: (in a forked process) a writer did not finish before the fork.

    Example:
        >>> lock = ReadWriteLock()
        >>> with lock.read():
        ...     pass
        >>> with lock.write():
        ...     pass
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._readers: set[int] = set()  # threads
        self._waiting_writers = 0
        self._writer: int | None = None
        self._is_forking = False  # the writer is a fork
        self._is_torn = False
        on_fork(self, ReadWriteLock._renew, before=ReadWriteLock._hold, in_parent=ReadWriteLock._let_go)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process has no readers or writers yet.
        return type(self), ()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        me = threading.get_ident()
        with self._condition:
            self._check()
            while self._writer is not None or self._waiting_writers:
                self._condition.wait()
            self._readers.add(me)
        try:
            yield
        finally:
            with self._condition:
                self._readers.discard(me)
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._condition:
            self._check()
            self._acquire(None)
        try:
            yield
        finally:
            with self._condition:
                self._release()

    def _acquire(self, timeout: float | None) -> bool:
        """Wait until no thread is inside; return whether this thread is the writer then."""
        self._waiting_writers += 1
        try:
            is_free = self._condition.wait_for(lambda: self._writer is None and not self._readers, timeout)
        finally:
            self._waiting_writers -= 1
        if is_free:
            self._writer = threading.get_ident()
        else:
            self._condition.notify_all()  # readers that made way
        return is_free

    def _release(self) -> None:
        self._writer = None
        self._condition.notify_all()

    def _check(self) -> None:
        if self._is_torn:
            raise ForkError(
                "a buffer cannot be used in this forked process: a thread was writing to it during the fork",
                hint='fork between two writes; or start processes with multiprocessing.get_context("spawn")',
            )

    def _hold(self, timeout: float) -> None:
        """Keep everybody out during a fork, but for a thread that forks inside."""
        me = threading.get_ident()
        with self._condition:
            if me != self._writer and me not in self._readers and self._acquire(timeout):
                self._is_forking = True

    def _let_go(self) -> None:
        with self._condition:
            if self._is_forking and self._writer == threading.get_ident():
                self._is_forking = False
                self._release()

    def _renew(self) -> None:
        """Let go of what other threads held in the parent."""
        me = threading.get_ident()
        self._condition = threading.Condition(threading.Lock())
        self._is_torn = self._is_torn or not (self._is_forking or self._writer in (None, me))
        self._readers &= {me}
        self._writer = me if self._writer == me and not self._is_forking else None
        self._waiting_writers, self._is_forking = 0, False
