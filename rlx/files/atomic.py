"""Write a file or a directory in full, or not at all; one writer per target at a time."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlx.errors import DatasetError, DatasetExistsError, FileAccessError
from rlx.files import lock
from rlx.files.beneath import beneath, check_entries, no_follow, remove, replace, try_remove
from rlx.files.disk import disk_errors, is_there, written_file
from rlx.files.durable import sync, sync_file, sync_tree
from rlx.files.urls import check_no_url
from rlx.fork import released_here

PARTIAL = ".partial"
_Identity = tuple[int, int, int] | None


@contextmanager
def whole(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield the path to write to; when the context ends without an error, move the result to ``path``.

    An existing file or directory at ``path``, or where a symbolic link there leads, is replaced. If the context fails,
    it stays, and new files and parent directories are removed. Until then all output is in ``.NAME.partial`` beside it,
    which only one process may use; the next process removes that of a killed one.

    Args:
        check: raises if the file at ``path`` must not be replaced; called before anything is written.

    Raises:
        FileAccessError: there is a device, a pipe or a socket, which a file must not replace.
    """
    check_no_url(path)
    path = Path(os.path.abspath(path))  # "." and ".." have names too
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    scratch = path.with_name(f".{path.name}.partial")
    with disk_errors(path):
        _check_replaceable(path)
        check_entries(beneath(scratch.parent, f"{scratch.name}/{lock.FILE_NAME}").parent)
    partial, replaced = scratch / "new", scratch / "replaced"
    missing = [parent for parent in path.parents if not parent.exists()]

    def give_back() -> None:
        with suppress(OSError, DatasetError):  # what cannot be given back now stays for the next process
            _recover(partial, replaced, path)
            try_remove(scratch)

    try:
        with disk_errors(path), lock.held(scratch / lock.FILE_NAME, path), released_here(give_back):
            _recover(partial, replaced, path)
            check()
            before = _identity(path)
            yield partial
            if is_written := is_there(partial):
                sync_tree(partial) if partial.is_dir() else sync(partial)
                _replace(partial, path, replaced, before)
        if not is_written:  # a bug of whoever was to write it
            raise FileNotFoundError(errno.ENOENT, "nothing was written", str(partial))  # noqa: TRY301  (directories are removed)
    except BaseException:
        _remove_empty(scratch, *missing)
        raise
    _remove_empty(scratch)


def _remove_empty(*directories: Path) -> None:
    """Remove directories, unless another writer's target is in them; FUSE kept those in which a lock was open."""
    for directory in directories:
        with suppress(OSError):
            directory.rmdir()


def write_file(path: Path, pieces: Iterable[bytes], *, partial: Path | None = None) -> None:
    """Write a file in one step: readers see the old one or the new one.

    Args:
        pieces: its content. If they raise, the old file stays.
        partial: path of the bytes until they are complete, next to the file; ``NAME.partial`` by default.
    """
    partial = partial or path.with_name(f"{path.name}{PARTIAL}")
    file = written_file(partial, opener=no_follow)  # if this fails, nothing is removed
    try:
        with file:
            file.writelines(pieces)
            sync_file(file, partial)
        replace(partial, path)
    except BaseException:
        try_remove(partial)
        raise
    sync(path.parent)


def _recover(partial: Path, replaced: Path, path: Path) -> None:
    """Remove the leftovers of a failed or killed process, and restore the directory that it was replacing."""
    if is_there(replaced) and not is_there(path):
        replaced.rename(path)
    remove(partial)
    remove(replaced)


def _replace(partial: Path, path: Path, replaced: Path, before: _Identity) -> None:
    if _identity(path) != before:
        raise DatasetExistsError(
            f"{path} was written by another program meanwhile",
            hint="run the same command again, or choose another name",
        )
    if path.is_dir() and not path.is_symlink():
        path.rename(replaced)  # a rename replaces files only
    partial.replace(path)
    sync(path.parent)


def _check_replaceable(path: Path) -> None:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileAccessError(
            f"{path} is a device, a pipe or a socket: expected a file, or a new name", hint="choose another name"
        )


def _identity(path: Path) -> _Identity:
    """Return the identity of the file or directory at a path; None if nothing is there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
