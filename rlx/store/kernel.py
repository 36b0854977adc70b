"""The compiled kernel (``frames.c``): it reads and writes compressed rows by one call, without the interpreter lock.

It is optional. Where it was not built, or ``RLX_KERNEL=0``, ``FieldFiles`` and ``ZstdChunks`` do the same in Python.
The kernel is not linked to libzstd: it is given functions of the copy that the zstandard package brings along, or
Python itself.
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
_VERSION = 5  # of the compiled functions
_ZSTD_MODULES = ("zstandard._cffi", "backports.zstd._zstd", "_zstd")
_ZSTD_FUNCTIONS = (
    *("ZSTD_decompress_usingDDict", "ZSTD_createDDict_byReference", "ZSTD_createDCtx"),
    *("ZSTD_compress2", "ZSTD_compressSequences", "ZSTD_createCDict_advanced", "ZDICT_getDictHeaderSize"),
)
_LEVEL, _DICTIONARY_ID = 100, 202  # of ZSTD_cParameter
_BY_REFERENCE, _ANY_CONTENT = 1, 0
_SEQUENCES_SINCE = 10507  # version of libzstd that ZSTD_compressSequences, which is experimental, was tested with
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
        self.frames, self.zstd = frames, zstd
        self._decompress = ctypes.cast(zstd.ZSTD_decompress_usingDDict, _ADDRESS).value
        self._digest, self._free_digested = zstd.ZSTD_createDDict_byReference, zstd.ZSTD_freeDDict
        self._digest.argtypes, self._free_digested.argtypes = [_ADDRESS, _SIZE], [_ADDRESS]
        self.is_error, self.error_name = zstd.ZSTD_isError, zstd.ZSTD_getErrorName
        self.is_error.argtypes = self.error_name.argtypes = [_SIZE]
        self.error_name.restype = ctypes.c_char_p
        self._local = threading.local()

    def digested(self, owner: object, dictionary: bytes) -> int:
        """Return the address of a digested dictionary, which lives as long as its owner; 0 of an empty one.

        It refers to the dictionary, which is not copied.
        """
        if not dictionary:
            return 0
        made = _made(self._digest, dictionary, len(dictionary))
        weakref.finalize(owner, self._free, made, dictionary).atexit = False
        return made

    def _free(self, digested: int, dictionary: bytes) -> None:  # noqa: ARG002  (it must live until then)
        self._free_digested(digested)

    @property
    def _decoder(self) -> int:
        decoder: _Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            context = _made(self.zstd.ZSTD_createDCtx)
            self._local.decoder = decoder = _Decoder(self._decompress, context)
            _freed_with(decoder, self.zstd.ZSTD_freeDCtx, context)
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
            if self.is_error(found):
                raise CorruptDatasetError(f"a compressed chunk is damaged: {self.error_name(found).decode()}")
            raise CorruptDatasetError(f"a compressed chunk holds {found:,} bytes, expected {out.shape[1]:,}")
        raise MemoryError


class Search(ctypes.Structure):
    """``ZSTD_compressionParameters``: how libzstd looks for matches."""

    _fields_ = tuple(
        (name, ctypes.c_uint)
        for name in ("window_log", "chain_log", "hash_log", "search_log", "min_match", "target_length", "strategy")
    )


class _Memory(ctypes.Structure):
    """``ZSTD_customMem``; all zero is the C library's memory."""

    _fields_ = tuple((name, _ADDRESS) for name in ("allocate", "free", "opaque"))


