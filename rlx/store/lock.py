"""One writer a dataset: a lock that dies with its process, and names it to whoever comes second."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rlx.errors import DatasetError, DatasetLockedError

FILE_NAME = ".lock"
_LOOKS = 20
_LOOK_S = 0.01


@contextmanager
def writing(dataset: Path) -> Iterator[None]:
    """Holds the right to write a dataset, whose directory is made if need be.

    Raises:
        DatasetLockedError: another process holds it; its pid is in the message.
        DatasetError: the directory cannot be made or written.
    """
    is_new = not dataset.exists()
    with _open(dataset) as file:
        if not _acquired(file):
            owner = _read_pid(file)
            message = f"{dataset} is being written by another process, pid {owner}"
            raise DatasetLockedError(message, hint=f"wait for it, or stop it: kill {owner}")
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            # Otherwise the file stays: a third process could lock one that no longer has the name.
            if is_new and [entry.name for entry in dataset.iterdir()] == [FILE_NAME]:
                (dataset / FILE_NAME).unlink()
                dataset.rmdir()


def _open(dataset: Path) -> TextIO:
    try:
        dataset.mkdir(parents=True, exist_ok=True)
        return (dataset / FILE_NAME).open("a+")
    except OSError as exc:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise DatasetError(f"{dataset} cannot be written: {exc.strerror}", hint="choose another directory") from exc


def writer_of(dataset: Path) -> str | None:
    """The pid of the process that is writing a dataset; none where nobody is."""
    try:
        with (dataset / FILE_NAME).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_pid(file)
    except OSError:
        return None  # no such file, or none that we may read: nobody writes it, or nobody that we could know of
    return None


def _acquired(file: TextIO) -> bool:
    """Whether the lock could be had; a reader that looks holds it for a moment, a writer for longer."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_S)
        else:
            return True
    return False


def _read_pid(file: TextIO) -> str:
    file.seek(0)
    return file.read(32).strip() or "unknown"
