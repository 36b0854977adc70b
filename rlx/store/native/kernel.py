"""The compiled kernel (``frames.c``): it reads and writes compressed rows by one call, without the interpreter lock.

Without it, ``FieldFiles`` and ``ZstdChunks`` do the same in Python. It is not linked to libzstd: it is given functions
of ``libzstd``.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.store.native.gather import FileTable
from rlx.store.native.library import DAMAGED, INT64, OUTSIDE, POINTER, address, columns, library, room_of
from rlx.store.native.libzstd import SIZE, Digested, freed_with, libzstd, made

logger = logging.getLogger(__name__)
_LEVEL, _DICTIONARY_ID = 100, 202  # of ZSTD_cParameter
_BY_REFERENCE, _ANY_CONTENT = 1, 0
_SEQUENCES_SINCE = 10507  # version of libzstd that ZSTD_compressSequences, which is experimental, was tested with
Numbers = NDArray[np.int64]
RowArrays = Sequence[NDArray[np.uint8]]


class Kernel:
    """The compiled kernel."""

    def __init__(self, frames: ctypes.CDLL, zstd: ctypes.CDLL) -> None:
        self.frames, self.zstd = frames, zstd
        self._read, self._decode = frames.rlx_read_frames, frames.rlx_decode_frames
        self._read.argtypes = [POINTER, POINTER, INT64, INT64, *[POINTER] * 3, INT64, POINTER]
        self._decode.argtypes = [POINTER, POINTER, INT64, *[POINTER] * 4, INT64, POINTER]
        self._read.restype = self._decode.restype = INT64
        self._decompress = ctypes.cast(zstd.ZSTD_decompress_usingDDict, POINTER).value
        self.is_error, self.error_name = zstd.ZSTD_isError, zstd.ZSTD_getErrorName
        self.is_error.argtypes = self.error_name.argtypes = [SIZE]
        self.error_name.restype = ctypes.c_char_p
        self._local = threading.local()

    def digested(self, dictionary: bytes) -> Digested | None:
        """Return a digested dictionary; None of an empty one."""
        return Digested(self.zstd, dictionary) if dictionary else None

    @property
    def _decoder(self) -> int:
        decoder: _Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            context = made(self.zstd.ZSTD_createDCtx)
            self._local.decoder = decoder = _Decoder(self._decompress, context)
            freed_with(decoder, self.zstd.ZSTD_freeDCtx, context)
        return ctypes.addressof(decoder)

    def read(self, files: FileTable, file: Numbers, row: Numbers, out: NDArray[np.uint8], run: int = 1) -> None:
        """Decode runs of consecutive rows into ``out``, as ``gather`` copies raw ones.

        Raises:
            CorruptDatasetError: a row is out of range, or damaged.
        """
        file, row = columns(len(row), file, row)
        found = INT64()
        places = address(file), address(row), room_of(out)
        status = self._read(self._decoder, files.place, len(row), run, *places, out.nbytes, ctypes.byref(found))
        if status:
            self._check(status, found, files)

    def decode(
        self, files: FileTable, file: Numbers, start: Numbers, size: NDArray[Any], out: NDArray[np.uint8]
    ) -> None:
        """Decode frames whose places are known into ``out``.

        Args:
            file: [n] the file of each.
            start: [n] where it begins there.
            size: [n] its bytes.
            out: [n, row_bytes].

        Raises:
            CorruptDatasetError: a frame is out of range, or damaged.
        """
        found, numbers = INT64(), columns(len(file), file, start, size)
        places = *map(address, numbers), room_of(out)
        status = self._decode(self._decoder, files.place, len(file), *places, out.nbytes, ctypes.byref(found))
        if status:
            self._check(status, found, files)

    def _check(self, status: int, result: ctypes.c_int64, files: FileTable) -> None:
        if status == OUTSIDE:
            raise CorruptDatasetError("the index of compressed rows points past the end of its file")
        if status == DAMAGED:
            found = result.value % 2**64
            if self.is_error(found):
                raise CorruptDatasetError(f"a compressed chunk is damaged: {self.error_name(found).decode()}")
            raise CorruptDatasetError(f"a compressed chunk holds {found:,} bytes, expected {files.row_bytes:,}")
        raise MemoryError


class Search(ctypes.Structure):
    """``ZSTD_compressionParameters``: how libzstd looks for matches."""

    _fields_ = tuple(
        (name, ctypes.c_uint)
        for name in ("window_log", "chain_log", "hash_log", "search_log", "min_match", "target_length", "strategy")
    )


class _Memory(ctypes.Structure):
    """``ZSTD_customMem``; all zero is the C library's memory."""

    _fields_ = tuple((name, POINTER) for name in ("allocate", "free", "opaque"))


