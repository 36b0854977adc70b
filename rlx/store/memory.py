"""Memory that rlx manages itself: of decoded rows, which is used again, and of pages of files far away."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.files.disk_cache import PAGE_BYTES
from rlx.store.raw_file import FIRST_ADDRESS, MemoryFile
from rlx.store.raw_file import _libc as libc

# A batch takes megabytes. The C library returns memory that one thread allocates and another frees to the system, so
# that every page of the next batch is a page fault: these took longer than decoding.
_STEP_BYTES = 1 << 16  # sizes are rounded up, so that batches of about the same size share memory
_LEAST_BYTES = 1 << 17  # smaller ones are not given back to the system
_MOST_BYTES = 1 << 26  # the most that is kept of one batch: 960 stacks of four Atari frames, and the next ones
_MOST_KEPT, _MOST_KEPT_BYTES = 16, 1 << 27


class _Block(NamedTuple):
    """Memory of a batch; the owner of its last use, who is gone when it may be used again; and the thread of that."""

    memory: NDArray[np.uint8]
    owner: weakref.ref[Any]
    thread: int


_blocks: deque[_Block] = deque(maxlen=_MOST_KEPT)


def empty_rows(count: int, row_bytes: int) -> NDArray[np.uint8]:
    """Return rows [count, row_bytes] that hold anything."""
    size = -(-count * row_bytes // _STEP_BYTES) * _STEP_BYTES
    if not _LEAST_BYTES <= size <= _MOST_BYTES:
        return np.empty((count, row_bytes), np.uint8)
    thread = threading.get_ident()
    memory = _free(size, thread)
    if memory is None:
        memory = _free(size, None)
    if memory is None:
        memory = np.empty(size, np.uint8)
    owner = _array_type(size).from_buffer(memory.data)
    _blocks.append(_Block(memory, weakref.ref(owner), thread))
    with suppress(IndexError):  # another thread took the last one
        while sum(map(len, map(attrgetter("memory"), tuple(_blocks)))) > _MOST_KEPT_BYTES:
            _blocks.popleft()
    return np.ndarray((count, row_bytes), np.uint8, owner)


def _free(size: int, thread: int | None) -> NDArray[np.uint8] | None:
    """Remove and return memory that a thread, or any, used before.

    Memory of another thread is in the cache of another core: two threads that swap theirs read a tenth fewer batches.
    """
    others, found = [], None
    while found is None and _blocks:
        try:
            block = _blocks.pop()  # the last one is most likely in the cache
        except IndexError:  # another thread took it
            break
        if len(block.memory) == size and thread in (None, block.thread) and block.owner() is None:
            found = block.memory
        else:
            others.append(block)
    _blocks.extend(reversed(others))
    return found


@lru_cache(maxsize=64)
def _array_type(size: int) -> Any:
    return ctypes.c_char * size


Pages = NDArray[np.int64]
_NORESERVE, _NOHUGEPAGE = 0x4000, 15  # Linux; not in every Python's mmap


class PageMemory:
    """The pages of many files, numbered one file after the other, each file laid out as on disk.

    It has addresses for all bytes, of which only fetched pages take room.

    Args:
        lengths: bytes of each file, by name.

    Attributes:
        present: [pages] which are here.
        first: [files] number of the first page of each file.
        place: where in ``MEMORY`` the first page is.
    """

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.names = list(lengths)
        counts = -(-np.fromiter(lengths.values(), np.int64, len(lengths)) // PAGE_BYTES)
        self.first: Pages = np.cumsum(counts) - counts
        self._numbers = dict(zip(self.names, self.first.tolist(), strict=True))
        self._lengths = lengths
        total = int(counts.sum())
        self.present = np.zeros(total, bool)
        self._size = max(total * PAGE_BYTES, mmap.PAGESIZE)
        self._address = _reserved(self._size)
        # A page of 2 MiB for one of 16 KiB would undo what this is for; where the system has none, nothing is lost.
        libc.madvise(self._address, self._size, _NOHUGEPAGE)
        self.place = self._address - FIRST_ADDRESS
        self._memory = (ctypes.c_char * self._size).from_address(self._address)
        weakref.finalize(self._memory, libc.munmap, self._address, self._size).atexit = False

    def file(self, name: str) -> MemoryFile:
        """Return a file, to be read like a mapped one."""
        start = self._numbers[name] * PAGE_BYTES
        view = memoryview(self._memory).cast("B").toreadonly()
        return MemoryFile(view[start : start + self._lengths[name]], self.place + start)

    def number(self, name: str, page: int) -> int:
        """Return number of a page of a file."""
        return int(self._numbers[name] + page)

    def by_file(self, pages: Pages) -> list[tuple[str, list[int]]]:
        """Return pages, ascending, as file and numbers of pages in it."""
        file = self.first.searchsorted(pages, side="right") - 1
        return [(self.names[i], (pages[file == i] - self.first[i]).tolist()) for i in np.unique(file).tolist()]

    def fill(self, page: int, content: bytes) -> None:
        """Put the content of a page."""
        ctypes.memmove(self._address + page * PAGE_BYTES, content, len(content))
        self.present[page] = True

    def drop(self, pages: Pages) -> None:
        """Give the memory of pages, ascending, back. Nobody may read them meanwhile."""
        self.present[pages] = False
        for first, stop in _runs(pages):
            libc.madvise(self._address + first * PAGE_BYTES, (stop - first) * PAGE_BYTES, mmap.MADV_DONTNEED)

    @property
    def bytes(self) -> int:
        """Bytes of the pages that are here."""
        return int(self.present.sum()) * PAGE_BYTES


def _reserved(size: int) -> int:
    """Return the address of memory that takes no room before it is written to."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = libc.mmap(None, size, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def _runs(pages: Pages) -> Iterator[tuple[int, int]]:
    """Yield start and stop of every run of consecutive numbers, ascending."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    edges = [0, *breaks.tolist(), len(pages)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield int(pages[start]), int(pages[stop - 1]) + 1
