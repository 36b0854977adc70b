"""One writer a dataset: a lock that dies with its process, and names it to whoever comes second."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlx.errors import DatasetLockedError

FILE_NAME = ".lock"


@contextmanager
def writing(dataset: Path) -> Iterator[None]:
    """Holds the right to write a dataset, whose directory is made if need be.

    Raises:
        DatasetLockedError: another process holds it; its pid is in the message.
    """
    is_new = not dataset.exists()
    dataset.mkdir(parents=True, exist_ok=True)
    path = dataset / FILE_NAME
    with path.open("a+") as file:
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
                path.unlink()
                dataset.rmdir()
