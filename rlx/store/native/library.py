"""The library of compiled functions (``frames.c``, ``gather.c``, ``priority_tree.c``), and where arrays are in memory.

It is optional: where it was not built, or ``RLX_KERNEL=0``, rlx does the same in Python.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)
SWITCH = "RLX_KERNEL"
LIBRARY = Path(__file__).with_name("compiled.so")
VERSION = 7  # of the compiled functions
POINTER, INT64 = ctypes.c_void_p, ctypes.c_int64
# Statuses that the functions return.
OUTSIDE, DAMAGED = 1, 2


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
    if found != VERSION:
        logger.info("the compiled kernel is not used: %s has version %d, expected %d", LIBRARY, found, VERSION)
        return None
    return compiled


# For arrays that may be written to, a third of the time of any other way; refuses arrays with gaps or of no bytes.
at: Any = ctypes.c_char.from_buffer
place_of = ctypes.addressof
_INT64 = np.dtype(np.int64)


def address(array: Any) -> int:
    """Return where the elements of a numpy array without gaps are in memory, to be read.

    Raises:
        ValueError: it has gaps.
    """
    try:
        return place_of(at(array))
    except (TypeError, ValueError):
        if not array.flags.c_contiguous:
            raise ValueError("expected an array without gaps") from None
        found: int = array.__array_interface__["data"][0]
        return found


def room_of(array: Any) -> int:
    """Return where the elements of a numpy array without gaps are in memory, to be written.

    Raises:
        ValueError: it has gaps or is read-only.
    """
    try:
        return place_of(at(array))
    except (TypeError, ValueError):
        if array.nbytes:
            raise ValueError("expected an array without gaps that may be written to") from None
        return 0


def columns(count: int, *arrays: NDArray[Any]) -> Sequence[NDArray[np.int64]]:
    """Return arrays as int64 without gaps, to be read by a compiled function.

    Raises:
        ValueError: one has not the shape [count].
    """
    made = []
    for array in arrays:
        if array.shape != (count,):
            raise ValueError(f"expected {count:,} numbers, found an array {list(array.shape)}")
        made.append(np.ascontiguousarray(array, _INT64))
    return made
