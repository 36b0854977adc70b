"""The files of a dataset at a location, of which only the parts that are asked for are fetched.

Files are fetched in pages, which a cache in memory keeps, and perhaps one on the local disk. Pages that are needed
together and are close to each other come by one request; requests of one call run concurrently. Small files, such as
the tables of trajectories, come together, by one request, where a push has put copies of them into one file.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

import google_crc32c

from rlx.errors import CorruptDatasetError, DownloadError, ForbiddenError, SourceNotFoundError
from rlx.files.checksum import FileStat
from rlx.files.checksum import pieces_of as local_pieces
from rlx.files.disk_cache import PAGE_BYTES, DiskCache, key_of
from rlx.files.location import FORKED, Location
from rlx.fork import ThisProcessOnly

# A request takes as long as some hundred kilobytes, so pages at most this far apart share one.
_MAX_GAP = 4
_MAX_RUN = 256
_REQUESTS = 128
_BELIEVED_BYTES = 1 << 24
# What a request costs is the transfer of some hundred kilobytes; all small files together take one of 4 MB at most.
_SMALL_BYTES = 1 << 15
_ALL_SMALL_BYTES = _MAX_RUN * PAGE_BYTES
_VERSION_PAGE = -1  # holds the version of which the disk cache keeps the pages
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
        """Keep a page, and drop others until it fits; a page that is larger than the cache is not kept."""
        with self._lock:
            self.bytes -= len(self._pages.pop(key, b""))
            if len(page) > self.max_bytes:
                return
            self._pages[key] = page
            self.bytes += len(page)
            while self.bytes > self.max_bytes:
                _, oldest = self._pages.popitem(last=False)
                self.bytes -= len(oldest)


def small_files(lengths: Mapping[str, int], checksums: Mapping[str, str]) -> tuple[str, Sequence[str]]:
    """Return the name of the file with copies of small files, derived from their content, and their order in it.

    Example:
        >>> small_files({"b": 2, "a": 2, "large": 10**6}, {"a": "00000000", "b": "00000000", "large": "00000000"})
        ('shards/small.05519ee2e916fa0e', ['a', 'b'])
    """
    names, total, digest = list[str](), 0, blake2b(digest_size=8)
    for length, name in sorted((length, name) for name, length in lengths.items() if length <= _SMALL_BYTES):
        total += length
        if total > _ALL_SMALL_BYTES:
            break
        names.append(name)
        digest.update(f"{name} {length} {checksums[name]}\n".encode())
    return f"shards/small.{digest.hexdigest()}", names


class RemoteFiles:
    """The files of a dataset at a location. It can be shared between threads, not with a forked process.

    Args:
        cache_bytes: of pages that are kept in memory.
        disk: keeps pages, too.
        checksums: of every file; with them, pages of a file that was replaced are not taken from the disk, and copies
            of small files are read together.
    """

    def __init__(
        self,
        location: Location,
        lengths: Mapping[str, int],
        cache_bytes: int,
        disk: DiskCache | None = None,
        checksums: Mapping[str, str] | None = None,
    ) -> None:
        self.location = location
        self.cache_bytes = cache_bytes
        self.disk = disk
        self._lengths = dict(lengths)
        self._checksums = checksums or {}
        self._small: Mapping[str, memoryview] | None = None
        self._small_lock = threading.Lock()
        self._cache = PageCache(cache_bytes)
        self._versions: dict[str, str | None] = {}
        self._noted: dict[str, str | None] = {}
        self._from_disk: set[str] = set()
        self._traffic = Traffic()
        self._lock = threading.Lock()
        self._here = ThisProcessOnly(*FORKED)
        self._here.check()
        # Several pools: those who wait for requests, or for others that wait, must not keep these from being made.
        self._requests = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="requests")
        self._waiting = [ThreadPoolExecutor(_REQUESTS, thread_name_prefix=f"reads-{depth}") for depth in range(2)]

    def check_process(self) -> None:
        """Raise ForkError in a process that was forked from one that has used this."""
        self._here.check()

    @property
    def traffic(self) -> Traffic:
        """The bytes and requests fetched so far."""
        return self._traffic

    def at_once(self, read: Callable[[T], R], items: Sequence[T], *, depth: int = 0) -> list[R]:
        """Return the results of a function for every item, computed in parallel.

        Args:
            read: the function; it may call this with a lower depth only.
            depth: 0 or 1.
        """
        self._here.check()
        if len(items) == 1:
            return [read(items[0])]
        return list(self._waiting[depth].map(read, items))

    def length(self, name: str) -> int:
        """Return the length of a file in bytes, from the manifest."""
        if name not in self._lengths:
            raise CorruptDatasetError(f"{self.location.url}/{name} is missing: the manifest lists no such file")
        return self._lengths[name]

    def pieces(self, name: str, ranges: Sequence[Range]) -> list[memoryview]:
        """Return the bytes of a file in these ranges; bytes after its end are left out, as of a memory map."""
        self._here.check()
        length = self.length(name)
        within = [(min(start, length), min(stop, length)) for start, stop in ranges]
        if length <= _SMALL_BYTES and (copied := self._copies().get(name)) is not None:
            return [copied[start:stop] for start, stop in within]
        if sum(stop - start for start, stop in within) > _BELIEVED_BYTES and name not in self._versions:
            # An untrusted manifest must not decide how much memory is allocated.
            self._check(name, self._stat(name))
        pages = self._pages(name, within)
        return [_cut(pages, start, stop) for start, stop in within]

    def _copies(self) -> Mapping[str, memoryview]:
        """Return the small files that are stored together, except those whose checksum is wrong."""
        with self._small_lock:  # all threads wait for one request
            if self._small is None:
                self._small = self._read_small() if self._checksums else {}
            return self._small

    def _read_small(self) -> Mapping[str, memoryview]:
        together, names = small_files(self._lengths, self._checksums)
        total = sum(self._lengths[name] for name in names)
        if total > self.cache_bytes:
            return {}
        self._lengths[together] = total
        try:
            wanted = range(-(-total // PAGE_BYTES))
            pages = {number: page for _, number, page in self.fetch([(together, wanted)])}
            content = b"".join(pages[number] for number in wanted)
        except (CorruptDatasetError, ForbiddenError, DownloadError):
            # Absent: S3 answers 403 to those who may not list, and some servers with a page of their own.
            return {}
        copies, start = dict[str, memoryview](), 0
        for name in names:
            copy = content[start : start + self._lengths[name]]
            start += len(copy)
            if f"{google_crc32c.value(copy):08x}" == self._checksums[name]:
                copies[name] = memoryview(copy)
        return copies

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
        """Return every page that holds a byte of the ranges; they stay in memory until used, even if the cache drops
        them.
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
        for _, number, page in self.fetch([(name, [number for number in numbers if number not in found])]):
            found[number] = page
            self._cache.put((name, number), page)
        return found

    def fetch(self, wanted: Sequence[tuple[str, Sequence[int]]]) -> Iterator[tuple[str, int, bytes]]:
        """Yield pages as file, number and content, past the cache in memory; more than those that were asked for, in
        gaps between them.
        """
        self._here.check()
        runs: list[tuple[str, Range]] = []
        for name, numbers in wanted:
            missing = []
            for number in numbers:
                page = self._on_disk(name, number)
                if page is None:
                    missing.append(number)
                else:
                    yield name, number, page
            runs += [(name, run) for run in _runs(missing)]
        fetch = self._requests.map if len(runs) > 1 else map
        for (name, (first, _)), content in zip(runs, fetch(lambda run: self._fetch(*run), runs), strict=True):
            for offset in range(0, len(content), PAGE_BYTES):
                yield name, first + offset // PAGE_BYTES, content[offset : offset + PAGE_BYTES]

    def _on_disk(self, name: str, number: int) -> bytes | None:
        if self.disk is None:
            return None
        if name not in self._noted:
            noted = self.disk.get(self._key(name, _VERSION_PAGE), None)
            self._noted[name] = None if noted is None else noted.decode()
        page = self.disk.get(self._key(name, number), self._versions.get(name) or self._noted[name])
        expected = min(PAGE_BYTES, self._lengths[name] - number * PAGE_BYTES)
        if page is None or len(page) != expected:
            return None
        self._from_disk.add(name)
        return page

    def _key(self, name: str, number: int) -> bytes:
        # With the checksum of the manifest, a file that was replaced since has other keys.
        return key_of(number, self.location.url, name, self._lengths[name], self._checksums.get(name))

    def _fetch(self, name: str, run: Range) -> bytes:
        start, stop = run[0] * PAGE_BYTES, min(run[1] * PAGE_BYTES, self._lengths[name])
        try:
            content, stored = self.location.read(name, start, stop)
        except SourceNotFoundError as exc:
            raise self._missing(name) from exc
        except DownloadError:
            self._check(name, self._stat(name))  # a file that is too short is damage, not a server error
            raise
        self._count(1, len(content))
        self._check(name, stored)
        if self.disk is not None:
            chance = random.random()
            for number in range(*run):
                offset = number * PAGE_BYTES - start
                page = content[offset : offset + PAGE_BYTES]
                self.disk.put(self._key(name, number), page, stored.etag, chance=chance)
        return content

    def _stat(self, name: str) -> FileStat:
        self._count(1, 0)
        try:
            return self.location.stat(name)
        except SourceNotFoundError as exc:
            raise self._missing(name) from exc

    def _check(self, name: str, stored: FileStat) -> None:
        """Raise CorruptDatasetError unless a file matches the manifest and has not changed."""
        url = f"{self.location.url}/{name}"
        if stored.bytes is None:
            raise DownloadError(f"{url}: the server does not state its length")
        if stored.bytes != self._lengths[name]:
            raise CorruptDatasetError(f"{url} has {stored.bytes:,} bytes, expected {self._lengths[name]:,}")
        noted = self._noted.get(name)
        version = stored.etag or ""
        if self.disk is not None and version != (noted or "") and name not in self._versions:
            # A server may have answered with an older file of the same length before, or with no ETag from now on.
            self.disk.put(self._key(name, _VERSION_PAGE), version.encode()[:PAGE_BYTES], None, chance=0)
        before = noted if name in self._from_disk else None
        if self._versions.setdefault(name, before or stored.etag) != stored.etag:
            raise CorruptDatasetError(f"{url} has changed since it was first read", hint="open the dataset again")

    def _missing(self, name: str) -> CorruptDatasetError:
        return CorruptDatasetError(f"{self.location.url}/{name} is missing: expected {self._lengths[name]:,} bytes")

    def _count(self, requests: int, num_bytes: int) -> None:
        with self._lock:
            self._traffic = Traffic(self._traffic.requests + requests, self._traffic.bytes + num_bytes)


