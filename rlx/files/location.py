"""A location: the files below a URL or a directory, with retries, resuming and checksums for all kinds."""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlx.errors import CorruptShardError, DiskFullError, DownloadError, SourceError
from rlx.files.beneath import beneath
from rlx.files.checksum import Digests, FetchedFile, FileStat
from rlx.files.disk import disk_errors
from rlx.files.partial import Partial, intact_file
from rlx.files.retry import Cancel, RetryPolicy, TransientError
from rlx.progress import Progress

RESUME_HINT = "run the same command again to resume"
# Why a fork cannot read at a URL, and what to do instead.
FORKED = (
    "a dataset at a URL cannot be read in a process forked from one that has opened such a dataset",
    'start processes with multiprocessing.get_context("spawn"), a DataLoader with multiprocessing_context="spawn"',
)


class ChangedError(TransientError):
    """A file has changed since its beginning was read, so its transfer has to start again."""


@dataclass(frozen=True, slots=True)
class Content:
    """The answer to one request for the bytes of a file.

    Args:
        start: offset of the first byte; 0 where the server knows no ranges.
        pieces: the bytes; raises TransientError if the connection breaks.
        interrupt: wakes a thread that waits for the next piece.
    """

    stat: FileStat
    start: int
    pieces: Iterator[bytes]
    interrupt: Callable[[], None] = lambda: None