class Encoder:
    """``struct encoder`` of ``frames.c``: encodes rows of equal size, in one thread at a time.

    Args:
        compiled: the kernel.
        row_bytes: bytes of a row.
        level: zstd level of an encoder without a dictionary.
        dictionary: rows, possibly after entropy tables, that those to be encoded resemble.
        search: how libzstd looks for matches in the dictionary.
        worth: zstd searches the dictionary if that saves more than ``1 / worth`` of the bytes; otherwise only what the
            last rows of the dictionary have at the same places is looked up, which is faster.
    """

    def __init__(
        self, compiled: Kernel, row_bytes: int, level: int, dictionary: bytes, search: Search | None, worth: int
    ) -> None:
        frames, zstd = compiled.frames, compiled.zstd
        self.kernel = compiled
        self._encode = frames.rlx_encode_frames
        self._encode.argtypes = [POINTER, INT64, POINTER, INT64, *[POINTER] * 3, INT64, *[POINTER] * 2]
        self._encode.restype = INT64
        context = made(zstd.ZSTD_createCCtx)
        freed_with(self, zstd.ZSTD_freeCCtx, context)
        set_parameter = zstd.ZSTD_CCtx_setParameter
        set_parameter.argtypes = [POINTER, ctypes.c_int, ctypes.c_int]
        references, content = 0, (dictionary, len(dictionary))
        if search is None:
            set_parameter(context, _LEVEL, level)
        else:
            set_parameter(context, _DICTIONARY_ID, 0)
            zstd.ZSTD_createCDict_advanced.argtypes = [POINTER, SIZE, ctypes.c_int, ctypes.c_int, Search, _Memory]
            digested = made(zstd.ZSTD_createCDict_advanced, *content, _BY_REFERENCE, _ANY_CONTENT, search, _Memory())
            freed_with(self, zstd.ZSTD_freeCDict, digested)
            zstd.ZSTD_CCtx_refCDict.argtypes = [POINTER, POINTER]
            zstd.ZSTD_CCtx_refCDict(context, digested)
            if zstd.ZSTD_versionNumber() >= _SEQUENCES_SINCE:
                zstd.ZDICT_getDictHeaderSize.argtypes, zstd.ZDICT_getDictHeaderSize.restype = [POINTER, SIZE], SIZE
                tables = zstd.ZDICT_getDictHeaderSize(*content)
                references = (len(dictionary) - (0 if compiled.is_error(tables) else tables)) // row_bytes
        zstd.ZSTD_compressBound.argtypes, zstd.ZSTD_compressBound.restype = [SIZE], SIZE
        frames.rlx_new_encoder.argtypes = [*[POINTER] * 3, *[INT64] * 2, POINTER, *[INT64] * 3]
        self._encoder = made(
            frames.rlx_new_encoder,
            *(ctypes.cast(function, POINTER) for function in (zstd.ZSTD_compress2, zstd.ZSTD_compressSequences)),
            *(context, row_bytes, references, *content, zstd.ZSTD_compressBound(row_bytes), worth),
        )
        freed_with(self, frames.rlx_free_encoder, self._encoder)
        self._row_bytes, self._dictionary = row_bytes, dictionary  # which is not copied

    def encode(
        self, arrays: RowArrays, rows: Numbers, like: Numbers, out: NDArray[np.uint8], sizes: NDArray[np.int32]
    ) -> int:
        """Write frames after each other to ``out``; return how many rows are done when one does not fit, or all.

        Args:
            arrays: where the rows are; those of one array after those of the other are numbered from 0 on.
            rows: [n] number of each row.
            like: [n] number of a row that each may repeat; -1 for none.
            out: room for the frames.
            sizes: [n] set to the bytes of each frame, of the first that does not fit too; 0 of a row that repeats the
                other one, and has no frame.

        Raises:
            IndexError: a row is out of range.
        """
        table = np.array([(address(array), len(array)) for array in arrays], np.int64)
        if any(array.dtype != np.uint8 or array.shape[1:] != (self._row_bytes,) for array in arrays):
            raise ValueError(f"expected arrays of uint8 [n, {self._row_bytes}]")
        if sizes.dtype != np.int32 or sizes.shape != rows.shape:
            raise ValueError(f"expected int32 [{len(rows)}] for the sizes")
        done, (rows, like) = INT64(), columns(len(rows), rows, like)
        places = address(rows), address(like), room_of(out), out.nbytes, room_of(sizes), ctypes.byref(done)
        status = self._encode(self._encoder, len(table), address(table), len(rows), *places)
        if status == OUTSIDE:
            raise IndexError(f"rows {rows.min()} to {rows.max()}: expected those of {sum(map(len, arrays))}")
        if status:
            raise RuntimeError(f"libzstd: {self.kernel.error_name(done.value % 2**64).decode()}")
        return done.value


class _Decoder(ctypes.Structure):
    """``struct decoder`` of ``frames.c``."""

    _fields_ = (("decompress", POINTER), ("context", POINTER))


@lru_cache(maxsize=1)
def kernel() -> Kernel | None:
    """Return the compiled kernel; None without ``library`` or libzstd."""
    if (compiled := library()) is None:
        return None
    try:
        return Kernel(compiled, libzstd())
    except OSError as exc:
        logger.info("the compiled kernel is not used: %s", exc)
        return None
