"""Attempts at a transfer: which failures may pass, how long to wait, and how another thread stops them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from rlx.errors import SourceError
from rlx.wording import duration


class Cancel:
    """A ``threading.Event`` that also wakes a blocked thread: a stalled server must not hold up Ctrl-C."""

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
        """Sleep this long, or until cancelled; return whether it was cancelled."""
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


logger = logging.getLogger(__name__)
T = TypeVar("T")
_LONG_S = 3.0


class TransientError(Exception):
    """One attempt failed and another may succeed.

    Args:
        error: what the user shall see if none does.
        retry_after: what the server said of when to come back: seconds or an HTTP date.
    """

    def __init__(self, error: SourceError, retry_after: str | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after = retry_after


def _uniform() -> float:
    return random.random()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Truncated exponential backoff with full jitter.

    Args:
        attempts: maximum attempts in a row without progress.
        first_delay_s: longest wait after the first failure; it doubles with every further one.
        max_delay_s: where the doubling ends.
        max_retry_after_s: longest wait that a server can ask for.
        max_silence_s: no attempt begins later than this after the last progress; waits between attempts do not count.
        jitter: returns the fraction of the longest wait to sleep, in [0, 1).
        clock: seconds since 1970.
    """

    attempts: int = 6
    first_delay_s: float = 1.0
    max_delay_s: float = 32.0
    max_retry_after_s: float = 300.0
    max_silence_s: float = 180.0
    jitter: Callable[[], float] = _uniform
    clock: Callable[[], float] = time.time

    def delay_s(self, failures: int, retry_after: str | None = None) -> float:
        """Return seconds to wait after this many failures in a row: at least what the server asks for, capped.

        Example:
            >>> policy = RetryPolicy(jitter=lambda: 0.5)
            >>> [policy.delay_s(n) for n in (1, 2, 3, 99)]
            [0.5, 1.0, 2.0, 16.0]
            >>> policy.delay_s(1, retry_after="7")
            7.0
        """
        longest = min(self.max_delay_s, self.first_delay_s * 2.0 ** min(failures - 1, 64))
        asked = min(self._asked_s(retry_after), self.max_retry_after_s)
        return max(longest * self.jitter(), asked)

    def _asked_s(self, retry_after: str | None) -> float:
        if retry_after is None:
            return 0.0
        if retry_after.strip().isdecimal():
            return float(retry_after)
        try:
            return parsedate_to_datetime(retry_after).timestamp() - self.clock()
        except (ValueError, TypeError, OverflowError):
            # Neither a number nor a date, or a date that no clock shows.
            return 0.0

    def run(self, attempt: Callable[[], T], cancel: Cancel, reached: Callable[[], int] = lambda: 0) -> T:
        """Return the result of ``attempt``, once it succeeds.

        Args:
            attempt: is called until it raises no TransientError.
            reached: how far any attempt got; one that gets further than all before it resets the count, so that a long
                transfer over a bad line ends.
        """
        attempts, furthest = self.attempts_of(cancel), reached()
        while True:
            cancel.check()
            try:
                return attempt()
            except TransientError as transient:
                if reached() > furthest:
                    furthest = reached()
                    attempts.progressed()
                attempts.failed(transient)

    def attempts_of(self, cancel: Cancel) -> Attempts:
        """Return the count of the attempts of one transfer, for those whose attempts are not one function."""
        return Attempts(self, cancel)


class Attempts:
    """The attempts of one transfer, counted from its last progress."""

    def __init__(self, policy: RetryPolicy, cancel: Cancel) -> None:
        self._policy = policy
        self._cancel = cancel
        self.progressed()

    def progressed(self) -> None:
        """Count from here: something arrived."""
        self._failures = 0
        self._waited_s = 0.0
        self._since = time.monotonic()

    def failed(self, transient: TransientError) -> None:
        """Wait until the next attempt."""
        self._cancel.check()
        policy = self._policy
        self._failures += 1
        silent_s = time.monotonic() - self._since - self._waited_s
        if self._failures >= policy.attempts or silent_s > policy.max_silence_s:
            error = transient.error
            tried = f" (tried {self._failures} times)" if self._failures > 1 else ""
            raise type(error)(f"{error}{tried}", hint=error.hint) from transient
        delay_s = policy.delay_s(self._failures, transient.retry_after)
        # Without a warning, the command would seem to hang.
        level = logging.WARNING if delay_s > _LONG_S else logging.INFO
        logger.log(level, "%s; trying again in %s", transient, duration(delay_s))
        self._waited_s += delay_s
        self._cancel.wait(delay_s)
        self._cancel.check()