class Encoder:
    """``struct encoder`` of ``frames.c``: encodes rows of equal size, in one thread at a time.

    Args:
        compiled: the kernel.
        row_bytes: bytes of a row.
        level: zstd level of an encoder without a dictionary.
        dictionary: rows, possibly after entropy tables, that those to be encoded resemble.
        search: how libzstd looks for matches in the dictionary.
    """

    def __init__(self, compiled: Kernel, row_bytes: int, level: int, dictionary: bytes, search: Search | None) -> None:
        frames, zstd = compiled.frames, compiled.zstd
        self.kernel = compiled
        self._encode = frames.rlx_encode_frames
        self._encode.argtypes = [_ADDRESS, ctypes.c_int64, *[_ADDRESS] * 3, ctypes.c_int64, *[_ADDRESS] * 2]
        self._encode.restype = ctypes.c_int64
        context = _made(zstd.ZSTD_createCCtx)
        _freed_with(self, zstd.ZSTD_freeCCtx, context)
        set_parameter = zstd.ZSTD_CCtx_setParameter
        set_parameter.argtypes = [_ADDRESS, ctypes.c_int, ctypes.c_int]
        references = 0
        if search is None:
            set_parameter(context, _LEVEL, level)
        else:
            set_parameter(context, _DICTIONARY_ID, 0)
            zstd.ZSTD_createCDict_advanced.argtypes = [_ADDRESS, _SIZE, ctypes.c_int, ctypes.c_int, Search, _Memory]
            content = dictionary, len(dictionary)
            digested = _made(zstd.ZSTD_createCDict_advanced, *content, _BY_REFERENCE, _ANY_CONTENT, search, _Memory())
            _freed_with(self, zstd.ZSTD_freeCDict, digested)
            zstd.ZSTD_CCtx_refCDict.argtypes = [_ADDRESS, _ADDRESS]
            zstd.ZSTD_CCtx_refCDict(context, digested)
            if zstd.ZSTD_versionNumber() >= _SEQUENCES_SINCE:
                zstd.ZDICT_getDictHeaderSize.argtypes, zstd.ZDICT_getDictHeaderSize.restype = [_ADDRESS, _SIZE], _SIZE
                tables = zstd.ZDICT_getDictHeaderSize(*content)
                references = (len(dictionary) - (0 if compiled.is_error(tables) else tables)) // row_bytes
        zstd.ZSTD_compressBound.argtypes, zstd.ZSTD_compressBound.restype = [_SIZE], _SIZE
        frames.rlx_new_encoder.argtypes = [*[_ADDRESS] * 3, *[ctypes.c_int64] * 2, _ADDRESS, ctypes.c_int64]
        self._encoder = _made(
            frames.rlx_new_encoder,
            *(ctypes.cast(function, _ADDRESS) for function in (zstd.ZSTD_compress2, zstd.ZSTD_compressSequences)),
            *(context, row_bytes, references),
            address(np.frombuffer(dictionary, np.uint8)) + len(dictionary),
            zstd.ZSTD_compressBound(row_bytes),
        )
        _freed_with(self, frames.rlx_free_encoder, self._encoder)
        self._dictionary = dictionary  # which is not copied

    def encode(self, rows: Numbers, like: Numbers, out: NDArray[np.uint8], sizes: NDArray[np.int32]) -> int:
        """Write frames after each other to ``out``; return how many rows are done when one does not fit, or all.

        Args:
            rows: [n] address of each row.
            like: [n] address of a row that each may repeat; 0 for none.
            out: room for the frames.
            sizes: [n] set to the bytes of each frame, of the first that does not fit too; 0 of a row that repeats the
                other one, and has no frame.
        """
        done = ctypes.c_int64()
        places = address(rows), address(like), address(out)
        if self._encode(self._encoder, len(rows), *places, len(out), address(sizes), ctypes.byref(done)):
            raise RuntimeError(f"libzstd: {self.kernel.error_name(done.value % 2**64).decode()}")
        return done.value


def _made(function: Any, *arguments: Any) -> int:
    function.restype = _ADDRESS
    made: int | None = function(*arguments)
    if not made:
        raise MemoryError
    return made


def _freed_with(owner: object, free: Any, made: int) -> None:
    free.argtypes = [_ADDRESS]
    weakref.finalize(owner, free, made).atexit = False


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