def _runs(numbers: Sequence[int]) -> list[Range]:
    """Return the requests that fetch these pages, ascending: start and end of each."""
    if not numbers:
        return []
    breaks = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b - a > _MAX_GAP), len(numbers)]
    near = [(numbers[first], numbers[end - 1] + 1) for first, end in pairwise(breaks)]
    return [(first, min(first + _MAX_RUN, stop)) for start, stop in near for first in range(start, stop, _MAX_RUN)]


def _cut(pages: Mapping[int, bytes], start: int, stop: int) -> memoryview:
    if start >= stop:
        return memoryview(b"")
    first, last = start // PAGE_BYTES, (stop - 1) // PAGE_BYTES
    joined = pages[first] if first == last else b"".join(pages[number] for number in range(first, last + 1))
    return memoryview(joined)[start - first * PAGE_BYTES : stop - first * PAGE_BYTES]


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path below a dataset."""

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
        """Length of the file in bytes, from the manifest."""
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


def local(path: AnyPath) -> Path | None:
    """Return a path on this machine; None for one at a URL."""
    return path if isinstance(path, Path) else None


def remote(path: AnyPath) -> RemotePath | None:
    """Return a path at a URL; None for one on this machine."""
    return path if isinstance(path, RemotePath) else None


def length_of(path: AnyPath) -> int:
    """Return bytes of a file."""
    return path.stat().st_size if isinstance(path, Path) else path.length


def pieces_of(path: AnyPath) -> Iterator[bytes]:
    """Yield a whole file in pieces; a remote one past the cache."""
    return local_pieces(path) if isinstance(path, Path) else path.stream()


def each_below(path: AnyPath, read: Callable[[T], R], items: Sequence[T], *, depth: int = 0) -> list[R]:
    """Return the results of a reading function below a path for every item: in parallel if the path is remote."""
    if isinstance(path, RemotePath):
        return path.files.at_once(read, items, depth=depth)
    return [read(item) for item in items]
