"""The pulse of an actor: what its process writes into shared memory while it works, and its owner looks at."""

import mmap
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_IN_MEMORY = Path("/dev/shm")
_BYTES = 8


class Pulse:
    """A count that two processes see: it goes up when a step begins, and when it ends.

    Args:
        fd: of the file that the other process made.
    """

    def __init__(self, fd: int) -> None:
        self._count = memoryview(mmap.mmap(fd, _BYTES)).cast("q")

    @property
    def count(self) -> int:
        """Odd while a step is being made."""
        return self._count[0]

    def beat(self) -> None:
        """Begin a step, or end it."""
        self._count[0] += 1


class PulseWatch:
    """Detector of a hung process: in one step, or because it was stopped.

    Args:
        pulse: of the process.
        timeout: seconds that a step may take.
    """

    def __init__(self, pulse: Pulse, timeout: float) -> None:
        self._pulse, self._timeout = pulse, timeout
        self.restart()

    def restart(self) -> None:
        """Restart the wait."""
        self._count, self._since = self._pulse.count, time.monotonic()

    def has_hung(self, *, is_stopped: bool) -> bool:
        """Return whether the step under way, or the stop of the process, has lasted too long."""
        count = self._pulse.count
        if count != self._count or not (count % 2 or is_stopped):
            self.restart()
        return time.monotonic() - self._since > self._timeout


_mine: Pulse | None = None


def pulse_file() -> IO[bytes]:
    """Make the file of a pulse, which has no name."""
    file = tempfile.TemporaryFile(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None)  # noqa: SIM115  (it is returned)
    file.truncate(_BYTES)
    return file


def open_pulse(fd: int) -> None:
    """Take on the pulse of this process, an actor."""
    global _mine
    _mine = Pulse(fd)


@contextmanager
def stepping() -> Iterator[None]:
    """Tell the owner of this actor, if this process is one that is watched, that a step is being made."""
    if _mine is None or _mine.count % 2:
        yield
        return
    _mine.beat()
    try:
        yield
    finally:
        _mine.beat()
