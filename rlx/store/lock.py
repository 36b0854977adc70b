"""One writer a dataset: a lock that dies with its process, and names it to whoever comes second."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rlx.errors import DatasetError, DatasetLockedError

FILE_NAME = ".lock"


@contextmanager
def writing(dataset: Path) -> Iterator[None]:
    """Holds the right to write a dataset, whose directory is made if need be.

    Raises:
        DatasetLockedError: another process holds it; its pid is in the message.
        DatasetError: the directory cannot be made or written.
    """
    is_new = not dataset.exists()
    with _open(dataset) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            file.seek(0)
            owner = file.read(32).strip() or "unknown"
            message = f"{dataset} is being written by another process, pid {owner}"
            raise DatasetLockedError(message, hint=f"wait for it, or stop it: kill {owner}") from exc
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