class Location(ABC):
    """The files below a URL or a directory. Every method may be called from any thread.

    All of them raise ``SourceNotFoundError`` if the file does not exist, ``ForbiddenError`` if the server denies
    access, ``DownloadError`` if it keeps failing, and ``SourceError`` for a name that leaves the location.

    A kind of location implements ``_stat`` and ``_open``, one request each. They raise ``TransientError`` where
    another request may succeed.

    Attributes:
        directory: of a location on this machine; None elsewhere.
    """

    retry: RetryPolicy
    directory: Path | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """URL, without any password or token, or path, for messages and records."""

    def _where(self, name: str) -> str:
        return f"{self.url}/{name}"

    @abstractmethod
    def _stat(self, name: str) -> FileStat:
        """Return the metadata of a file, by one request."""

    @abstractmethod
    def _open(
        self, name: str, start: int = 0, stop: int | None = None, *, seen: FileStat | None = None
    ) -> AbstractContextManager[Content]:
        """Return the bytes of a file from start to stop, by one request.

        Args:
            stop: offset after the last byte; None for the end of the file.
            seen: raise ChangedError unless it is this version, where the server can compare.
        """

    def stat(self, name: str, *, cancel: Cancel | None = None) -> FileStat:
        """Return the metadata of a file without reading it.

        Raises:
            concurrent.futures.CancelledError: ``cancel`` was set.
        """
        return self.retry.run(lambda: self._stat(name), cancel or Cancel())

    def get(self, name: str, *, max_bytes: int) -> tuple[bytes, FileStat]:
        """Return a whole small file.

        Raises:
            SourceError: it is larger than ``max_bytes``.
        """

        def attempt() -> tuple[bytes, FileStat]:
            content = bytearray()
            with self._open(name) as answer:
                self._check_small(name, answer.stat.bytes or 0, max_bytes)
                for piece in self._pieces(name, answer, Cancel()):
                    content += piece
                    self._check_small(name, len(content), max_bytes)
            return bytes(content), answer.stat

        return self.retry.run(attempt, Cancel())

    def _check_small(self, name: str, found: int, max_bytes: int) -> None:
        if found > max_bytes:
            raise SourceError(f"{self._where(name)} has {found:,} bytes, expected at most {max_bytes:,}")

    def read(self, name: str, start: int, stop: int) -> tuple[bytes, FileStat]:
        """Return the bytes from start to stop, a non-empty range within the file."""

        def attempt() -> tuple[bytes, FileStat]:
            pieces, reached = list[bytes](), start
            with self._open(name, start, stop) as answer:
                if answer.start != start:
                    raise self._other_range(name, start, stop, f"{answer.start} and later ones")
                for piece in answer.pieces:
                    pieces.append(piece)
                    reached += len(piece)
                    if reached > stop:
                        break
            if reached != stop:
                raise self._other_range(name, start, stop, f"{start} to {reached}")
            return b"".join(pieces), answer.stat

        return self.retry.run(attempt, Cancel())

    def _other_range(self, name: str, start: int, stop: int, found: str) -> DownloadError:
        return DownloadError(f"{self._where(name)}: requested bytes {start} to {stop}, received {found}")

    def stream(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes from start to the end of the file, in pieces."""
        reached, seen, cancel = start, None, Cancel()
        attempts = self.retry.attempts_of(cancel)
        while True:
            try:
                with self._open(name, reached, seen=seen) as answer:
                    self._check_continues(name, answer, reached, seen)
                    seen = answer.stat
                    for piece in self._pieces(name, answer, cancel):
                        reached += len(piece)
                        attempts.progressed()
                        yield piece
                    return
            except ChangedError as exc:
                raise DownloadError(f"{self._where(name)} has changed while it was read") from exc
            except TransientError as exc:
                attempts.failed(exc)

    def _check_continues(self, name: str, answer: Content, start: int, seen: FileStat | None) -> None:
        if answer.start != start:
            raise DownloadError(f"{self._where(name)}: requested bytes from {start}, received {answer.start}")
        if seen is not None and not seen.is_same_version(answer.stat):
            raise self._changed(name)

    def fetch(
        self,
        name: str,
        directory: Path,
        progress: Progress,
        *,
        expected: FileStat | None = None,
        cancel: Cancel | None = None,
    ) -> FetchedFile:
        """Copy a file below a directory, verified; an interrupted transfer is resumed by the next call.

        A file that is there already is fetched only if it is not the expected one. ``<name>.partial`` and
        ``<name>.partial.json`` stay beside it while, and only while, it is incomplete. May be called from several
        threads at once, for different files.

        Args:
            progress: is advanced in ``bytes``; reports each byte once.
            expected: length and checksum, where they are known; by default those that the server states.
            cancel: stops the transfer.

        Raises:
            CorruptShardError: what arrived is not what was expected.
            DiskFullError: no space is left.
            concurrent.futures.CancelledError: ``cancel`` was set.
        """
        path, cancel = beneath(directory, checked_name(name)), cancel or Cancel()
        if path.is_file() and not path.is_symlink():
            wanted = expected or self.stat(name, cancel=cancel)
            if (found := intact_file(path, wanted)) is not None:
                progress.advance("bytes", found.bytes)
                return found
        with disk_errors(path), Partial(path) as partial:
            if expected and partial.expected and not expected.is_same_version(partial.expected):
                partial.discard()
            before = partial.offset
            progress.advance("bytes", before)
            self.retry.run(
                lambda: self._fetch_rest(name, directory, partial, expected, progress, cancel),
                cancel,
                reached=lambda: partial.furthest,
            )
            return FetchedFile(path, partial.offset, partial.crc32c, partial.furthest - before)

    def _fetch_rest(
        self,
        name: str,
        directory: Path,
        partial: Partial,
        expected: FileStat | None,
        progress: Progress,
        cancel: Cancel,
    ) -> None:
        if not partial.is_complete:
            try:
                with self._open(name, partial.offset, seen=partial.expected if partial.offset else None) as answer:
                    self._place(name, answer, partial, expected)
                    wanted = partial.expected.bytes if partial.expected else None
                    # A server that states a checksum but no length could otherwise send until the disk is full.
                    room = partial.offset + shutil.disk_usage(directory).free // 2
                    for piece in self._pieces(name, answer, cancel, at_most=wanted):
                        if wanted is None and partial.offset + len(piece) > room:
                            partial.discard()
                            raise DiskFullError(
                                f"{self._where(name)}: the server states no length, and it has more than {room:,} "
                                f"bytes, half the free room in {directory}"
                            )
                        progress.advance("bytes", partial.append(piece))
            except ChangedError:
                partial.discard()
                raise
        try:
            partial.finish()
        except CorruptShardError as exc:
            if expected is not None:  # the file itself is damaged, not its transfer
                raise
            raise TransientError(exc) from exc

    def _place(self, name: str, answer: Content, partial: Partial, expected: FileStat | None) -> None:
        """Make the partial ready for the bytes of an answer: at its end, or at zero."""
        stat = answer.stat
        if answer.start:
            assert partial.expected is not None
            if answer.start != partial.offset or not partial.expected.is_same_version(stat):
                raise self._changed(name)
            return
        if expected is not None:
            if stat.bytes not in (None, expected.bytes):
                raise CorruptShardError(f"{self._where(name)} has {stat.bytes:,} bytes, expected {expected.bytes:,}")
            stat = replace(expected, etag=stat.etag)
        partial.restart(stat)

    def _pieces(self, name: str, answer: Content, cancel: Cancel, *, at_most: int | None = None) -> Iterator[bytes]:
        """Yield the pieces of an answer that should reach the end of the file, and not more bytes than it has."""
        reached, expected = answer.start, answer.stat.bytes
        limit = expected if at_most is None else at_most
        with cancel.waking(answer.interrupt):
            for piece in answer.pieces:
                cancel.check()
                reached += len(piece)
                if limit is not None and reached > limit:
                    raise CorruptShardError(f"{self._where(name)} has more than the expected {limit:,} bytes")
                yield piece
        if reached < (expected or 0):
            raise self._broken(name, f"expected {expected} bytes, found {reached}")

    def _broken(self, name: str, problem: str) -> TransientError:
        return TransientError(DownloadError(f"{self._where(name)}: {problem}", hint=RESUME_HINT))

    def _changed(self, name: str) -> ChangedError:
        problem = f"{self._where(name)}: it has changed since its transfer began"
        return ChangedError(DownloadError(problem, hint=RESUME_HINT))


@dataclass(frozen=True, slots=True)
class Upload:
    """A local file on its way to a location.

    Args:
        pieces: reads it; raises if its bytes have changed.
        crc32c: of its bytes, eight hex digits.
        sent: receives the number of bytes that were sent, each counted once.
    """

    name: str
    path: Path
    pieces: Callable[[], Iterator[bytes]] = field(repr=False)
    bytes: int
    crc32c: str
    sent: Callable[[int], None] = field(repr=False)


def _counted(file: Upload) -> Iterator[bytes]:
    for piece in file.pieces():
        file.sent(len(piece))
        yield piece


class WritableLocation(Location):
    """A location whose files can be listed and written, unless it is read-only.

    Attributes:
        is_read_only: True for a web server.
        is_atomic: True if nothing that was put or deleted is visible until ``replace``, which shows all at once.
        max_batch: files that ``put_all`` should get at once.
    """

    is_read_only: bool = False
    is_atomic: bool = False
    max_batch: int = 1

    @property
    def page(self) -> str | None:
        """URL of the page on which browsers see the location's README.md; None if it has none."""
        return None

    def create(self, *, private: bool | None = None) -> None:
        """Create what must exist before files can be put; does nothing for most locations.

        Args:
            private: whether only its owners may read it, if the location can say.
        """

    def tagged(self, version: str) -> str | None:  # noqa: ARG002
        """Return the commit that a version names, where the location keeps versions.

        Raises:
            OptionError: no version can have that name there.
        """
        return None

    def tag(self, version: str) -> None:
        """Let a version name the state that was read or written last, where the location keeps versions."""

    def at(self, version: str) -> "WritableLocation":  # noqa: ARG002
        """Return the location of a version's files, where the location keeps versions."""
        return self

    def sweep(self, below: str) -> None:
        """Remove incomplete files of killed processes in a directory, where the location shows any."""

    def public_url(self, name: str) -> str:
        """Return the URL at which a browser gets a file of a location with a page."""
        return self._where(name)

    def put_contents(self, files: Mapping[str, bytes]) -> None:
        """Write small files by few requests."""
        for name, content in files.items():
            digests = Digests()
            digests.update(content)
            self.put(name, [content], bytes=len(content), crc32c=digests.crc32c)

    def put_all(self, files: Sequence[Upload]) -> None:
        """Write files, each as ``put`` does."""
        for file in files:
            self.put(file.name, _counted(file), bytes=file.bytes, crc32c=file.crc32c)

    def is_unchanged(self, name: str) -> bool:  # noqa: ARG002
        """Return whether the location knew, when a file was put, that it has the same content already."""
        return False

    @abstractmethod
    def list(self, below: str) -> Iterator[FileStat]:
        """Yield the files in a directory and in those below it; their checksums may be unknown."""

    @abstractmethod
    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:
        """Write a file of ``bytes`` bytes, over an existing one; it becomes visible when it is complete.

        An exception of ``pieces`` ends the transfer, is re-raised, and leaves the location unchanged.
        """

    @abstractmethod
    def replace(self, name: str, content: bytes, *, seen: FileStat | None) -> bool:
        """Write a small file if its version is still ``seen`` (None: absent); return whether it was written."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Remove files; absent ones are ignored."""


def checked_name(name: str) -> str:
    """Return the name of a file relative to its location.

    Raises:
        SourceError: the name is absolute, or has ``..``, an empty part, a backslash or a NUL in it, or no encoding.

    Example:
        >>> checked_name("Pong/run_1-00000-of-00050")
        'Pong/run_1-00000-of-00050'
        >>> checked_name("../secret")
        Traceback (most recent call last):
            ...
        rlx.errors.SourceError: file name '../secret' is not a relative path below its location
    """
    try:
        os.fsencode(name)
    except UnicodeEncodeError as exc:
        raise SourceError(f"file name {name!r} cannot be encoded for this file system") from exc
    if {"", ".", ".."}.intersection(name.split("/")) or "\\" in name or "\0" in name:
        raise SourceError(f"file name {name!r} is not a relative path below its location")
    return name
