"""How a file or a directory of another format comes to be: in full, or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlx.errors import DiskFullError
from rlx.manifest import sync_directory
from rlx.store.writer import sync_tree

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives the place to write to; when the context ends well, what was written there is at ``path`` instead.

    What lay at ``path`` is replaced; where the context fails it stays, and nothing new is left behind, no directory
    above it either.

    Args:
        path: a file or a directory, there already or not.

    Raises:
        DiskFullError: there was no room.
    """
    partial, replaced = (path.with_name(path.name + suffix) for suffix in (".partial", ".replaced"))
    made = _make_parents(path)
    try:
        remove(partial)
        yield partial
        _sync(partial)
        remove(replaced)
        if path.is_dir() and not path.is_symlink():
            path.rename(replaced)
        partial.replace(path)
        sync_directory(path.parent)
        remove(replaced)
    except BaseException as exc:
        remove(partial)
        for directory in made:
            with suppress(OSError):
                directory.rmdir()
        if isinstance(exc, OSError) and exc.errno in _FULL:
            raise DiskFullError(f"{path}: no room on the disk") from exc
        raise


def _make_parents(path: Path) -> list[Path]:
    """Makes the directories above a path; returns those that were not there, the deepest first."""
    made = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    return made


def _sync(path: Path) -> None:
    if path.is_dir():
        sync_tree(path)
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Removes a file or a directory, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
