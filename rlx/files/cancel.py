"""Stopping transfers from another thread."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager


class Cancel:
    """A ``threading.Event`` that also wakes whoever is blocked: a stalled server must not hold up Ctrl-C.

    Example:
        >>> cancel, woken = Cancel(), []
        >>> with cancel.waking(lambda: woken.append("reader")):
        ...     cancel.set()
        >>> cancel.is_set(), woken
        (True, ['reader'])
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wakes: list[Callable[[], None]] = []
        # Reentrant, because a signal handler may call set() in the thread that is just registering.
        self._lock = threading.RLock()

    def set(self) -> None:
        """Cancel, permanently."""
        with self._lock:
            self._event.set()
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()

    def is_set(self) -> bool:
        """Return whether it was cancelled."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep so long, or until cancelled; return whether it was cancelled."""
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raise ``concurrent.futures.CancelledError`` if it was cancelled."""
        if self.is_set():
            raise CancelledError("cancelled")

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` if it is cancelled, from the thread that cancels, before or inside the ``with``."""
        with self._lock:
            self._wakes.append(wake)
            late = self.is_set()
        if late:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakes.remove(wake)
