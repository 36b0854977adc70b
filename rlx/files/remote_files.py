"""The files of a dataset at a location, of which only the parts that are asked for are fetched.

Files are fetched in pages, which a cache keeps. Pages that are needed together and lie close to each other come by one
request; requests of one call run concurrently.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

from rlx.errors import CorruptDatasetError, DownloadError, SourceNotFoundError
from rlx.files.checksum import FileStat
from rlx.files.checksum import pieces_of as local_pieces
from rlx.files.location import FORKED, Location
from rlx.fork import ThisProcessOnly

# Frames take 100 to 200 bytes and steps a few, so that a random one brings many that nobody wants: small pages waste
# little, and where neighbours are wanted they are fetched together anyhow.
PAGE_BYTES = 1 << 14
# A request takes as long as some hundred kilobytes: this many pages in between are fetched rather than skipped.
_MAX_GAP = 4
_MAX_RUN = 256
_REQUESTS = 64
_BELIEVED_BYTES = 1 << 24
DEFAULT_CACHE_BYTES = 256 * 2**20

Range = tuple[int, int]
PageKey = tuple[str, int]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes and requests fetched so far."""

    requests: int = 0
    bytes: int = 0


class PageCache:
    """Pages by the name of their file and their number in it. It can be shared between threads.

    Args:
        max_bytes: of all pages together; 0 keeps none.

    Example:
        >>> cache = PageCache(5)
        >>> cache.put(("a", 0), b"123"), cache.put(("a", 1), b"45"), cache.get(("a", 0))
        (None, None, b'123')
        >>> cache.put(("a", 2), b"6")
        >>> cache.get(("a", 1)) is None, cache.bytes
        (True, 4)
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes is {max_bytes}, expected 0 or more")
        self.max_bytes = max_bytes
        self.bytes = 0
        self._pages: OrderedDict[PageKey, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: PageKey) -> bytes | None:
        """Return the page, if it is here."""
        with self._lock:
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
            return page

    def put(self, key: PageKey, page: bytes) -> None:
        """Keep a page, and let go of others until there is room; one that is larger than the cache is not kept."""
        with self._lock:
            self.bytes -= len(self._pages.pop(key, b""))
            if len(page) > self.max_bytes:
                return
            self._pages[key] = page
            self.bytes += len(page)
            while self.bytes > self.max_bytes:
                _, oldest = self._pages.popitem(last=False)
                self.bytes -= len(oldest)


class RemoteFiles:
    """The files of a dataset at a location. It can be shared between threads, not with a forked process.

    Args:
        location: where they lie.
        lengths: of every file, by its name.
        cache_bytes: of pages that are kept in memory.

    Attributes:
        location: where they lie.
        cache_bytes: as given.
    """

    def __init__(self, location: Location, lengths: Mapping[str, int], cache_bytes: int) -> None:
        self.location = location
        self.cache_bytes = cache_bytes
        self._lengths = lengths
        self._cache = PageCache(cache_bytes)
        self._versions: dict[str, str | None] = {}
        self._traffic = Traffic()
        self._lock = threading.Lock()
        self._here = ThisProcessOnly(*FORKED)
        self._here.check()
        # Several pools: those who wait for requests, or for others that wait, must not keep these from being made.
        self._requests = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="requests")
        self._waiting = [ThreadPoolExecutor(_REQUESTS, thread_name_prefix=f"reads-{depth}") for depth in range(2)]

    @property
    def traffic(self) -> Traffic:
        """The bytes and requests fetched so far."""
        return self._traffic

    def at_once(self, read: Callable[[T], R], items: Sequence[T], *, depth: int = 0) -> list[R]:
        """Return the results of a function for every item, computed in parallel.

        Args:
            read: the function; it may call this with a lower depth only.
            items: what to call it with.
            depth: 0 or 1.
        """
        self._here.check()
        if len(items) == 1:
            return [read(items[0])]
        return list(self._waiting[depth].map(read, items))

    def length(self, name: str) -> int:
        """Return bytes of a file, as the manifest has it.

        Raises:
            CorruptDatasetError: it lists no such file.
        """
        if name not in self._lengths:
            raise CorruptDatasetError(f"{self.location.url}/{name} is missing: the manifest lists no such file")
        return self._lengths[name]

    def pieces(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        """Return the bytes of a file in these ranges; bytes after its end are left out, as of a memory map.

        Raises:
            CorruptDatasetError: it is not there, of another length than the manifest says, or has changed meanwhile.
            ForbiddenError: the server refuses access.
            DownloadError: the server keeps failing.
        """
        self._here.check()
        length = self.length(name)
        within = [(min(start, length), min(stop, length)) for start, stop in ranges]
        if sum(stop - start for start, stop in within) > _BELIEVED_BYTES and name not in self._versions:
            # Before anything is made as large as a manifest says, which may be anybody's.
            self._check(name, self._stat(name))
        pages = self._pages(name, within)
        return [_cut(pages, start, stop) for start, stop in within]

    def stream(self, name: str) -> Iterator[bytes]:
        """Yield a whole file in pieces, past the cache."""
        self._here.check()
        self._count(1, 0)
        try:
            for piece in self.location.stream(name):
                self._count(0, len(piece))
                yield piece
        except SourceNotFoundError as exc:
            raise self._missing(name) from exc

    def _pages(self, name: str, ranges: Sequence[Range]) -> dict[int, bytes]:
        """Return every page that holds a byte of the ranges. They are here until they are used, whatever the cache
        does.
        """
        numbers = sorted(
            {
                number
                for start, stop in ranges
                if start < stop
                for number in range(start // PAGE_BYTES, (stop - 1) // PAGE_BYTES + 1)
            }
        )
        found = {number: page for number in numbers if (page := self._cache.get((name, number))) is not None}
        runs = _runs([number for number in numbers if number not in found])
        fetch = self._requests.map if len(runs) > 1 else map
        for (first, _), content in zip(runs, fetch(lambda run: self._fetch(name, run), runs), strict=True):
            for offset in range(0, len(content), PAGE_BYTES):
                number = first + offset // PAGE_BYTES
                found[number] = content[offset : offset + PAGE_BYTES]
                self._cache.put((name, number), found[number])
        return found

    def _fetch(self, name: str, run: Range) -> bytes:
        """Return the content of a run of pages, by one request."""
        start, stop = run[0] * PAGE_BYTES, min(run[1] * PAGE_BYTES, self._lengths[name])
        try:
            content, stored = self.location.read(name, start, stop)
        except SourceNotFoundError as exc:
            raise self._missing(name) from exc
        except DownloadError:
            self._check(name, self._stat(name))  # a file that is too short is no trouble of the server's
            raise
        self._count(1, len(content))
        self._check(name, stored)
        return content

    def _stat(self, name: str) -> FileStat:
        self._count(1, 0)
        try:
            return self.location.stat(name)
        except SourceNotFoundError as exc:
            raise self._missing(name) from exc

    def _check(self, name: str, stored: FileStat) -> None:
        """Raise CorruptDatasetError unless a file is the one that the manifest means, and the same as before."""
        url = f"{self.location.url}/{name}"
        if stored.bytes is None:
            raise DownloadError(f"{url}: the server does not tell its length")
        if stored.bytes != self._lengths[name]:
            raise CorruptDatasetError(f"{url} has {stored.bytes:,} bytes, expected {self._lengths[name]:,}")
        if self._versions.setdefault(name, stored.etag) != stored.etag:
            raise CorruptDatasetError(f"{url} has changed since it was first read", hint="open the dataset again")

    def _missing(self, name: str) -> CorruptDatasetError:
        return CorruptDatasetError(f"{self.location.url}/{name} is missing: expected {self._lengths[name]:,} bytes")

    def _count(self, requests: int, num_bytes: int) -> None:
        with self._lock:
            self._traffic = Traffic(self._traffic.requests + requests, self._traffic.bytes + num_bytes)


def _runs(numbers: Sequence[int]) -> list[Range]:
    """Return the requests that fetch these pages, ascending: start and end of each.

    Example:
        >>> _runs([0, 1, 4, 20, 21])
        [(0, 5), (20, 22)]
    """
    if not numbers:
        return []
    breaks = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b - a > _MAX_GAP), len(numbers)]
    near = [(numbers[first], numbers[behind - 1] + 1) for first, behind in pairwise(breaks)]
    return [(first, min(first + _MAX_RUN, stop)) for start, stop in near for first in range(start, stop, _MAX_RUN)]


def _cut(pages: Mapping[int, bytes], start: int, stop: int) -> memoryview:
    """Return the bytes from start to stop of a file some of whose pages are given."""
    if start >= stop:
        return memoryview(b"")
    first, last = start // PAGE_BYTES, (stop - 1) // PAGE_BYTES
    joined = pages[first] if first == last else b"".join(pages[number] for number in range(first, last + 1))
    return memoryview(joined)[start - first * PAGE_BYTES : stop - first * PAGE_BYTES]


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path below a dataset.

    Args:
        files: of the dataset.
        inner: the path below it; that of the dataset itself has no parts.
    """

    files: RemoteFiles
    inner: PurePosixPath

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.files, self.inner / name)

    def __str__(self) -> str:
        return f"{self.files.location.url}/{self.inner}" if self.inner.parts else self.files.location.url

    def joinpath(self, *names: str) -> RemotePath:
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
OnePath = TypeVar("OnePath", Path, RemotePath, AnyPath)  # where a path goes in, one of the same kind comes out


def length_of(path: AnyPath) -> int:
    """Return bytes of a file.

    Raises:
        OSError: a local file that cannot be found.
        CorruptDatasetError: a remote file that the manifest does not list.
    """
    return path.stat().st_size if isinstance(path, Path) else path.length


def pieces_of(path: AnyPath) -> Iterator[bytes]:
    """Yield a whole file in pieces; a remote one past the cache."""
    return local_pieces(path) if isinstance(path, Path) else path.stream()


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
