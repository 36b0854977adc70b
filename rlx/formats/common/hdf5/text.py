"""Text in HDF5, read without the library: text of variable length is in a heap, where damage makes HDF5 loop.

A dataset of such text holds references: the length of a text, its heap, and its number there. A heap has many texts,
so the last heaps read are cached.
"""

import math
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.chunks import MAX_CHUNK_BYTES

_MAX_TEXTS = 1000
_MAX_HEAP_BYTES = 2**24
_KEPT_HEAPS = 8
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
_HEAP = struct.Struct("<4sB3xQ")  # signature, version, total bytes
_OBJECT = struct.Struct("<HHIQ")  # number, references, unused, bytes
_FREE = 0
_CONTINUATION, _ATTRIBUTE = 16, 12  # messages of an object header
_MAX_HEADER_BYTES = 2**20
_GZIP, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
_FAILURES = (ValueError, struct.error, OSError, RuntimeError, TypeError, zlib.error)


def texts(parent: h5py.Group, name: str) -> list[str]:
    """Return the texts of a dataset, which is a list of texts or a single one."""
    found = hdf5_file.dataset(parent, name)
    if h5py.check_string_dtype(found.dtype) is None or found.size is None or not 0 < found.size <= _MAX_TEXTS:
        raise CorruptShardError(f"{hdf5_file.place(found)}: expected text, found {found.dtype}{list(found.shape)}")
    with TextRows(found) as rows:
        return [str(text) for text in rows.read(0, found.shape[0] if found.ndim else 1).reshape(-1)]


def is_text(found: h5py.Dataset) -> bool:
    """Return whether a dataset has rows of text."""
    return found.ndim > 0 and h5py.check_string_dtype(found.dtype) is not None


def unreadable(found: h5py.Dataset) -> str | None:
    """Return why a dataset of text cannot be read; None if it can be, or holds no text."""
    if not is_text(found):
        return None
    try:
        with TextRows(found) as rows:
            for start in range(0, len(found), _MAX_TEXTS):
                rows.read(start, min(start + _MAX_TEXTS, len(found)))
    except CorruptShardError as exc:
        return str(exc)
    return None


def text_attribute(parent: h5py.Group, name: str) -> Any:
    """Return an attribute of text of variable length; None if h5py has to read it.

    h5py reads attributes without values, those outside the object's header, and all in files of an unusual layout.
    """
    place, shape = f"{parent.file.filename}: {parent.name}", parent.attrs.get_id(name).shape
    try:
        plan = parent.file.id.get_create_plist()
        if shape is None or plan.get_userblock() or plan.get_sizes() != (8, 8):
            return None
        with Path(parent.file.filename).open("rb") as file:
            content = _attribute(file, h5py.h5o.get_info(parent.id).addr, name.encode())
            if content is None:
                return None
            count = math.prod(shape)
            references = np.frombuffer(content, _REFERENCE, count).tolist() if count else []
            found = _objects(
                (_Heap(file, heap).text(number, length) if length else "" for length, heap, number in references),
                shape,
            )
    except _FAILURES as exc:
        raise CorruptShardError(f"{place}/{name} (an attribute) is damaged: expected text, found {exc}") from exc
    return found if shape else found.item()


