"""A plain directory as a location, say on a disk that several machines share."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident

from rlx.errors import DiskFullError, DownloadError, ForbiddenError, SourceError, SourceNotFoundError
from rlx.files.atomic import sync_directory
from rlx.files.disk import FULL
from rlx.files.location import Stored, checked_name

_PIECE_BYTES = 1 << 20
PARTIAL = ".partial"


class DirectoryLocation:
    """The files below a directory.

    Args:
        root: the directory; ``put`` makes it if need be.

    Attributes:
        root: the directory.
    """

    is_read_only = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def __repr__(self) -> str:
        return f"DirectoryLocation({self.url!r})"

    def stat(self, name: str) -> Stored:
        """Return length and version of a file."""
        path = self._path(name)
        with _translated(path):
            if not path.is_file():
                raise FileNotFoundError
            return _stored(name, path)

    def get(self, name: str, *, max_bytes: int) -> tuple[bytes, Stored]:
        """Return a whole small file."""
        stored = self.stat(name)
        if stored.bytes > max_bytes:
            raise SourceError(f"{self._path(name)} has {stored.bytes:,} bytes, expected at most {max_bytes:,}")
        with _translated(self._path(name)):
            return self._path(name).read_bytes(), stored

    def read(self, name: str, start: int, stop: int) -> tuple[bytes, Stored]:
        """Return the bytes from start to stop."""
        stored = self.stat(name)
        with _translated(self._path(name)), self._path(name).open("rb") as file:
            file.seek(start)
            return file.read(stop - start), stored

    def stream(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes from start to the end."""
        path = self._path(name)
        with _translated(path), path.open("rb") as file:
            file.seek(start)
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def list(self, below: str) -> Iterator[Stored]:
        """Yield the files in a directory; half-written ones are none."""
        for folder, _, names in os.walk(self._path(below)):
            for name in names:
                path = Path(folder) / name
                with suppress(FileNotFoundError):  # deleted meanwhile
                    if not name.endswith(PARTIAL):
                        yield _stored(path.relative_to(self.root).as_posix(), path)

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:  # noqa: ARG002
        """Write a file beside its place, and move it there when it is whole."""
        path = self._path(name)
        with _translated(path):
            _make(path.parent)
            # Under a name of its own: two who write the same file must not write into each other's.
            partial = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}{PARTIAL}")
            try:
                with partial.open("wb") as file:
                    file.writelines(pieces)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except IsADirectoryError as exc:
                raise DownloadError(f"{path} cannot be written: a directory has its name") from exc
            finally:
                partial.unlink(missing_ok=True)
            sync_directory(path.parent)

    def replace(self, name: str, content: bytes, *, seen: Stored | None) -> bool:
        """Write a small file if its content is unchanged since it was read."""
        try:
            found: Stored | None = self.stat(name)
        except SourceNotFoundError:
            found = None
        if found != seen:
            return False
        self.put(name, [content], bytes=len(content), crc32c="")
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Remove files, and the directories that are empty then."""
        for name in names:
            path = self._path(name)
            with _translated(path):
                path.unlink(missing_ok=True)
            for parent in path.parents:
                if parent == self.root:
                    break
                try:
                    parent.rmdir()
                except OSError:
                    break  # something else is in it, or it is gone

    def sweep(self, below: str) -> None:
        """Remove what a killed ``put`` left half written; for whoever holds the lock of the directory."""
        for folder in (self.root, *(Path(folder) for folder, _, _ in os.walk(self._path(below)))):
            for left in folder.glob(f"*{PARTIAL}"):
                if left.is_file() and not left.is_symlink():
                    left.unlink()

    def _path(self, name: str) -> Path:
        return self.root / checked_name(name)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError) as exc:
        raise DownloadError(f"{directory} cannot be made: {exc.strerror}") from exc


def _stored(name: str, path: Path) -> Stored:
    found = path.stat()
    return Stored(name, found.st_size, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Say what went wrong with a file in the words of this project."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        raise SourceNotFoundError(f"{path}: no such file") from exc
    except PermissionError as exc:
        raise ForbiddenError(f"{path}: access denied ({exc.strerror})") from exc
    except OSError as exc:
        if exc.errno in FULL:
            raise DiskFullError(f"no room for {path}", hint="free some room and run the command again") from exc
        raise DownloadError(f"{path} cannot be read or written: {exc.strerror}") from exc
