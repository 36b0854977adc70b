"""Chunks of an HDF5 dataset, checked before the library decodes them.

HDF5 trusts the chunk sizes that a file states: it reads uninitialised memory if a chunk decodes to fewer bytes, and
inflates a chunk to gigabytes if it decodes to more.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from weakref import WeakKeyDictionary

import h5py

from rlx.errors import CorruptShardError

MAX_CHUNK_BYTES = 2**29
_SLACK_BYTES = 2**16  # no compressor stores a chunk in more than twice its size and this
_Values = tuple[int, ...]
_Offset = tuple[int, ...]
# Not szip: only its decoder knows how many bytes a chunk decodes to, and does not expose it.
_DEFLATE, _SHUFFLE, _FLETCHER32, _NBIT, _SCALEOFFSET, _LZF = 1, 2, 3, 5, 6, 32000
_SCALEOFFSET_HEADER = 21  # bits, length of the smallest number, and 16 bytes for it
_ATOMIC = 1  # the class of an nbit filter of numbers; structs and arrays have parameters of their own
_checked: WeakKeyDictionary[object, set[_Offset]] = WeakKeyDictionary()


def check_chunks(found: h5py.Dataset, start: int = 0, stop: int | None = None) -> None:
    """Raise CorruptShardError unless every chunk of the rows [start, stop) decodes to its exact size.

    Each chunk is checked once while the dataset is open.

    Args:
        found: the dataset; a contiguous one needs no check.
    """
    if found.chunks is None or not found.size:
        return
    chunk_bytes = math.prod(found.chunks) * found.id.get_type().get_size()
    if chunk_bytes > MAX_CHUNK_BYTES:
        raise CorruptShardError(
            f"{_place(found)}: chunks of {chunk_bytes:,} bytes, expected at most {MAX_CHUNK_BYTES:,}"
        )
    filters = _filters(found)
    checked = _checked.setdefault(found.id, set())
    for offset in _offsets(found, start, len(found) if stop is None else stop):
        if offset in checked:
            continue
        stored = found.id.get_chunk_info_by_coord(offset)
        if stored.byte_offset is not None:  # else it has only fill values
            if stored.size > 2 * chunk_bytes + _SLACK_BYTES:
                raise CorruptShardError(
                    f"{_place(found)}, chunk at {list(offset)}: expected {chunk_bytes:,} bytes, "
                    f"found {stored.size:,} stored"
                )
            mask, data = found.id.read_direct_chunk(offset)
            length = _length(found, filters, mask, data, chunk_bytes)
            if length != chunk_bytes:
                more = "more" if length > chunk_bytes else f"{length:,}"
                raise CorruptShardError(
                    f"{_place(found)}, chunk at {list(offset)}: expected {chunk_bytes:,} bytes, found {more}"
                )
        checked.add(offset)


def _offsets(found: h5py.Dataset, start: int, stop: int) -> Iterator[_Offset]:
    first, *others = zip(found.shape, found.chunks, strict=True)
    rows = first[1]
    starts = range(start // rows * rows, min(stop, first[0]), rows)
    return itertools.product(starts, *(range(0, length, chunk) for length, chunk in others))


def _filters(found: h5py.Dataset) -> list[tuple[int, _Values]]:
    properties = found.id.get_create_plist()
    filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
    if unknown := [name for code, _, _, name in filters if code not in _LENGTHS]:
        raise CorruptShardError(
            f"{_place(found)}: filter {unknown[0].decode(errors='replace')!r} cannot be checked; "
            "h5repack -f GZIP=4 writes the file with one that can"
        )
    if any(code == _NBIT and (len(values) < 7 or values[3] != _ATOMIC) for code, _, values, _ in filters):
        raise CorruptShardError(f"{_place(found)}: expected the filter nbit for numbers only")
    return [(code, tuple(values)) for code, _, values, _ in filters]


def _length(found: h5py.Dataset, filters: list[tuple[int, _Values]], mask: int, data: bytes, chunk_bytes: int) -> int:
    """Return the decoded size of a stored chunk; a number above ``chunk_bytes`` if it is larger."""
    length: int | None = None  # once only the length is known
    for number, (code, values) in reversed([*enumerate(filters)]):
        if mask & 1 << number:
            continue  # the writer left this filter out
        if length is not None and code not in (_SHUFFLE, _FLETCHER32):
            raise CorruptShardError(f"{_place(found)}: the order of its filters is not supported")
        try:
            decoded = _LENGTHS[code](data, values, chunk_bytes)
        except (zlib.error, IndexError) as exc:
            raise CorruptShardError(f"{_place(found)}: a chunk is damaged: {exc}") from exc
        if isinstance(decoded, int):
            if decoded > chunk_bytes:
                return decoded
            length = decoded if length is None else length
        else:
            data = decoded
    return len(data) if length is None else length


def _inflate(data: bytes, values: _Values, most: int) -> bytes | int:  # noqa: ARG001
    inflating = zlib.decompressobj()
    # The output may be a checksum longer, or deflated once more.
    room = 2 * most + _SLACK_BYTES
    inflated = inflating.decompress(data, room)
    # HDF5 inflates to the end, even bytes that the next filter ignores.
    return room if inflating.unconsumed_tail and not inflating.eof else inflated


def _nbit_length(data: bytes, values: _Values, most: int) -> int:  # noqa: ARG001
    """Return bytes of the numbers whose bits are complete; HDF5 reads past the end for others."""
    _, is_plain, count, _, size, _, precision = values[:7]
    return len(data) if is_plain else _packed(data, count, size, precision)


def _scaleoffset_length(data: bytes, values: _Values, most: int) -> int:  # noqa: ARG001
    """Return the same for numbers after a header, which has the bits of each and the minimum."""
    bits, count, size = int.from_bytes(data[:4], "little"), values[2], values[4]
    return 0 if len(data) < _SCALEOFFSET_HEADER else _packed(data[_SCALEOFFSET_HEADER:], count, size, bits)


def _packed(data: bytes, count: int, size: int, bits: int) -> int:
    if bits > 8 * size:
        return 0
    return size * (min(count, 8 * len(data) // bits) if bits else count)


def _lzf_length(data: bytes, values: _Values, most: int) -> int:  # noqa: ARG001
    """Return bytes that LZF's literals and references stand for."""
    position = length = 0
    while position < len(data) and length <= most:
        control = data[position]
        if control < 32:
            position += control + 2
            length += control + 1
        else:
            count = control >> 5
            if count == 7:
                position += 1
                count += data[position]
            position += 2
            length += count + 2
    return length


_LENGTHS: Mapping[int, Callable[[bytes, _Values, int], bytes | int]] = MappingProxyType(
    {
        _DEFLATE: _inflate,
        _SHUFFLE: lambda data, *_: data,
        _FLETCHER32: lambda data, *_: data[:-4],  # a checksum
        _NBIT: _nbit_length,
        _SCALEOFFSET: _scaleoffset_length,
        _LZF: _lzf_length,
    }
)


def _place(found: h5py.Dataset) -> str:
    return f"{found.file.filename}: {found.name}"
