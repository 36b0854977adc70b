"""HDF5 files read without trust: every error names the file, and no link is followed.

An HDF5 file may point at other files (links, external storage, virtual datasets), so a stranger's file could read any
file of the user. It may also declare far more than it holds, or contain cycles.
"""

import math
import struct
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, RlxError, SchemaMismatchError
from rlx.files.disk import check_readable, file_error, opened_file, refusal
from rlx.formats.common.fields import flags_of
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.chunks import MAX_CHUNK_BYTES, check_chunks
from rlx.formats.common.provenance import KEY, read_notes
from rlx.wording import missing as is_missing

_MAX_DEPTH = 16
_MAX_FILLED_BYTES = 2**28
# Exceptions of h5py for a damaged file.
_FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Yield the open file; raises CorruptShardError if it is not HDF5."""
    check_readable(path)
    try:
        file = h5py.File(path, "r")
    except _FAILURES as exc:
        raise _damaged(str(path), exc) from exc
    try:
        yield file
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{path}: {exc}") from exc
    finally:
        file.close()


def is_hdf5(path: Path) -> bool:
    """Return whether a path is a file that begins like HDF5, even if it is damaged."""
    if not path.is_file():
        return False
    check_readable(path)
    try:
        return bool(h5py.is_hdf5(path))
    except OSError as exc:
        raise file_error(refusal(exc) or exc, path, "read") from exc


def holds(path: Path, names: Collection[str]) -> bool:
    """Return whether a path is an HDF5 file with members of these names; False for missing and damaged files."""
    if not is_hdf5(path):
        return False
    try:
        with opened(path) as file:
            return all(has(file, name) for name in names)
    except CorruptShardError:
        return False


def group(parent: h5py.Group, name: str) -> h5py.Group:
    """Return the group of this name."""
    found = _member(parent, name)
    if not isinstance(found, h5py.Group):
        raise CorruptShardError(f"{_place(parent, name)}: expected a group, found a dataset")
    return found


def is_group(parent: h5py.Group, name: str) -> bool:
    """Return whether a name is a group of the file's own."""
    with _translated(parent, name):
        return parent.get(name, getclass=True) is h5py.Group and not is_link(parent, name)


def dataset(parent: h5py.Group, name: str) -> h5py.Dataset:
    """Return the dataset of this name; raises CorruptShardError if the file does not hold all its values."""
    found = _member(parent, name)
    if not isinstance(found, h5py.Dataset):
        raise CorruptShardError(f"{_place(parent, name)}: expected a dataset, found a group")
    with _translated(parent, name):
        elsewhere = found.is_virtual or found.external
        size, stored, _ = found.size, found.id.get_storage_size(), found.dtype  # some types cannot be read
        chunks, held = (0, 0) if found.chunks is None else (_chunks(found), found.id.get_num_chunks())
        is_filled = found.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    if elsewhere:
        raise CorruptShardError(f"{_place(parent, name)}: its values are in another file")
    # What was never written reads as zeros, unless the file states another value, or zero: then that is meant. Even so,
    # a small file may declare an array of any size without storing it.
    if is_filled and found.nbytes <= _MAX_FILLED_BYTES:
        return found
    if size and not stored:
        raise CorruptShardError(f"{_place(parent, name)}: expected {size:,} values, found none stored")
    if held < chunks:
        raise CorruptShardError(f"{_place(parent, name)}: expected {chunks:,} chunks, found {held:,} stored")
    return found


