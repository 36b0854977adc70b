"""Files in memory: mapped ones, pages of files far away, and memory that two processes see at once.

``mmap.mmap`` keeps a descriptor for as long as the map lives, of which a process has 1,024 by default; a dataset has
thousands of files. So a map is made by the C library, and the descriptor is closed at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.files.disk import at_once, file_error, reading
from rlx.files.disk_cache import PAGE_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_NORESERVE, _NOHUGEPAGE = 0x4000, 15  # Linux; not in every Python's mmap
Pages = NDArray[np.int64]


class MappedFile:
    """A file to be read through a memory map, which lives as long as anything refers to ``memory``.

    Args:
        path: of the file, which must not be empty.

    Attributes:
        memory: all of it, read-only. Touching a page past the end of a file that was cut kills the process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = os.fspath(path)
        with reading(path), open(path, "rb", opener=at_once) as file:
            found = os.fstat(file.fileno())
            if not found.st_size:
                raise ValueError("cannot map an empty file")
            self._length = found.st_size
            self._file = (found.st_dev, found.st_ino)
            self._address = _map(file.fileno(), self._length)
        self.memory = _memory_at(self._address, self._length).toreadonly()

    def check_length(self) -> None:
        """Raise CorruptDatasetError if the file has been cut since it was opened: one system call.

        A file that was deleted or replaced stays as it was for those that have it open.
        """
        try:
            found = os.stat(self._name)  # half of the time that Path.stat takes
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:
            raise file_error(exc, self._path) from exc
        if (found.st_dev, found.st_ino) == self._file and found.st_size < self._length:
            raise CorruptDatasetError(
                f"{self._path} was cut while it was open: it has {found.st_size:,} bytes, expected {self._length:,}",
                hint="nothing may write to the files of a dataset; rlx verify says what is damaged",
            )

    def read_at_random(self) -> None:
        """Tell the kernel that reading ahead is of no use."""
        self._advise(mmap.MADV_RANDOM, 0, self._length)

    def read_soon(self, start: int, stop: int) -> None:
        """Tell the kernel that these bytes are about to be read."""
        first = start - start % mmap.PAGESIZE
        self._advise(mmap.MADV_WILLNEED, first, stop - first)

    def release(self) -> None:
        """Give back the pages that were read; they stay in the kernel's cache."""
        self._advise(mmap.MADV_DONTNEED, 0, self._length)

    def _advise(self, advice: int, start: int, length: int) -> None:
        # Advice may be refused; reading works all the same.
        _libc.madvise(self._address + start, length, advice)


class MemoryFile:
    """A part of a ``PageMemory``, with the interface of ``MappedFile``.

    Attributes:
        memory: all of it, read-only.
        start: where in a ``PageMemory`` it begins.
    """

    def __init__(self, memory: memoryview, start: int) -> None:
        self.memory, self.start = memory, start

    def read_at_random(self) -> None:
        """Do nothing: the kernel reads nothing ahead."""

    def read_soon(self, start: int, stop: int) -> None:
        """Do nothing: it is here."""

    def release(self) -> None:
        """Do nothing: its owner gives the memory back."""

    def check_length(self) -> None:
        """Do nothing: memory cannot be cut."""


def _map(descriptor: int, length: int, protection: int = mmap.PROT_READ, flags: int = mmap.MAP_SHARED) -> int:
    address: int = _libc.mmap(None, length, protection, flags, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def _memory_at(address: int, length: int) -> memoryview:
    """Return the memory of a map, which is undone when nothing refers to it any more."""
    mapped = (ctypes.c_char * length).from_address(address)
    weakref.finalize(mapped, _libc.munmap, address, length).atexit = False
    return memoryview(mapped).cast("B")


def shared_memory(descriptor: int, size: int) -> memoryview:
    """Return the first bytes of a file, which every process that has mapped them sees and may write to."""
    return memoryview(mmap.mmap(descriptor, size))


class PageMemory:
    """The pages of many files, numbered one file after the other, each file laid out as on disk.

    It has addresses for all bytes, of which only fetched pages take room.

    Args:
        lengths: bytes of each file, by name.

    Attributes:
        present: [pages] which are here.
        first: [files] number of the first page of each file.
    """

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.names = list(lengths)
        counts = -(-np.fromiter(lengths.values(), np.int64, len(lengths)) // PAGE_BYTES)
        self.first: Pages = np.cumsum(counts) - counts
        self._numbers = dict(zip(self.names, self.first.tolist(), strict=True))
        self._lengths = lengths
        total = int(counts.sum())
        self.present = np.zeros(total, bool)
        size = max(total * PAGE_BYTES, mmap.PAGESIZE)
        # Memory that takes no room before it is written to.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        self._address = _map(-1, size, mmap.PROT_READ | mmap.PROT_WRITE, flags)
        # A page of 2 MiB for one of 16 KiB would undo what this is for; where the system has none, nothing is lost.
        _libc.madvise(self._address, size, _NOHUGEPAGE)
        self._memory = _memory_at(self._address, size)

    def file(self, name: str) -> MemoryFile:
        """Return a file, to be read like a mapped one."""
        start = self._numbers[name] * PAGE_BYTES
        return MemoryFile(self._memory.toreadonly()[start : start + self._lengths[name]], start)

    def rows_at(self, starts: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return [n] rows of ``dtype``, copied from where they start in this memory; they need not be aligned."""
        size = dtype.itemsize
        windows = np.ndarray((len(self._memory) - size + 1,), f"V{size}", self._memory, strides=(1,))
        return windows[starts].view(dtype)

    def number(self, name: str, page: int) -> int:
        """Return number of a page of a file."""
        return int(self._numbers[name] + page)

    def by_file(self, pages: Pages) -> list[tuple[str, list[int]]]:
        """Return pages, ascending, as file and numbers of pages in it."""
        file = self.first.searchsorted(pages, side="right") - 1
        return [(self.names[i], (pages[file == i] - self.first[i]).tolist()) for i in np.unique(file).tolist()]

    def fill(self, page: int, content: bytes) -> None:
        """Put the content of a page."""
        start = page * PAGE_BYTES
        self._memory[start : start + len(content)] = content  # refused where it does not fit
        self.present[page] = True

    def drop(self, pages: Pages) -> None:
        """Give the memory of pages, ascending, back. Nobody may read them meanwhile."""
        if len(pages) and pages[0] < 0:
            raise IndexError(f"page {pages[0]}: expected 0 to {len(self.present) - 1}")
        self.present[pages] = False
        for first, stop in _runs(pages):
            _libc.madvise(self._address + first * PAGE_BYTES, (stop - first) * PAGE_BYTES, mmap.MADV_DONTNEED)

    @property
    def bytes(self) -> int:
        """Bytes of the pages that are here."""
        return int(self.present.sum()) * PAGE_BYTES


def _runs(pages: Pages) -> Iterator[tuple[int, int]]:
    """Yield start and stop of every run of consecutive numbers, ascending."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    edges = [0, *breaks.tolist(), len(pages)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield int(pages[start]), int(pages[stop - 1]) + 1
