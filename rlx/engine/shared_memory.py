"""Memory that two processes of one machine see at once: named arrays, and the pulse of a worker."""

from __future__ import annotations

import errno
import os
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from rlx.errors import DiskFullError
from rlx.store.native.mapping import shared_memory

Layout = Mapping[str, tuple[tuple[int, ...], str]]
_IN_MEMORY = Path("/dev/shm")
_ALIGNMENT = 64


class SharedArrays:
    """Named arrays in a file that is mapped into memory: zeros until somebody writes.

    One process creates them and gives the path to another, which opens it; then the file's name can be removed. The
    memory is freed when both have let go of it, however they end.

    Args:
        layout: shape and dtype of every array, the same in both processes.
    """

    def __init__(self, layout: Layout, path: Path | None = None) -> None:
        offsets, size = _offsets(layout)
        self.path, self._file = _created(size) if path is None else (path, os.open(path, os.O_RDWR))
        weakref.finalize(self, os.close, self._file)
        memory = shared_memory(self._file, size)
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer(memory, dtype, int(np.prod(shape)), offsets[name]).reshape(shape)
            for name, (shape, dtype) in layout.items()
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def unlink(self) -> None:
        """Remove the file's name, if it is still there; existing mappings remain."""
        self.path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[Self]:
        """Lock the arrays against other users of this context; a process that dies in it releases the lock."""
        import fcntl  # not on Windows

        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield self
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _offsets(layout: Layout) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, (shape, dtype) in layout.items():
        offsets[name] = end
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(end, _ALIGNMENT)


def _created(size: int) -> tuple[Path, int]:
    """Return a new file of zeros on allocated space: on a full disk, a write into a hole would kill the process."""
    folders = [folder for folder in (_IN_MEMORY, Path(tempfile.gettempdir())) if folder.is_dir()]
    for folder in folders:
        file, name = tempfile.mkstemp(prefix="rlx-", dir=folder)
        try:
            _reserve(file, size)
        except BaseException as exc:
            os.close(file)
            Path(name).unlink()
            if not isinstance(exc, OSError) or exc.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
        else:
            return Path(name), file
    raise DiskFullError(f"no room for {size:,} bytes of shared memory in {' or '.join(map(str, folders))}")


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


_BYTES = 8


class Pulse:
    """A count that two processes see: it goes up when a step begins, and when it ends."""

    def __init__(self, fd: int) -> None:
        self._count = shared_memory(fd, _BYTES).cast("q")

    @property
    def count(self) -> int:
        """Odd while a step is being taken."""
        return self._count[0]

    def beat(self) -> None:
        """Begin a step, or end it."""
        self._count[0] += 1


class PulseWatch:
    """Detector of a hung process: in one step, or because it was stopped."""

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


def begin_step() -> Pulse | None:
    """Notify the owner of this actor, if it is watched, of a step; return the pulse to beat when it ends."""
    if _mine is None or _mine.count % 2:
        return None
    _mine.beat()
    return _mine