def _chunks(found: h5py.Dataset) -> int:
    """Return how many chunks a complete dataset has."""
    return math.prod(-(-rows // chunk) for rows, chunk in zip(found.shape, found.chunks, strict=True))


def leaves(parent: h5py.Group, name: str, depth: int = 0) -> list[str]:
    """Return the paths of all datasets in a group, or the name itself if it is a dataset; sorted."""
    found = _member(parent, name)
    if depth > _MAX_DEPTH:
        raise CorruptShardError(f"{_place(parent, name)}: expected groups at most {_MAX_DEPTH} deep")
    if isinstance(found, h5py.Dataset):
        return [name]
    with _translated(parent, name):
        children = _in_order(found)
    return [f"{name}/{leaf}" for child in children for leaf in leaves(found, child, depth + 1)]


def read(source: h5py.Dataset, start: int, stop: int) -> NDArray[Any]:
    """Return rows of a dataset, in this machine's byte order."""
    try:
        check_chunks(source, start, stop)
        rows: NDArray[Any] = source[start:stop]
    except _FAILURES as exc:
        raise _damaged(f"{place(source)}, rows {start:,} to {stop:,}", exc) from exc
    return rows if rows.dtype.hasobject else rows.astype(rows.dtype.newbyteorder("="), copy=False)


def integer(parent: h5py.Group, name: str) -> int:
    """Return an attribute as an integer; raises CorruptShardError if it is missing or has another value."""
    with _translated(parent, f"{name} (an attribute)"):
        if (found := attribute(parent, name)) is None:
            raise KeyError("no such attribute")
        return int(np.asarray(found).item())


def has(parent: h5py.Group, name: str) -> bool:
    """Return whether a group, a dataset or a link, which is not followed, has this name."""
    with _translated(parent, name):
        return parent.get(name, getlink=True) is not None


def is_link(parent: h5py.Group, name: str) -> bool:
    """Return whether a name is a soft or external link, which leads elsewhere."""
    with _translated(parent, name):
        return not isinstance(parent.get(name, getlink=True), h5py.HardLink)


def names(parent: h5py.Group) -> list[str]:
    """Return the names of all groups and datasets in a group, sorted."""
    with _translated(parent, ""):
        return _in_order(parent)


def _in_order(found: Iterable[str | bytes]) -> list[str]:
    """Return names, sorted; of those that are not UTF-8, h5py knows the bytes."""
    texts: list[str] = []
    for name in found:
        if isinstance(name, bytes):
            raise ValueError(f"the name {name!r} is not UTF-8")  # noqa: TRY004 (the file is wrong, not its type)
        texts.append(name)
    return sorted(texts)


def numbers(parent: h5py.Group, name: str, *, rows: int | None = None) -> h5py.Dataset:
    """Return the dataset of this name; raises CorruptShardError unless it has rows of numbers, and this many."""
    found = dataset(parent, name)
    if not is_numbers(found):
        raise CorruptShardError(
            f"{_place(parent, name)}: expected rows of numbers, found {found.dtype}{list(found.shape)}"
        )
    if rows is not None and len(found) != rows:
        raise CorruptShardError(f"{_place(parent, name)}: expected {rows:,} rows, found {len(found):,}")
    return found


def place(found: h5py.Dataset) -> str:
    """Return the file and path of a dataset, for messages."""
    return f"{found.file.filename}: {found.name}"


def is_numbers(found: h5py.Dataset) -> bool:
    """Return whether a dataset has rows of numbers that a schema can name."""
    return bool(found.dtype.kind in "biuf" and found.dtype.itemsize <= 8 and found.ndim > 0)


def read_flags(source: h5py.Dataset, start: int, stop: int) -> NDArray[np.bool_]:
    """Return rows of flags; raises CorruptShardError unless each is 0 or 1."""
    return flags_of(read(source, start, stop), place(source), start)


def scalar(parent: h5py.Group, name: str) -> Any:
    """Return the value of a dataset of one number or flag."""
    found = dataset(parent, name)
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise CorruptShardError(f"{_place(parent, name)}: expected one number, found {found.dtype}{list(found.shape)}")
    return np.asarray(read_all(found)).item()


def read_all(source: h5py.Dataset) -> Any:
    """Return all values of a small dataset."""
    try:
        check_chunks(source)
        return source[()]
    except _FAILURES as exc:
        raise _damaged(place(source), exc) from exc


def notes(file: h5py.File) -> Mapping[str, Any]:
    """Return the notes that rlx wrote into the file, if any."""
    return read_notes(attribute(file, KEY))


def attributes(parent: h5py.Group) -> list[str]:
    """Return the names of a group's attributes, sorted."""
    with _translated(parent, "(its attributes)"):
        return _in_order(parent.attrs)


def attribute(parent: h5py.Group, name: str) -> Any:
    """Return the attribute of a group with this name; None if absent."""

    with _translated(parent, f"{name} (an attribute)"):
        if name not in parent.attrs:
            return None
        kind = parent.attrs.get_id(name).dtype
        if kind.hasobject:  # of variable length: damage makes HDF5 loop, or ends the process
            if h5py.check_string_dtype(kind) is None:
                raise ValueError(f"expected numbers or text, found {kind}")
            if (found := text_attribute(parent, name)) is not None:
                return found
        return parent.attrs[name]


def _member(parent: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """Return the member at a path of hard links: any other link may lead out of the file."""
    found: Any = parent
    with _translated(parent, name):
        for part in name.split("/"):
            link = found.get(part, getlink=True)
            if link is None:
                raise CorruptShardError(is_missing(_place(parent, name), found))
            if not isinstance(link, h5py.HardLink):
                raise CorruptShardError(f"{_place(parent, name)}: leads to another file, or another place in this one")
            found = found[part]
    return found


def _place(parent: h5py.Group, name: str) -> str:
    return f"{parent.file.filename}: {str(parent.name).rstrip('/')}/{name}"


@contextmanager
def _translated(parent: h5py.Group, name: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as exc:
        raise _damaged(_place(parent, name), exc) from exc


def _damaged(where: str, cause: Exception) -> RlxError:
    if (refused := refusal(cause)) is not None:
        return file_error(refused, where, "read")
    return CorruptShardError(f"{where} is missing or damaged: {cause.args[0] if cause.args else type(cause).__name__}")


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
_TEXT_FAILURES = (ValueError, struct.error, OSError, RuntimeError, TypeError, zlib.error)


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
        with opened_file(Path(parent.file.filename)) as file:
            content = _attribute(file, h5py.h5o.get_info(parent.id).addr, name.encode())
            if content is None:
                return None
            count = math.prod(shape)
            references = np.frombuffer(content, _REFERENCE, count).tolist() if count else []
            found = _objects(
                (_Heap(file, heap).text(number, length) if length else "" for length, heap, number in references),
                shape,
            )
    except _TEXT_FAILURES as exc:
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
            self._file = opened_file(Path(self._found.file.filename))
        return self._file

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except _TEXT_FAILURES as exc:
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
