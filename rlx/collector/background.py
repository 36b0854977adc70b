"""A thread that collects, and can be paused between two batches."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rlx.accelerator import as_here
from rlx.errors import CollectError

logger = logging.getLogger(__name__)


class Background:
    """Thread that calls a function until it returns False, raises, or is stopped.

    Args:
        work: collects one batch, and returns whether another is to follow.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._turn = threading.Condition()
        self._is_working = False
        self._pauses = 0
        self._is_stopped = False
        self._error: BaseException | None = None
        # A daemon: a program that ends without a shutdown does not wait for a batch.
        self._thread = threading.Thread(target=as_here(self._run), name="collector", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether more batches are to come."""
        return self._thread.is_alive() and not self._is_stopped

    def check(self) -> None:
        """Raise the thread's error, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the batch that is being collected; none is begun inside."""
        with self._turn:
            self._pauses += 1
            self._turn.wait_for(lambda: not self._is_working)
        try:
            yield
        finally:
            with self._turn:
                self._pauses -= 1
                self._turn.notify_all()

    def stop(self, timeout: float | None = None) -> None:
        """Wait for the batch that is being collected, and end the thread."""
        with self._turn:
            self._is_stopped = True
            self._turn.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        if timeout is not None and self._thread.is_alive():
            raise CollectError(f"the collector did not finish its batch within {timeout} s")

    def _run(self) -> None:
        try:
            while self._begins():
                try:
                    if not self._work():
                        return
                finally:
                    with self._turn:
                        self._is_working = False
                        self._turn.notify_all()
        except BaseException as exc:  # for the next caller; a thread cannot report it
            self._error = exc
            logger.warning("collecting in the background ended: %s: %s", type(exc).__name__, exc)

    def _begins(self) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._is_stopped or not self._pauses)
            self._is_working = not self._is_stopped
            return self._is_working


def give_up(background: Background) -> None:
    """Wait, at the end of the program, for a batch, but not for long."""
    with suppress(CollectError):
        background.stop(timeout=1.0)
