"""``tf.train.Example`` as TFRecord, of any length: the values wait in files until all are known."""

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

import google_crc32c
import numpy as np
from numpy.typing import NDArray

BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
# The limit of protobuf, and so of every reader.
MAX_BYTES = 2**31 - 1
_IN_MEMORY_BYTES = 2**16
_PIECE_BYTES = 2**17


class ExampleTooLongError(ValueError):
    """An example is longer than any reader takes."""


class ExampleSpool:
    """The values of one example after another, gathered piece by piece.

    Args:
        kinds: of list that the values of every feature make, by its name.
        directory: for temporary files.
    """

    def __init__(self, kinds: Mapping[str, int], directory: Path) -> None:
        self._kinds = kinds
        self._stack = ExitStack()
        self._files: dict[str, IO[bytes]] = {
            name: self._stack.enter_context(_temporary(directory)) for name in sorted(kinds)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add_bytes(self, name: str, values: Iterable[bytes]) -> None:
        """Add texts to a feature."""
        for value in values:
            self._files[name].write(_head(1, len(value)) + value)

    def add_numbers(self, name: str, values: NDArray[np.generic]) -> None:
        """Add numbers to a feature: float32, or integers as far as 64 bits go."""
        if self._kinds[name] == FLOAT_LIST:
            self._files[name].write(values.astype("<f4").tobytes())
        else:
            self._files[name].write(varints(values.astype(np.int64).reshape(-1)))

    def pop(self) -> Iterator[bytes]:
        """Yield the example that has been gathered as a record, in pieces; the next one begins."""
        entries = {name: self._entry(name) for name in self._files}
        features = sum(size for _, size in entries.values())
        head = _head(1, features)
        size = len(head) + features
        if size > MAX_BYTES:
            raise ExampleTooLongError(f"an example of {size:,} bytes; expected at most {MAX_BYTES:,}")
        length = struct.pack("<Q", size)
        yield length + masked_crc(google_crc32c.value(length))
        crc = 0
        for piece in self._pieces(head, entries):
            crc = google_crc32c.extend(crc, piece)
            yield piece
        yield masked_crc(crc)

    def _pieces(self, head: bytes, entries: Mapping[str, tuple[bytes, int]]) -> Iterator[bytes]:
        yield head
        for name, (before, _) in entries.items():
            yield before
            file = self._files[name]
            file.seek(0)
            while piece := file.read(_PIECE_BYTES):
                yield piece
            file.seek(0)
            file.truncate()

    def _entry(self, name: str) -> tuple[bytes, int]:
        """Return the bytes before the values of a feature, and the length of both."""
        size = self._files[name].tell()
        # Numbers are one field, packed; each text was written with a head of its own.
        before = b"" if self._kinds[name] == BYTES_LIST else _head(1, size)
        for number in (self._kinds[name], 2):
            before = _head(number, len(before) + size) + before
        key = name.encode()
        before = _head(1, len(key)) + key + before
        before = _head(1, len(before) + size) + before
        return before, len(before) + size


def _temporary(directory: Path) -> IO[bytes]:
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, "w+b", dir=str(directory))  # noqa: SIM115
    return file


def masked_crc(crc: int) -> bytes:
    """Return a crc32c as TFRecord stores it."""
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def varints(values: NDArray[np.int64]) -> bytes:
    """Return integers as protobuf packs them, negative ones in two's complement.

    Example:
        >>> varints(np.array([5, 300, -1]))
        b'\\x05\\xac\\x02\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x01'
    """
    rest = values.view(np.uint64)
    if not len(rest) or rest.max() < 0x80:
        return rest.astype(np.uint8).tobytes()
    shifted = rest[:, None] >> np.arange(0, 70, 7, dtype=np.uint64).clip(max=63)
    groups = (shifted & np.uint64(0x7F)).astype(np.uint8)
    groups[:, 9] = (rest >> np.uint64(63)).astype(np.uint8)
    used = groups != 0
    count = 10 - np.argmax(used[:, ::-1], axis=1)
    count[~used.any(1)] = 1
    place = np.arange(10)
    groups[place < count[:, None] - 1] |= 0x80
    packed: bytes = groups[place < count[:, None]].tobytes()
    return packed


def _head(number: int, size: int) -> bytes:
    """Return the bytes before a field of ``size`` bytes."""
    return bytes([number << 3 | 2]) + varints(np.array([size]))
