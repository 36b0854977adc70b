"""File locks: one writer per dataset or file, whose pid the error for a second one names.

A lock ends with its process, however that ends. A leftover lock file does not lock others out.
"""

import multiprocessing
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rlx.errors import DatasetError, DatasetLockedError, EngineError, FileAccessError
from rlx.files.beneath import no_follow
from rlx.files.disk import FULL, disk_errors
from rlx.files.durable import make_directories
from rlx.fork import on_fork, released_here

try:
    import fcntl
except ImportError as exc:  # the first module of rlx that needs it
    raise FileAccessError("Windows cannot lock files as POSIX does", hint="use WSL 2 or rlx's container") from exc

FILE_NAME = ".lock"
_LOOKS = 20
_LOOK_S = 0.01
_ELSEWHERE = "choose another directory"
_WRITABLE = "make it writable, or use a copy of it in another directory"  # of a dataset to change


@contextmanager
def writing(dataset: Path) -> Iterator[None]:
    """Lock a dataset for writing; its directory is created if needed."""
    is_new = not dataset.exists()

    def remove_new() -> None:
        with suppress(OSError):  # NFS and FUSE keep a file that is open, under another name
            if is_new and [entry.name for entry in dataset.iterdir()] == [FILE_NAME]:
                (dataset / FILE_NAME).unlink()
                dataset.rmdir()

    with held(dataset / FILE_NAME, dataset), released_here(remove_new):
        yield


def check_seen(dataset: Path) -> None:
    """Raise EngineError unless this machine sees a dataset that a process, perhaps on another machine, is writing.

    Otherwise a worker would write into a directory of the same name that no other machine sees.
    """
    if not (dataset / FILE_NAME).exists():
        raise EngineError(
            f"{platform.node()}, a machine of the cluster, does not see {dataset}: expected a shared path",
            hint="write to a shared file system, or into a bucket: rlx push DATASET URL afterwards",
        )


def writer_of(dataset: Path) -> str | None:
    """Return the pid of the process that is writing a dataset; None without a writer."""
    try:
        with open(dataset / FILE_NAME, opener=no_follow) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_pid(file)
    except (OSError, FileAccessError):
        return None  # a missing or unreadable lock file: no known writer
    return None


@contextmanager
def held(path: Path, target: Path) -> Iterator[None]:
    """Hold a locked lock file.

    The file may be deleted while it is locked; the next to lock it then makes another.

    Args:
        target: the file or dataset to write, for messages.
    """
    with disk_errors(target, "locked"):
        file = _locked(path, target)
    try:
        on_fork(file, lambda copy: copy.close())  # a lock lasts as long as any process has the file open
        yield
    finally:
        with suppress(OSError):  # it is let go all the same, and holds nothing that could be lost
            file.close()


def _locked(path: Path, target: Path) -> TextIO:
    owner = ""
    # A reader that looks holds the lock for a moment, a writer for longer.
    for _ in range(_LOOKS):
        if (file := _open(path, target)) is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(file, path):
                    file.truncate(0)
                    file.write(f"{os.getpid()}\n")
                    file.flush()
                    return file
            except BlockingIOError:
                owner = _read_pid(file)
            except OSError:  # a full disk, on which closing fails too
                with suppress(OSError):
                    file.close()
                raise
            file.close()
        time.sleep(_LOOK_S)
    if not owner:
        raise DatasetError(f"{target} cannot be written: No such file or directory", hint=_ELSEWHERE)
    if owner == str(os.getpid()):
        message, hint = "this process", "close what writes it, or choose another directory: one for each writer"
    else:
        message, hint = "another process", f"wait for it, or stop it: kill {owner}"
        if owner == str(os.getppid()) or multiprocessing.parent_process() is not None:  # the same program, perhaps
            hint = "wait for it, or choose another directory: one for each process"
    raise DatasetLockedError(f"{target} is being written by {message}, pid {owner}", hint=hint)


def _open(path: Path, target: Path) -> TextIO | None:
    """Return the lock file; None if its directory is deleted concurrently."""
    try:
        make_directories(path.parent)
        return open(path, "a+", opener=no_follow)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if isinstance(exc, FileExistsError) and (path.parent.is_dir() or not os.path.lexists(path.parent)):
            return None  # deleted while mkdir examined it
        if exc.errno in FULL:
            raise
        hint = _WRITABLE if target.is_dir() else _ELSEWHERE
        raise DatasetError(f"{target} cannot be written: {exc.strerror}", hint=hint) from exc


def _is_named(file: TextIO, path: Path) -> bool:
    """Return whether a locked file still has its name: its last owner may have deleted it before letting it go."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _read_pid(file: TextIO) -> str:
    file.seek(0)
    return file.read(32).strip() or "unknown"