def _attribute(file: BinaryIO, address: int, name: bytes) -> bytes | None:
    for kind, message in _messages(file, address):
        if kind == _ATTRIBUTE:
            version, _, *sizes = struct.unpack_from("<BBHHH", message)
            if version == 1:
                sizes = [-(-size // 8) * 8 for size in sizes]
            start = 8 + (version == 3)
            if message[start : start + sizes[0]].rstrip(b"\0") == name:
                return message[start + sum(sizes) :]
    return None


def _messages(file: BinaryIO, address: int) -> Iterator[tuple[int, bytes]]:
    file.seek(address)
    head = file.read(64)
    if is_new := head.startswith(b"OHDR"):
        flags = head[5]
        start = 6 + 16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1)
        width = 1 << (flags & 3)
        size, start = int.from_bytes(head[start : start + width], "little"), start + width
        message = struct.Struct("<BHB2x" if flags >> 2 & 1 else "<BHB")
    else:
        size, start, message = struct.unpack_from("<I", head, 8)[0], 16, struct.Struct("<HHB3x")
    blocks, total = [(address + start, size)], 0
    for offset, length in blocks:
        total += length
        if length < 0 or total > _MAX_HEADER_BYTES:
            raise ValueError("an object header of negative size, or of more than a megabyte")
        file.seek(offset)
        content, position = file.read(length), 0
        while position + message.size <= len(content):
            kind, used, _ = message.unpack_from(content, position)
            body = content[position + message.size : position + message.size + used]
            position += message.size + used
            if kind == _CONTINUATION:
                more, bytes_there = struct.unpack("<QQ", body)
                # A newer one begins with a signature, and ends in a checksum.
                blocks.append((more + 4, bytes_there - 8) if is_new else (more, bytes_there))
            yield kind, body


class TextRows:
    """Reader of rows of a dataset of text; a context manager, which closes the file."""

    def __init__(self, found: h5py.Dataset) -> None:
        self._found = found
        self._place = hdf5_file.place(found)
        self._length = h5py.check_string_dtype(found.dtype).length
        self._shape = found.shape or (1,)
        self._file: BinaryIO | None = None
        self._heaps: OrderedDict[int, _Heap] = OrderedDict()

    def __enter__(self) -> "TextRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows [stop - start, ...], each an object of type ``str``."""
        if self._length is not None:
            with self._damage():
                return _objects(map(_decoded, self._fixed(start, stop)), (stop - start, *self._shape[1:]))
        with self._damage():
            references = self._references(start, stop)
            return _objects(map(self._text, references.reshape(-1).tolist()), references.shape)

    def _fixed(self, start: int, stop: int) -> list[bytes]:
        rows = hdf5_file.read(self._found, start, stop) if self._found.ndim else hdf5_file.read_all(self._found)
        words: list[bytes] = np.asarray(rows).reshape(-1).tolist()
        return words

    def _text(self, reference: tuple[int, int, int]) -> str:
        length, place, number = reference
        if not length:
            return ""
        if place not in self._heaps:
            if len(self._heaps) >= _KEPT_HEAPS:
                self._heaps.popitem(last=False)
            self._heaps[place] = _Heap(self._opened(), place)
        self._heaps.move_to_end(place)
        return self._heaps[place].text(number, length)

    def _references(self, start: int, stop: int) -> NDArray[Any]:
        if self._found.file.userblock_size:
            raise ValueError("a file with a user block")
        if self._found.chunks is None:
            offset = self._found.id.get_offset()
            if offset is None:
                raise ValueError("text that is not stored in the file")
            row = _REFERENCE.itemsize * math.prod(self._shape[1:])
            content = self._bytes(offset + start * row, (stop - start) * row)
            return np.frombuffer(content, _REFERENCE).reshape(stop - start, *self._shape[1:])
        found = np.zeros((stop - start, *self._shape[1:]), _REFERENCE)
        size = self._found.chunks
        first = start // size[0] * size[0]
        for corner in product(*map(range, (first, *[0] * (len(size) - 1)), (stop, *self._shape[1:]), size)):
            chunk = self._chunk(corner)
            low = max(start, corner[0])
            rows = chunk[low - corner[0] : stop - corner[0]]
            ends = [min(at + length, end) for at, length, end in zip(corner, size, self._shape, strict=True)]
            kept = rows[: ends[0] - low, *(slice(end - at) for at, end in zip(corner[1:], ends[1:], strict=True))]
            target = (slice(low - start, low - start + len(kept)),)
            found[target + tuple(map(slice, corner[1:], ends[1:]))] = kept
        return found

    def _chunk(self, corner: tuple[int, ...]) -> NDArray[Any]:
        shape = self._found.chunks
        expected = math.prod(shape) * _REFERENCE.itemsize
        if expected > MAX_CHUNK_BYTES:
            raise ValueError(f"chunks of {expected:,} bytes, expected at most {MAX_CHUNK_BYTES:,}")
        stored = self._found.id.get_chunk_info_by_coord(corner)
        if stored.byte_offset is None:
            return np.zeros(shape, _REFERENCE)
        content = self._bytes(stored.byte_offset, stored.size)
        plan = self._found.id.get_create_plist()
        for number in reversed(range(plan.get_nfilters())):
            if not stored.filter_mask & 1 << number:
                content = _unfiltered(content, plan.get_filter(number)[0], expected)
        if len(content) != expected:
            raise ValueError(f"{len(content):,} bytes of references in a chunk, not {expected:,}")
        return np.frombuffer(content, _REFERENCE).reshape(shape)

    def _bytes(self, offset: int, size: int) -> bytes:
        file = self._opened()
        file.seek(0, 2)
        if offset + size > file.tell():
            raise ValueError("references past the end of the file")
        file.seek(offset)
        return file.read(size)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = Path(self._found.file.filename).open("rb")  # noqa: SIM115  (see __exit__)
        return self._file

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as exc:
            raise CorruptShardError(f"{self._place} is damaged: expected text, found {exc}") from exc


class _Heap:
    """One heap, whose texts are decoded when first read."""

    def __init__(self, file: BinaryIO, place: int) -> None:
        file.seek(place)
        signature, version, size = _HEAP.unpack(file.read(_HEAP.size))
        if signature != b"GCOL" or version != 1 or not _HEAP.size < size <= _MAX_HEAP_BYTES:
            raise ValueError(f"no heap at {place}")
        self._content = file.read(size - _HEAP.size)
        self._places = dict(self._objects())
        self._texts: dict[tuple[int, int], str] = {}

    def text(self, number: int, length: int) -> str:
        if (number, length) not in self._texts:
            start, size = self._places.get(number, (0, 0))
            if length > size:
                raise ValueError(f"no object {number} of {length} bytes in a heap")
            # The library ends a text at a NUL, which some programs store too.
            self._texts[number, length] = _decoded(self._content[start : start + length].partition(b"\0")[0])
        return self._texts[number, length]

    def _objects(self) -> Iterator[tuple[int, tuple[int, int]]]:
        position = 0
        while position + _OBJECT.size <= len(self._content):
            number, _, _, size = _OBJECT.unpack_from(self._content, position)
            start = position + _OBJECT.size
            if number == _FREE or size > len(self._content) - start:
                return
            yield number, (start, size)
            position = start + -(-size // 8) * 8


def _unfiltered(content: bytes, filter: int, expected: int) -> bytes:
    if filter == _GZIP:
        return zlib.decompressobj().decompress(content, expected + 1)
    if filter == _SHUFFLE:
        return np.frombuffer(content, np.uint8).reshape(_REFERENCE.itemsize, -1).T.tobytes()
    raise ValueError(f"a filter of number {filter}")


def _decoded(text: bytes) -> str:
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as exc:
        raise ValueError(f"{text[:40]!r}, which is not UTF-8") from exc


def _objects(words: Iterator[str], shape: tuple[int, ...]) -> NDArray[Any]:
    rows = np.empty(math.prod(shape), object)
    rows[:] = list(words)
    return rows.reshape(shape)
