"""The base of a layout's files, a directory or a URL: metadata of a file, and its transfer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlx.errors import SourceError
from rlx.files.cancel import Cancel
from rlx.progress import Progress


@dataclass(frozen=True, slots=True)
class FileStat:
    """Metadata of one file, and the marks that tell one version of it from another.

    Args:
        name: relative to the base, with ``/`` between the parts.
        url: where it lies, without any password or token; a path for local files.
        bytes: its length.
        crc32c: of its bytes as they are stored, eight hex digits.
        md5: of its bytes as they are stored, 32 hex digits.
        etag: HTTP's version, quotes and all.
        generation: Google Cloud Storage's version.
    """

    name: str
    url: str
    bytes: int | None = None
    crc32c: str | None = None
    md5: str | None = None
    etag: str | None = None
    generation: str | None = None

    def is_same_version(self, other: "FileStat") -> bool:
        """Return whether nothing that both know of the file differs.

        Example:
            >>> known = FileStat("a", "http://host/a", bytes=3, etag='"x"')
            >>> known.is_same_version(FileStat("a", "http://host/a", bytes=3, crc32c="00000000"))
            True
            >>> known.is_same_version(FileStat("a", "http://host/a", bytes=4))
            False
        """
        pairs = (
            (self.bytes, other.bytes),
            (self.crc32c, other.crc32c),
            (self.md5, other.md5),
            (self.etag, other.etag),
            (self.generation, other.generation),
        )
        return all(mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None)


class Base(Protocol):
    """A directory or a URL below which the files of a layout lie. It can be pickled to another process."""

    @property
    def is_local(self) -> bool:
        """Whether files are used in place; those are never deleted."""

    @property
    def origin(self) -> str:
        """URL, without any password or token, or path of the base, for records."""

    def stat(self, name: str, *, cancel: Cancel | None = None) -> FileStat:
        """Return the metadata of a file without fetching it.

        Raises:
            SourceNotFoundError: the file does not exist.
            ForbiddenError: the server refuses.
            DownloadError: the server kept failing.
            concurrent.futures.CancelledError: ``cancel`` was set.
        """

    def fetch(self, name: str, directory: Path, progress: Progress, *, cancel: Cancel | None = None) -> Path:
        """Return path of the file on the local disk, whole and verified.

        May be called from several threads at once, for different files.

        Args:
            name: which file.
            directory: where to put it: it becomes ``directory / name``. Local files stay where they are.
            progress: is advanced in ``bytes``, also by local ones; reports each byte once.
            cancel: stops the transfer; partial files are kept and the next call resumes.

        Raises:
            SourceNotFoundError: the file does not exist.
            ForbiddenError: the server refuses.
            DownloadError: the transfer kept failing.
            CorruptShardError: what arrived kept differing from the checksum that the server gives.
            DiskFullError: no space is left; partial files are kept and the next call resumes.
            concurrent.futures.CancelledError: ``cancel`` was set.
        """


def local_path(directory: Path, name: str) -> Path:
    """Return path of a base's file below a directory, which it can never leave.

    Raises:
        SourceError: the name is absolute, or has ``..``, an empty part, a backslash or a NUL in it.

    Example:
        >>> local_path(Path("/data"), "Pong/run_1-00000-of-00050").as_posix()
        '/data/Pong/run_1-00000-of-00050'
        >>> local_path(Path("/data"), "../secret")
        Traceback (most recent call last):
            ...
        rlx.errors.SourceError: file name '../secret' is not a relative path below its base
    """
    if {"", ".", ".."}.intersection(name.split("/")) or "\\" in name or "\0" in name:
        raise SourceError(f"file name {name!r} is not a relative path below its base")
    return directory / name
