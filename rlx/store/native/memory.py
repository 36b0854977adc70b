"""Memory of arrays: of decoded rows, which is used again; aligned, in huge pages; or somebody else's."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.store.native.library import address

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


_LINE_BYTES = 64
_HUGE_BYTES = 16 << 20


def zeros(count: int, dtype: type) -> NDArray[Any]:
    """Return zeros that begin with a line of the cache, so that 32 of them are in as few as can be.

    Many are in huge pages, where the system has them: most of the time of a random access is to find its page.
    """
    size = count * np.dtype(dtype).itemsize
    if size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype)
    raw = np.zeros(size + _LINE_BYTES, np.uint8)
    return raw[-address(raw) % _LINE_BYTES :][:size].view(dtype)


def writable(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an array that may be written to, in the memory of one that only its owner calls read-only."""
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    def __init__(self, array: NDArray[np.uint8]) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (address(array), False)}
