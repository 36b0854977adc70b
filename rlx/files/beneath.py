"""Write, rename and remove files beneath a directory of rlx: a dataset, export, checkpoint, saved buffer or cache.

The directory itself may be a symbolic link that its user made. Links beneath it may have come with an archive, a
repository or a shared disk, and lead anywhere: what would follow one is refused, and so are pipes and devices.
"""

import errno
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG

from rlx.errors import FileAccessError
from rlx.files.disk import file_error
from rlx.wording import command

logger = logging.getLogger(__name__)

# For the last of these, a socket or a pipe that nobody reads, Linux says ENXIO.
_NO_FILE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})


def no_follow(path: str, flags: int) -> int:
    """Open a file to write it, as the ``opener`` of ``open``.

    Raises:
        FileAccessError: a link, a directory, a pipe or a device has its name.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as exc:
        if exc.errno in _NO_FILE:
            raise _refused(Path(path), "a file") from exc
        raise
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refused(Path(path), "a file")
    return descriptor


def beneath(directory: Path, name: str) -> Path:
    """Return the path of a name beneath a directory, unless a part before the last is a link.

    A rename, a removal and an opening with ``no_follow`` do not follow the last part.

    Raises:
        FileAccessError: one is a link.
    """
    path, *parts = directory, *name.split("/")
    for part in parts[:-1]:
        path /= part
        if path.is_symlink():
            raise _refused(path, "a directory")
    return path / parts[-1]


def check_entries(directory: Path, is_own: Callable[[str], bool] = lambda _: True) -> None:
    """Raise FileAccessError if an entry of a directory, which need not exist, is neither a file nor a directory.

    Args:
        is_own: which names to look at.
    """
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                is_plain = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
                if not is_plain and is_own(entry.name):
                    raise _refused(Path(entry.path), "a file or a directory")
    except (FileNotFoundError, NotADirectoryError):
        return


def replace(path: Path, other: Path) -> None:
    """Give a file another name; a file or a link of that name is replaced.

    Raises:
        FileAccessError: a directory has that name, or the disk fails.
    """
    try:
        path.replace(other)
    except IsADirectoryError as exc:
        raise _refused(other, "a file") from exc
    except OSError as exc:
        raise file_error(exc, other, "renamed") from exc


def remove(path: Path) -> None:
    """Remove a file, a directory or a link, if it is there.

    Raises:
        FileAccessError: it cannot be removed, or something in it.
        FileNotFoundError: another process removes the same directory.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        raise
    except OSError as exc:  # which may name no more than an entry
        raise file_error(OSError(exc.errno, exc.strerror, str(path)), path, "removed") from exc


def try_remove(path: Path) -> None:
    """Remove what nothing needs any more, as far as that works; log that the rest stays."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if os.path.lexists(path):
        logger.warning("%s cannot be removed; nothing needs it: remove it by hand", path)


def _refused(path: Path, expected: str) -> FileAccessError:
    mode = path.lstat().st_mode
    if S_ISLNK(mode):
        return FileAccessError(
            f"{path} is a symbolic link to {os.readlink(path)}: rlx does not write through links",
            hint="move what it leads to into its place; to use another disk, move the whole directory and link that",
        )
    kind = "a directory" if S_ISDIR(mode) else "a file" if S_ISREG(mode) else "a pipe, a socket or a device"
    hint = f"{command('ls', '-ld', path)} shows what it is; move it elsewhere"
    return FileAccessError(f"{path} is {kind}: expected {expected}", hint=hint)
