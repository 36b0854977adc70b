"""Versions, lengths and checksums of files: expected ones, and those of received bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import google_crc32c

from rlx.files.disk import opened_file


@dataclass(frozen=True, slots=True)
class FileStat:
    """Metadata of one file, and the marks that identify its version.

    Args:
        name: below the location, with ``/`` between the parts.
        url: its location, without any password or token; a path for local files.
        bytes: its length; None if the server does not state it.
        crc32c: of its bytes as they are stored, eight hex digits.
        md5: of its bytes as they are stored, 32 hex digits.
        sha256: of its bytes as they are stored, 64 hex digits.
        etag: HTTP's version, quotes and all.
        version: what some stores want beside the etag to replace that version and no other.
        modified: when it was written, where there may be no etag.
    """

    name: str
    url: str
    bytes: int | None = None
    crc32c: str | None = None
    md5: str | None = None
    sha256: str | None = None
    etag: str | None = None
    version: str | None = None
    modified: str | None = None

    @property
    def has_checksum(self) -> bool:
        """Return whether any checksum is known."""
        return (self.crc32c or self.md5 or self.sha256) is not None

    @property
    def strong_etag(self) -> str | None:
        """The etag if it promises equal bytes: If-Match never holds with a weak one (RFC 9110, 13.1.1)."""
        return None if self.etag is None or self.etag.startswith("W/") else self.etag

    def is_same_version(self, other: FileStat) -> bool:
        """Return whether everything that both know of the file is equal.

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
    """A complete, verified file on this machine.

    Args:
        crc32c: of its bytes, eight hex digits; None for one that was there already and was not read.
        transferred: how many bytes had to be transferred.
    """

    path: Path
    bytes: int
    crc32c: str | None
    transferred: int


_READ_BYTES = 1 << 20


class Digests:
    """Length and checksums of the bytes so far.

    Args:
        expected: of a file whose MD5 or SHA-256, which are slow, are to be compared; its CRC-32C always is.

    Example:
        >>> digests = Digests()
        >>> digests.update(b"123456789")
        >>> digests.bytes, digests.crc32c
        (9, 'e3069283')
    """

    def __init__(self, expected: FileStat | None = None) -> None:
        self.bytes = 0
        self._crc32c = 0
        self._slow = (
            {}
            if expected is None
            else {
                name: hashlib.new(name, usedforsecurity=False) for name in ("md5", "sha256") if getattr(expected, name)
            }
        )

    @property
    def crc32c(self) -> str:
        """The checksum, eight hex digits."""
        return f"{self._crc32c:08x}"

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        self.bytes += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        for digest in self._slow.values():
            digest.update(data)

    def differences(self, expected: FileStat) -> str:
        """Return the differences to the expected values, in words; empty if all are equal."""
        found = {
            "bytes": (expected.bytes, self.bytes),
            "crc32c": (expected.crc32c, self.crc32c),
            **{name: (getattr(expected, name), digest.hexdigest()) for name, digest in self._slow.items()},
        }
        return "; ".join(
            f"expected {what} {wanted}, found {got}"
            for what, (wanted, got) in found.items()
            if wanted is not None and wanted != got
        )


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield a file on this machine in pieces."""
    with opened_file(path) as file:
        while piece := file.read(_READ_BYTES):
            yield piece


def digests_of(path: Path, expected: FileStat | None = None) -> Digests:
    """Return length and checksums of a file on this machine; see ``Digests``."""
    digests = Digests(expected)
    for piece in pieces_of(path):
        digests.update(piece)
    return digests
