"""The header of an ``.npy`` array. It is matched, never evaluated, and only plain numbers are accepted."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

_MAX_BYTES = 10_000
_MAGIC = re.compile(rb"\x93NUMPY[\x01\x02]\x00")
# Python 2, which wrote some of these files, puts an L after long integers.
_HEADER = re.compile(
    r"\{'descr': '([<|][biuf]\d{1,2}|<U[1-9]\d{0,8}|\|S[1-9]\d{0,8})', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,18}L?, ?){0,8}(?:\d{1,18}L?)?)\), \} *\n"
)


class MalformedNpyError(ValueError):
    """The bytes are no ``.npy`` array of numbers."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def read_header(read: Callable[[int], bytes], *, text: bool = False) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of the array that a stream holds, which is left at the first of its values.

    Args:
        read: returns the next bytes of the stream, as many as asked for.
        text: whether the array may be one of texts.

    Raises:
        MalformedNpyError: it is none, or one of objects, texts or columns.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.save(file, np.zeros((2, 3), np.float32))
        >>> _ = file.seek(0)
        >>> read_header(file.read)
        (dtype('float32'), (2, 3))
    """
    magic = read(8)
    if not _MAGIC.fullmatch(magic):
        raise MalformedNpyError("an npy array of version 1 or 2", repr(magic))
    length = int.from_bytes(read(2 if magic[6] == 1 else 4), "little")
    if length > _MAX_BYTES:
        raise MalformedNpyError(f"a header of at most {_MAX_BYTES:,} bytes", f"{length:,}")
    header = read(length).decode("latin1")
    match = _HEADER.fullmatch(header)
    if match is None or (match[2] == "True" and match[3].count(",") > 1) or (match[1][1] in "US" and not text):
        raise MalformedNpyError("the npy header of a C-ordered array of numbers", repr(header[:80].strip()))
    try:
        dtype = np.dtype(match[1])
    except (TypeError, ValueError) as exc:
        raise MalformedNpyError("a type that numpy knows", repr(match[1])) from exc
    return dtype, tuple(int(n) for n in re.findall(r"\d+", match[3]))
