"""libzstd: the copy that the zstandard package or Python itself brings along, whose functions the kernel calls."""

from __future__ import annotations

import ctypes
import weakref
from importlib.util import find_spec
from typing import Any

from rlx.store.native.library import POINTER

MODULES = ("zstandard._cffi", "backports.zstd._zstd", "_zstd")
SIZE = ctypes.c_size_t
_FUNCTIONS = (
    *("ZSTD_decompress_usingDDict", "ZSTD_createDDict_byReference", "ZSTD_createDCtx"),
    *("ZSTD_compress2", "ZSTD_compressSequences", "ZSTD_createCDict_advanced", "ZDICT_getDictHeaderSize"),
)


def libzstd() -> ctypes.CDLL:
    """Return libzstd.

    Raises:
        OSError: no package has all of its functions.
    """
    for name in MODULES:
        try:
            found = find_spec(name)
            zstd = ctypes.CDLL(found.origin) if found is not None and found.origin is not None else None
        except (ModuleNotFoundError, OSError):  # such as a module that is part of the interpreter
            continue
        if zstd is not None and all(hasattr(zstd, function) for function in _FUNCTIONS):
            zstd.ZSTD_createDDict_byReference.argtypes = [POINTER, SIZE]
            return zstd
    raise OSError(f"none of {', '.join(MODULES)} has libzstd")


def made(function: Any, *arguments: Any) -> int:
    """Return what a function of C makes.

    Raises:
        MemoryError: it made nothing.
    """
    function.restype = POINTER
    place: int | None = function(*arguments)
    if not place:
        raise MemoryError
    return place


def freed_with(owner: object, free: Any, place: int) -> None:
    """Let a function of C free what another made when its owner is gone."""
    free.argtypes = [POINTER]
    weakref.finalize(owner, free, place).atexit = False


class Digested:
    """A dictionary that libzstd digested for decoding; all threads share it.

    Attributes:
        place: where it is in memory, as long as this lives.
    """

    def __init__(self, zstd: ctypes.CDLL, dictionary: bytes) -> None:
        self.place = made(zstd.ZSTD_createDDict_byReference, dictionary, len(dictionary))
        freed_with(self, zstd.ZSTD_freeDDict, self.place)
        self._dictionary = dictionary  # which is not copied
