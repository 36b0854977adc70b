"""A directory as a location, say on a disk that several machines share."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import BinaryIO

from rlx.errors import DownloadError, ForbiddenError, SourceNotFoundError
from rlx.files.atomic import PARTIAL, write_file
from rlx.files.beneath import beneath
from rlx.files.checksum import FileStat
from rlx.files.disk import file_error, opened_file
from rlx.files.durable import make_directories
from rlx.files.location import ChangedError, Content, WritableLocation, checked_name
from rlx.files.retry import RetryPolicy

_PIECE_BYTES = 1 << 20


class Directory(WritableLocation):
    """The files below a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory: Path = directory
        self.retry = RetryPolicy()

    def __repr__(self) -> str:
        return f"Directory({self.url!r})"

    @property
    def url(self) -> str:
        """Path of the directory."""
        return str(self.directory)

    def _stat(self, name: str) -> FileStat:
        path = self._path(name)
        with _translated(path):
            if not path.is_file():
                raise FileNotFoundError
            return _described(name, path, path.stat())

    @contextmanager
    def _open(
        self, name: str, start: int = 0, stop: int | None = None, *, seen: FileStat | None = None
    ) -> Iterator[Content]:
        path = self._path(name)
        with _translated(path):
            file = opened_file(path)
        with file:
            found = _described(name, path, os.fstat(file.fileno()))
            if seen is not None and not seen.is_same_version(found):
                raise ChangedError(DownloadError(f"{path} has changed"))
            file.seek(start)
            yield Content(found, start, _pieces(path, file, None if stop is None else stop - start))

    def list(self, below: str) -> Iterator[FileStat]:
        """Yield the complete files in a directory."""
        for folder, _, names in os.walk(self._path(below)):
            for name in names:
                path = Path(folder) / name
                with suppress(FileNotFoundError):  # deleted meanwhile
                    if not name.endswith(PARTIAL):
                        yield _described(path.relative_to(self.directory).as_posix(), path, path.stat())

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:  # noqa: ARG002
        """Write a file under a temporary name, and rename it when it is complete."""
        path = beneath(self.directory, checked_name(name))
        with _translated(path, "written"):
            _make(path.parent)
            # Under a name of its own: two who write the same file must not write into each other's.
            partial = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}{PARTIAL}")
            write_file(path, pieces, partial=partial)

    def replace(self, name: str, content: bytes, *, seen: FileStat | None) -> bool:
        """Write a small file if its content is unchanged since it was read."""
        try:
            found: FileStat | None = self.stat(name)
        except SourceNotFoundError:
            found = None
        if found != seen:
            return False
        self.put(name, [content], bytes=len(content), crc32c="")
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Remove files, and the directories that are empty then."""
        for name in names:
            path = beneath(self.directory, checked_name(name))
            with _translated(path, "removed"):
                path.unlink(missing_ok=True)
            for parent in path.parents:
                if parent == self.directory:
                    break
                try:
                    parent.rmdir()
                except OSError:
                    break  # something else is in it, or it is gone

    def sweep(self, below: str) -> None:
        """Remove incomplete files of a killed ``put``; the caller must hold the lock of the directory."""
        top = beneath(self.directory, f"{checked_name(below)}/any").parent
        for folder in (self.directory, *(Path(folder) for folder, _, _ in os.walk(top))):
            for left in folder.glob(f"*{PARTIAL}"):
                if left.is_file() and not left.is_symlink():
                    left.unlink()

    def _path(self, name: str) -> Path:
        return self.directory / checked_name(name)


def _make(directory: Path) -> None:
    try:
        make_directories(directory)
    except (NotADirectoryError, FileExistsError) as exc:
        raise DownloadError(f"{directory} cannot be made: {exc.strerror}") from exc


def _described(name: str, path: Path, found: os.stat_result) -> FileStat:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return FileStat(name, str(path), bytes=found.st_size, etag=etag)


def _pieces(path: Path, file: BinaryIO, length: int | None) -> Iterator[bytes]:
    """Yield a number of bytes of an open file, or all that follow."""
    with _translated(path):
        while piece := file.read(_PIECE_BYTES if length is None else min(length, _PIECE_BYTES)):
            length = None if length is None else length - len(piece)
            yield piece


@contextmanager
def _translated(path: Path, operation: str | None = None) -> Iterator[None]:
    """Translate errors of the operating system.

    Args:
        operation: what changes the file, for an error that ends the command; of a file that is read, others may do.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        raise SourceNotFoundError(f"{path}: no such file") from exc
    except PermissionError as exc:
        raise ForbiddenError(f"{path}: access denied ({exc.strerror})") from exc
    except OSError as exc:
        if operation is not None:
            raise file_error(exc, path, operation) from exc
        raise DownloadError(f"{path} cannot be read: {exc.strerror}") from exc
