"""A location: the files below a URL or a directory, in a bucket or on a disk, and which one a user means."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from rlx.errors import SourceError
from rlx.secrets_in_urls import without_secrets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
BUCKETS = ("s3", "gs", "az", "http", "https")
# Why a fork cannot read at a URL, and what to do instead.
FORKED = (
    "a dataset at a URL cannot be read in a process forked from one that has opened such a dataset",
    'start processes with multiprocessing.get_context("spawn"), a DataLoader with multiprocessing_context="spawn"',
)
_MISTYPED = re.compile(rf"file:|({'|'.join(BUCKETS)})(:|//)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stored:
    """Metadata of one file at a location.

    Args:
        name: below the location, with ``/`` between the parts.
        bytes: its length.
        etag: what tells one version of it from another.
        version: what some stores want beside the etag to replace that version and no other.
        crc32c: of its content, eight hex digits, as given to ``put``; None if unknown.
    """

    name: str
    bytes: int
    etag: str | None = None
    version: str | None = None
    crc32c: str | None = None


class Location(Protocol):
    """The files below a URL or a directory. Every method may be called from any thread.

    All of them raise ``SourceNotFoundError`` if the file does not exist, ``ForbiddenError`` if the server denies
    access, ``DownloadError`` if it keeps failing, and ``SourceError`` for a name that leaves the location.
    """

    url: str
    is_read_only: bool

    def stat(self, name: str) -> Stored:
        """Return the metadata of a file without reading it."""

    def get(self, name: str, *, max_bytes: int) -> tuple[bytes, Stored]:
        """Return a whole small file.

        Raises:
            SourceError: it is larger than that.
        """

    def read(self, name: str, start: int, stop: int) -> tuple[bytes, Stored]:
        """Return the bytes from start to stop, a range that is not empty and lies in the file."""

    def stream(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes from start to the end of the file, in pieces."""

    def list(self, below: str) -> Iterator[Stored]:
        """Yield the files in a directory and in those below it; their checksums are not known."""

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:
        """Write a file of ``bytes`` bytes, over an existing one; it becomes visible when it is complete.

        An exception of ``pieces`` ends the transfer, is re-raised, and leaves the location unchanged.
        """

    def replace(self, name: str, content: bytes, *, seen: Stored | None) -> bool:
        """Write a small file if its version is still ``seen`` (None: absent); return whether it was written."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove files; absent ones are ignored."""


def check_no_url(path: str | os.PathLike[str]) -> None:
    """Raise SourceError for a path that is a URL, or was meant as one: no directory of such a name is made by mistake.

    Example:
        >>> check_no_url("s3:/bucket/pong")
        Traceback (most recent call last):
        rlx.errors.SourceError: s3:/bucket/pong is a mistyped URL: expected s3://bucket/pong
    """
    text = os.fspath(path)
    found = _MISTYPED.match(text)
    if found is None:
        return
    shown = without_secrets(text)
    meant = f"{found[0].rstrip(':/').lower()}://{without_secrets(text[found.end() :].lstrip('/'))}"
    wanted = f"a mistyped URL: expected {meant}" if isinstance(path, str) else f"no directory, but the URL {meant}"
    raise SourceError(
        f"{shown} is {wanted}",
        hint=f"rlx push writes to a URL; ./{shown} is a directory of that name",
    )


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        SourceError: its host or port is invalid.

    Example:
        >>> split_url("http://host:99999/set")
        Traceback (most recent call last):
        rlx.errors.SourceError: http://host:99999/set is not a URL: expected a host, perhaps with a port up to 65535
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        _ = parts.port, parts.hostname  # which parses them
        return parts
    # What urllib says may quote a part of a password.
    raise SourceError(
        f"{url} is not a URL: expected a host, perhaps with a port up to 65535",
        hint="quote what is special in a password: %2F for a slash" if "@" in url else None,
    )


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL, and no path or id.

    Example:
        >>> is_url("s3://bucket/pong"), is_url("Pong/5"), is_url("/data/pong")
        (True, False, False)
    """
    return isinstance(location, str) and _SCHEME.match(location) is not None


def open_location(location: str | os.PathLike[str]) -> Location:
    """Return the location that a URL or a path means. Nothing is asked of a server yet, and no directory need exist.

    Raises:
        SourceError: the URL is invalid, or of an unknown kind.
        MissingExtraError: a URL, and obstore is not installed.
    """
    from rlx.files.directory import DirectoryLocation  # noqa: PLC0415  (it imports this module)

    path = local_path(location)
    if path is not None:
        return DirectoryLocation(path.absolute())
    # obstore is an extra, and whoever has a directory does without.
    from rlx.files.bucket import BucketLocation  # noqa: PLC0415

    return BucketLocation(str(location))


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """Return the path that a location means; None for one on a server.

    Raises:
        SourceError: a URL that is mistyped, or of an unknown kind.

    Example:
        >>> local_path("file:///data/a%20b").as_posix()
        '/data/a b'
    """
    if not is_url(location):
        check_no_url(location)
        return Path(location).expanduser()
    parts = split_url(str(location))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise SourceError(f"{without_secrets(str(location))} is on another machine: expected file:///path")
        return Path(unquote(parts.path))
    if parts.scheme not in BUCKETS:
        known = ", ".join(f"{scheme}://" for scheme in (*BUCKETS, "file"))
        raise SourceError(f"{parts.scheme}:// is not supported: expected one of {known}, or a directory")
    return None


def checked_name(name: str) -> str:
    """Return the name of a file that lies below its location.

    Raises:
        SourceError: the name is absolute, or has ``..``, an empty part, a backslash or a NUL in it.
    """
    if {"", ".", ".."}.intersection(name.split("/")) or "\\" in name or "\0" in name:
        raise SourceError(f"file name {name!r} is not a relative path below its location")
    return name
