"""Metadata of a file at a location, and of one that was fetched."""

from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileStat:
    """Metadata of one file, and the marks that tell one version of it from another.

    Args:
        name: below the location, with ``/`` between the parts.
        url: where it lies, without any password or token; a path for local files.
        bytes: its length; None if the server does not tell.
        crc32c: of its bytes as they are stored, eight hex digits.
        md5: of its bytes as they are stored, 32 hex digits.
        etag: HTTP's version, quotes and all.
        version: what some stores want beside the etag to replace that version and no other.
        modified: when it was written, where there may be no etag.
    """

    name: str
    url: str
    bytes: int | None = None
    crc32c: str | None = None
    md5: str | None = None
    etag: str | None = None
    version: str | None = None
    modified: str | None = None

    @property
    def strong_etag(self) -> str | None:
        """The etag if it promises equal bytes: If-Match never holds with a weak one (RFC 9110, 13.1.1)."""
        return None if self.etag is None or self.etag.startswith("W/") else self.etag

    def is_same_version(self, other: "FileStat") -> bool:
        """Return whether nothing that both know of the file differs.

        Example:
            >>> known = FileStat("a", "http://host/a", bytes=3, etag='"x"')
            >>> known.is_same_version(FileStat("a", "http://host/a", bytes=3, crc32c="00000000"))
            True
            >>> known.is_same_version(FileStat("a", "http://host/a", bytes=4))
            False
        """
        pairs = [(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)[2:]]
        return all(mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None)


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file that lies on this machine, whole and verified.

    Args:
        path: where it lies.
        bytes: its length.
        crc32c: of its bytes, eight hex digits; None for one that was there already and was not read.
        transferred: how many bytes had to be transferred.
    """

    path: Path
    bytes: int
    crc32c: str | None
    transferred: int
