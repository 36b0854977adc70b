"""Checksums of bytes as they pass, and of files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from rlx.files.file_stat import FileStat

_READ_BYTES = 1 << 20


class Digests:
    """Length and checksums of the bytes so far.

    Args:
        md5: whether MD5, which is slow, is wanted too.

    Attributes:
        bytes: how many bytes there were.

    Example:
        >>> digests = Digests()
        >>> digests.update(b"123456789")
        >>> digests.bytes, digests.crc32c
        (9, 'e3069283')
    """

    def __init__(self, *, md5: bool = False) -> None:
        self.bytes = 0
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False) if md5 else None

    @property
    def crc32c(self) -> str:
        """The checksum, eight hex digits."""
        return f"{self._crc32c:08x}"

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        self.bytes += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        if self._md5 is not None:
            self._md5.update(data)

    def differences(self, expected: FileStat) -> str:
        """Return the differences to the expected values, in words; empty if all are equal."""
        found = {
            "bytes": (expected.bytes, self.bytes),
            "crc32c": (expected.crc32c, self.crc32c),
            "md5": (expected.md5, self._md5 and self._md5.hexdigest()),
        }
        return "; ".join(
            f"expected {what} {wanted}, found {got}"
            for what, (wanted, got) in found.items()
            if wanted is not None and wanted != got
        )


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield a file on this machine in pieces."""
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            yield piece


def digests_of(path: Path, *, md5: bool = False) -> Digests:
    """Return length and checksums of a file on this machine."""
    digests = Digests(md5=md5)
    for piece in pieces_of(path):
        digests.update(piece)
    return digests
