"""Collecting in a thread: ``start``, ``pause`` and ``async_shutdown`` of all collectors."""

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rlx.errors import CollectError
from rlx.fork import ThisProcessOnly

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
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
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


class FreeRunning(ABC):
    """A collector that can fill a replay buffer in a thread of its own."""

    _background: Background | None = None
    _here: ThisProcessOnly
    _end: "weakref.finalize[[Background], FreeRunning] | None" = None

    @property
    @abstractmethod
    def _has_buffer(self) -> bool:
        """Whether batches go into a replay buffer."""

    @abstractmethod
    def _collect_one(self) -> bool:
        """Collect a batch and store it; return False when all steps are done."""

    @abstractmethod
    def _detach(self) -> None:
        """Have the policy run as a copy, whose weights change by ``update_policy_weights_`` alone."""

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """End the thread and close the environments."""

    def start(self) -> None:
        """Collect into the replay buffer in a thread of its own, until ``total_frames`` or ``shutdown``.

        The policy runs as a copy: new weights are in use from the next batch after ``update_policy_weights_``. What
        ends the thread early is raised by the next method that is called.

        Raises:
            CollectError: the collector has no replay buffer, or the policy cannot be copied.

        Example:
            >>> from rlx.buffer import LazyTensorStorage, ReplayBuffer
            >>> from rlx.collector import Collector
            >>> memory = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
            >>> with Collector("CartPole-v1", frames_per_batch=50, replay_buffer=memory) as collector:
            ...     collector.start()
            ...     while memory.write_count < 200:
            ...         pass
            ...     with collector.pause():
            ...         memory.sample().shape
            torch.Size([32])
        """
        self._here.check()
        if not self._has_buffer:
            raise CollectError("start: expected a collector with a replay_buffer")
        if self._background is not None:
            self._background.check()
            if self._background.is_running:
                return
        self._detach()
        self._background = Background(self._collect_one)
        # Made after the one that closes the environments, so run before it when the program ends.
        self._end = weakref.finalize(self, _give_up, self._background)

    def is_running(self) -> bool:
        """Return whether the thread of ``start`` has more to collect."""
        return self._background is not None and self._background.is_running

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Wait for the batch that the thread of ``start`` collects; inside, nothing is written to the buffer.

        Raises:
            CollectError: nothing was started; or whatever ended the thread.
        """
        self._here.check()
        if self._background is None:
            raise CollectError("pause: expected a collector that was started")
        with self._quiet():
            yield

    def async_shutdown(self, timeout: float | None = None) -> None:
        """Do the same as ``shutdown``."""
        self.shutdown(timeout)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        self._here.check()
        if self._background is None:
            yield
            return
        with self._background.paused():
            self._background.check()
            yield

    def _expect_idle(self) -> None:
        self._here.check()
        if self._background is None:
            return
        self._background.check()
        if self._background.is_running:
            raise CollectError(
                "the collector fills its replay buffer in the background: do not iterate over it",
                hint="sample from the replay buffer, or do not call start()",
            )

    def _stop_background(self, timeout: float | None) -> None:
        if self._background is not None:
            self._background.stop(timeout)
        if self._end is not None:
            self._end.detach()

    def _leave(self) -> None:
        """Update after a fork: the child stops nothing of its parent."""
        if self._end is not None:
            self._end.detach()
        self._background = None


def _give_up(background: Background) -> None:
    """Wait, at the end of the program, for a batch, but not for long."""
    with suppress(CollectError):
        background.stop(timeout=1.0)
