"""A file or directory of a dataset at a location, named as ``pathlib.Path`` names those on a disk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

from rlx.files.remote_files import Range, RemoteFiles


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path below a dataset.

    Args:
        files: of the dataset.
        inner: the path below it; that of the dataset itself has no parts.
    """

    files: RemoteFiles
    inner: PurePosixPath

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.files, self.inner / name)

    def __str__(self) -> str:
        return f"{self.files.location.url}/{self.inner}" if self.inner.parts else self.files.location.url

    def joinpath(self, *names: str) -> "RemotePath":
        """Return the path below this one."""
        return RemotePath(self.files, self.inner.joinpath(*names))

    @property
    def length(self) -> int:
        """Bytes of the file, as the manifest has it.

        Raises:
            CorruptDatasetError: it lists no such file.
        """
        return self.files.length(str(self.inner))

    def pieces(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Return the bytes of the file in these ranges; see ``RemoteFiles.pieces``."""
        return self.files.pieces(str(self.inner), ranges)

    def read_bytes(self) -> bytes:
        """Return all of the file."""
        return bytes(self.pieces([(0, self.length)])[0])

    def stream(self) -> Iterator[bytes]:
        """Yield all of the file in pieces, past the cache."""
        return self.files.stream(str(self.inner))


AnyPath: TypeAlias = Path | RemotePath
R = TypeVar("R")
T = TypeVar("T")
OnePath = TypeVar("OnePath", Path, RemotePath, AnyPath)  # where a path goes in, one of the same kind comes out


def length_of(path: AnyPath) -> int:
    """Return bytes of a file.

    Raises:
        OSError: a local file that cannot be found.
        CorruptDatasetError: a remote file that the manifest does not list.
    """
    return path.stat().st_size if isinstance(path, Path) else path.length


def each_below(path: AnyPath, read: Callable[[T], R], items: Sequence[T], *, depth: int = 0) -> list[R]:
    """Return the results of a reading function below a path for every item: in parallel if the path is remote.

    Args:
        path: of the dataset, or of anything in it.
        read: the function; it may call this with a lower depth only.
        items: what to call it with.
        depth: 0 or 1.
    """
    if isinstance(path, RemotePath):
        return path.files.at_once(read, items, depth=depth)
    return [read(item) for item in items]
