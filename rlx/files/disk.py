"""The disk: its errors as errors of rlx, the room on it, and small files that are read without trust."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import MappingProxyType
from typing import Any, BinaryIO, cast
from unicodedata import normalize

from rlx.errors import (
    CorruptDatasetError,
    CorruptShardError,
    DiskFullError,
    FileAccessError,
    RlxError,
    SourceError,
    SourceNotFoundError,
)
from rlx.wording import command, missing

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_APPLE_DOUBLE = b"\x00\x05\x16\x07"
_TOLD = re.compile(r"\(os error (\d{1,4})\)|\berrno = (\d{1,4})\b")  # by Rust, and by HDF5
_NUMBERS = re.compile(r"([0-9]+)")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Of connections and processes, or errors of rlx that are also those of Python.
_NOT_OF_FILES = (RlxError, ConnectionError, TimeoutError, BlockingIOError, InterruptedError, ChildProcessError)
# Of a disk or mount that fails, and never of a file's content: FFmpeg reports damage with EPERM and ENOMEM too.
_OF_DISKS = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EMFILE, errno.ENFILE})
_HINTS: Mapping[int, str] = MappingProxyType(
    {
        errno.EACCES: "{ls} shows who may read and write it",
        errno.EPERM: "{ls} shows who may read and write it",
        errno.EROFS: "choose a directory on a file system that can be written",
        errno.EMFILE: "ulimit -n 4096, then run the same command again",
        errno.ENFILE: "close other programs: this machine has too many open files",
        errno.ENAMETOOLONG: "choose a shorter name",
        errno.ELOOP: "{ls} shows where the symbolic link leads",
        errno.EIO: "check the disk or the mount, then run the same command again",
        errno.ESTALE: "mount the file system again, then run the same command again",
        errno.ENOTCONN: "mount the file system again, then run the same command again",
        errno.EXDEV: "choose a directory whose entries are all on one file system",
        errno.EMLINK: "choose another file system: this one allows no more entries in a directory",
        errno.ENOTDIR: "a file has the name of a directory: choose another path",
        errno.EISDIR: "it is a directory: choose the name of a file",
        errno.EEXIST: "choose another name",
        errno.ENOMEM: "free some memory, or request less at once",
    }
)


def file_error(exc: OSError, path: str | os.PathLike[str] | None = None, operation: str | None = None) -> RlxError:
    """Translate an error of the operating system into one of rlx.

    Args:
        path: the file, or the directory below which it is; named if the error names none.
        operation: what failed, as a participle: ``written``.

    Example:
        >>> error = file_error(PermissionError(errno.EACCES, "Permission denied", "pong"))
        >>> type(error).__name__, str(error), error.hint
        ('FileAccessError', 'pong: permission denied', 'ls -ld pong shows who may read and write it')
        >>> str(file_error(OSError(errno.EIO, "Input/output error"), "pong/rlx.json", "synced"))
        'pong/rlx.json cannot be synced: input/output error'
    """
    name = _named(path) if exc.filename is None else _named(exc.filename)
    said = exc.strerror or str(exc) or type(exc).__name__
    said = f"{said[:1].lower()}{said[1:]}"
    is_elsewhere = name is None or (path is not None and not Path(name).is_relative_to(path))
    if exc.filename2 is not None:
        done = f" cannot be renamed to {_named(exc.filename2)}"
    else:
        done = "" if operation is None or is_elsewhere else f" cannot be {operation}"
    message = said if name is None else f"{name}{done}: {said}"
    if exc.errno in FULL:
        if operation is not None:
            message = f"no room left on the disk of {_named(path)}: {exc.strerror}"
        return DiskFullError(message, hint="free some space, or inodes (df -i), and run the command again")
    hint = _HINTS.get(exc.errno or 0, "").format(ls=command("ls", "-ld", name) if name else "ls -ld")
    if exc.errno == errno.ENOENT and not done:
        return SourceNotFoundError(message)
    return FileAccessError(message, hint=hint or None)


def refusal(exc: BaseException) -> OSError | None:
    """Return what the operating system refused, where a decoder says so with its class for damage, or only in words.

    Example:
        >>> refusal(ValueError("cannot open pong.lance: Input/output error (os error 5)"))
        OSError(5, 'Input/output error')
        >>> refusal(OSError("file signature not found")) is None
        True
    """
    code = exc.errno if isinstance(exc, OSError) else None
    if code is None and (told := _TOLD.search(str(exc))) is not None:
        code = int(told[1] or told[2])
    return OSError(code, os.strerror(code)) if code in _OF_DISKS else None


def _named(path: object) -> str | None:
    if path is None:
        return None
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)


def at_once(path: str, flags: int) -> int:
    """Open a file without waiting, as the ``opener`` of ``open``.

    Raises:
        FileAccessError: it is a pipe, a socket or a device, which may never answer or never end.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except OSError as exc:
        if exc.errno == errno.ENXIO:
            raise _no_file(path) from exc
        raise
    if S_ISREG(mode := os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    if S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise _no_file(path)


def _no_file(path: str) -> FileAccessError:
    return FileAccessError(f"{path} is not a regular file", hint=f"{command('ls', '-ldL', path)} shows what it is")


class _Read(io.FileIO):
    """A file whose errors name it: whoever decodes it knows at most the directory where it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        with disk_errors(self.name, "read"):
            return super().read(-1 if size is None else size)

    def readall(self) -> bytes:
        with disk_errors(self.name, "read"):
            return super().readall()

    def readinto(self, buffer: Any, /) -> int:
        with disk_errors(self.name, "read"):
            return super().readinto(buffer)


def opened_file(path: Path) -> io.BufferedReader:
    """Open a file for reading; see ``at_once``.

    Raises:
        FileAccessError: from ``read`` and its like: the disk fails.
        OSError: it cannot be opened.
    """
    return io.BufferedReader(_Read(path, opener=at_once))


def check_readable(path: Path) -> None:
    """Raise unless a file can be opened, before a decoder reports any failure to read it as damage.

    Raises:
        SourceNotFoundError: it is missing.
        SourceError: it stands for a file of this name, whose content is elsewhere.
    """
    try:
        with opened_file(path) as file:
            head = file.read(len(_LFS_POINTER))
    except OSError as exc:
        if exc.errno in ABSENT:
            raise SourceNotFoundError(absent(path)) from exc
        raise file_error(exc, path) from exc
    if head == _LFS_POINTER:
        raise SourceError(
            f"{path} is a Git LFS pointer: the file itself is not here",
            hint=f"{command('git', '-C', path.parent, 'lfs', 'pull')} downloads it",
        )
    if head.startswith(_APPLE_DOUBLE):
        raise SourceError(f"{path} holds what macOS notes of a file, not the file; its name is without ._")


def absent(path: Path) -> str:
    """Return that a file is missing, and what is there instead."""
    if path.is_dir():
        return f"{path} is a directory, expected a file"
    try:
        return missing(path, sorted(os.listdir(path.parent)))
    except OSError:
        return f"{path} is missing"


def listed(directory: Path, pattern: str) -> list[Path]:
    """Return the files in a directory, in the order of the numbers in their names, without macOS's notes on others."""
    return by_number(path for path in directory.glob(pattern) if not path.name.startswith("._"))


def walk(directory: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a tree as ``os.walk`` does, which leaves out what it cannot list; this raises OSError."""

    def fail(exc: OSError) -> None:
        raise exc

    return os.walk(directory, onerror=fail)


def by_number(paths: Iterable[Path]) -> list[Path]:
    """Return paths in the order of the numbers in their names.

    Example:
        >>> [path.name for path in by_number([Path("part-10"), Path("part-2"), Path("part-1-b"), Path("part-1-a")])]
        ['part-1-a', 'part-1-b', 'part-2', 'part-10']
    """

    def key(path: Path) -> tuple[list[str | int], str]:
        parts = _NUMBERS.split(str(path))  # numbers are at the odd places
        return [int(part) if place % 2 else part for place, part in enumerate(parts)], str(path)

    return sorted(paths, key=key)


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Translate errors of the operating system while a file of a dataset is read."""
    try:
        yield
    except OSError as exc:
        if exc.errno in ABSENT or exc.errno is None:
            raise CorruptDatasetError(f"{path} is missing: {exc.strerror or exc}") from exc
        raise file_error(exc, path if isinstance(path, Path) else str(path), "read") from exc


@contextmanager
def disk_errors(path: Path | str, operation: str = "written") -> Iterator[None]:
    """Translate errors of the operating system while a file, or what is below a directory, is read or written.

    Those of connections, and those that are errors of rlx already, pass.

    Args:
        operation: what is attempted, as a participle: "cannot be written".

    Raises:
        DiskFullError: the disk or the quota is full.
        FileAccessError: anything else fails.
    """
    try:
        yield
    except OSError as exc:
        if isinstance(exc, _NOT_OF_FILES) or (exc.errno or 0) <= 0:
            raise
        raise file_error(exc, path, operation) from exc


class _Written(io.FileIO):
    """A file whose errors name it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise file_error(exc, self.name, "written") from exc

    def close(self) -> None:
        try:
            super().close()
        except OSError as exc:
            raise file_error(exc, self.name, "closed") from exc


def written_file(
    path: Path, mode: str = "w", *, is_buffered: bool = True, opener: Callable[[str, int], int] | None = None
) -> BinaryIO:
    """Open a file to write it.

    Args:
        mode: ``w``, ``x`` or ``a``.
        is_buffered: whether small writes are joined.
        opener: as that of ``open``.

    Raises:
        FileAccessError: from ``write``, ``flush`` and ``close``: the disk fails.
        DiskFullError: from the same: it is full.
        OSError: it cannot be opened.
    """
    file = _Written(path, mode, opener=opener)
    return io.BufferedWriter(file) if is_buffered else cast("BinaryIO", file)


def check_room(destination: Path, needed: int, *, remedy: str = "choose another directory with -o") -> None:
    """Raise DiskFullError unless the destination's disk has ``needed`` bytes free.

    Args:
        destination: a directory, which need not exist.
        needed: an estimate in bytes.
        remedy: alternative to freeing some space, for the hint.
    """
    existing = next(parent for parent in (destination.absolute(), *destination.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskFullError(
            f"no room for {destination}: expected about {needed:,} bytes free, found {free:,}",
            hint=f"free some space, or {remedy}",
        )


def is_there(path: Path | str) -> bool:
    """Return whether a file or directory exists; raises OSError if that is unknown.

    ``Path.exists`` does so up to Python 3.13. From 3.14 on it says no: a dataset that a failing disk or mount hides
    for a moment would seem absent, and be overwritten.
    """
    try:
        os.stat(path)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return True


def check_case(names: Iterable[str], existing: Path) -> None:
    """Raise FileAccessError if two of these paths are one on a file system that ignores the case of letters.

    Args:
        names: paths below the directory of ``existing``, their parts joined by ``/``.
        existing: a file that exists there; its name has letters.
    """
    seen: dict[str, str] = {}
    for name in names:
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            prefix = "/".join(parts[:count])
            # Whoever ignores case ignores how an accent is written: APFS.
            other = seen.setdefault(normalize("NFC", prefix).casefold(), prefix)
            if other != prefix and existing.with_name(existing.name.swapcase()).exists():
                raise FileAccessError(
                    f"{existing.parent}: {other} and {prefix} are one name on this file system, which ignores case",
                    hint="choose a directory on another file system, or rename one field: rlx preprocess SRC DST "
                    f"--transform rename:{other}={other}_2",
                )


_MAX_BYTES = 2**24


def read_object(path: Path, max_bytes: int = _MAX_BYTES) -> Mapping[str, Any]:
    """Return the object that a file of limited size holds."""
    check_readable(path)
    if (size := path.stat().st_size) > max_bytes:
        raise CorruptShardError(f"{path}: expected at most {max_bytes:,} bytes, found {size:,}")
    with opened_file(path) as file:
        return parse_object(file.read(), path)


def parse_object(text: str | bytes, place: object) -> Mapping[str, Any]:
    """Return the object that JSON has; raises CorruptShardError, which names the place, if it is no JSON object.

    Example:
        >>> parse_object('{"fps": 50}', "info.json")
        {'fps': 50}
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise CorruptShardError(f"{place}: expected JSON, found: {exc}") from exc
    if not isinstance(found, dict):
        raise CorruptShardError(f"{place}: expected an object, found {found!r:.80}")
    return found
