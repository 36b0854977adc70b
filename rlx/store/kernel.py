"""The compiled kernel (``frames.c``): it reads compressed rows by one call, without the interpreter lock.

It is optional. Where it was not built, or ``RLX_KERNEL=0``, ``FieldFiles`` does the same in Python. The kernel is not
linked to libzstd: it is given the function of the copy that the zstandard package brings along, or Python itself.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError

logger = logging.getLogger(__name__)
SWITCH = "RLX_KERNEL"
LIBRARY = Path(__file__).with_name("frames.so")
_VERSION = 4  # of the compiled functions
_ZSTD_MODULES = ("zstandard._cffi", "backports.zstd._zstd", "_zstd")
_ZSTD_FUNCTIONS = ("ZSTD_decompress_usingDDict", "ZSTD_createDDict_byReference", "ZSTD_createDCtx")
_OUTSIDE, _DAMAGED = 1, 2
Numbers = NDArray[np.int64]
_ADDRESS, _SIZE = ctypes.c_void_p, ctypes.c_size_t


def address(array: Any) -> int:
    """Return where the elements of an array are in memory."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # a third of the time of the other
    except (TypeError, ValueError):  # read-only, or of no bytes
        found: int = array.__array_interface__["data"][0]
        return found


class FileTable(ctypes.Structure):
    """``struct files`` of ``frames.c``."""

    _fields_ = (
        ("origin", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("data", "size", "rows", "codec", "dictionaries")),
        ("row_bytes", ctypes.c_int64),
    )


class Kernel:
    """The compiled kernel."""

    def __init__(self, frames: ctypes.CDLL) -> None:
        self._read, self._decode = frames.rlx_read_frames, frames.rlx_decode_frames
        self._read.argtypes = [_ADDRESS, _ADDRESS, ctypes.c_int64, ctypes.c_int64, *[_ADDRESS] * 4]
        self._decode.argtypes = [_ADDRESS, ctypes.c_int64, *[_ADDRESS] * 3, ctypes.c_int64, _ADDRESS, _ADDRESS]
        self._read.restype = self._decode.restype = ctypes.c_int64
        zstd = _zstd()
        self._decompress = ctypes.cast(zstd.ZSTD_decompress_usingDDict, _ADDRESS).value
        self._new_context, self._free_context = zstd.ZSTD_createDCtx, zstd.ZSTD_freeDCtx
        self._digest, self._free_digested = zstd.ZSTD_createDDict_byReference, zstd.ZSTD_freeDDict
        self._is_error, self._error_name = zstd.ZSTD_isError, zstd.ZSTD_getErrorName
        for function in (self._new_context, self._digest):
            function.restype = _ADDRESS
        for function in (self._free_context, self._free_digested):
            function.argtypes, function.restype = [_ADDRESS], _SIZE
        self._digest.argtypes = [_ADDRESS, _SIZE]
        self._is_error.argtypes = self._error_name.argtypes = [_SIZE]
        self._error_name.restype = ctypes.c_char_p
        self._local = threading.local()

    def digested(self, owner: object, dictionary: bytes) -> int:
        """Return the address of a digested dictionary, which lives as long as its owner; 0 of an empty one.

        It refers to the dictionary, which is not copied.
        """
        if not dictionary:
            return 0
        made: int | None = self._digest(dictionary, len(dictionary))
        if not made:
            raise MemoryError
        weakref.finalize(owner, self._free, made, dictionary).atexit = False
        return made

    def _free(self, digested: int, dictionary: bytes) -> None:  # noqa: ARG002  (it must live until then)
        self._free_digested(digested)

    @property
    def _decoder(self) -> int:
        decoder: _Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            context: int | None = self._new_context()
            if not context:
                raise MemoryError
            self._local.decoder = decoder = _Decoder(self._decompress, context)
            weakref.finalize(decoder, self._free_context, context).atexit = False
        return ctypes.addressof(decoder)

    def read(self, table: int, shard: Numbers, row: Numbers, out: NDArray[np.uint8]) -> None:
        """Decode runs of consecutive rows into ``out``.

        Args:
            table: address of a ``FileTable``.
            shard: [n] the shard of each run.
            row: [n] the first of its rows.
            out: [rows of a run * n, row_bytes]: the first rows of all runs, then the second ones.
        """
        shard, row = np.ascontiguousarray(shard, np.int64), np.ascontiguousarray(row, np.int64)
        found, count = ctypes.c_int64(), len(row)
        places = address(shard), address(row), address(out)
        status = self._read(self._decoder, table, count, len(out) // count, *places, ctypes.byref(found))
        if status:
            self._check(status, found, out)

    def decode(self, frame: Numbers, size: NDArray[Any], dictionary: Numbers, out: NDArray[np.uint8]) -> None:
        """Decode frames in the memory of this process, which nobody may have damaged, into ``out``.

        Args:
            frame: [n] address of each.
            size: [n] its bytes.
            dictionary: [n] address of its dictionary, by ``digested``; 0 for none.
            out: [n, row_bytes].
        """
        found = ctypes.c_int64()
        columns = [np.ascontiguousarray(column, np.int64) for column in (frame, size, dictionary)]
        places = map(address, columns)
        status = self._decode(self._decoder, len(frame), *places, out.shape[1], address(out), ctypes.byref(found))
        if status:
            self._check(status, found, out)

    def _check(self, status: int, result: ctypes.c_int64, out: NDArray[np.uint8]) -> None:
        if status == _OUTSIDE:
            raise CorruptDatasetError("the index of compressed rows points past the end of its file")
        if status == _DAMAGED:
            found = result.value % 2**64
            if self._is_error(found):
                raise CorruptDatasetError(f"a compressed chunk is damaged: {self._error_name(found).decode()}")
            raise CorruptDatasetError(f"a compressed chunk holds {found:,} bytes, expected {out.shape[1]:,}")
        raise MemoryError


class _Decoder(ctypes.Structure):
    """``struct decoder`` of ``frames.c``."""

    _fields_ = (("decompress", _ADDRESS), ("context", _ADDRESS))


def _zstd() -> ctypes.CDLL:
    for name in _ZSTD_MODULES:
        try:
            found = find_spec(name)
            library = ctypes.CDLL(found.origin) if found is not None and found.origin is not None else None
        except (ModuleNotFoundError, OSError):  # such as a module that is part of the interpreter
            continue
        if library is not None and all(hasattr(library, function) for function in _ZSTD_FUNCTIONS):
            return library
    raise OSError(f"none of {', '.join(_ZSTD_MODULES)} has libzstd")


def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None if they were not built, are of another version, or are switched off."""
    if os.environ.get(SWITCH) == "0" or not LIBRARY.exists():
        return None
    try:
        compiled = ctypes.CDLL(os.fspath(LIBRARY))
        found = int(compiled.rlx_version())
    except (OSError, AttributeError) as exc:
        logger.info("the compiled kernel is not used: %s", exc)
        return None
    if found != _VERSION:
        logger.info("the compiled kernel is not used: %s has version %d, expected %d", LIBRARY, found, _VERSION)
        return None
    return compiled


@lru_cache(maxsize=1)
def kernel() -> Kernel | None:
    """Return the compiled kernel; None without ``library`` or libzstd."""
    if (compiled := library()) is None:
        return None
    try:
        return Kernel(compiled)
    except OSError as exc:
        logger.info("the compiled kernel is not used: %s", exc)
        return None
