"""``tf.train.Example`` as protobuf bytes, read and written without TensorFlow or protobuf.

The message, by field number: Example ``{1: Features}``; Features ``{1: {1: key, 2: Feature}}``, repeated; Feature ``{1:
BytesList | 2: FloatList | 3: Int64List}``; and every list ``{1: values}``. Numbers may be packed or not; unknown fields
are skipped.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.record_files import framed
from rlx.formats.common.source import MalformedError

Feature: TypeAlias = list[memoryview] | NDArray[np.int64] | NDArray[np.float32]

# Ten times the longest episode; keeps a hostile record from filling memory.
MAX_VALUES = 1 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
_MAX_VARINT_BYTES = 10
# The limit of protobuf, and so of every reader.
MAX_BYTES = 2**31 - 1
_IN_MEMORY_BYTES = 2**16
_PIECE_BYTES = 2**17


def parse_example(record: bytes, *, max_values: int = MAX_VALUES) -> dict[str, Feature]:
    """Return the features of one example: bytes as views of the record, integers int64, floats float32.

    Args:
        record: the message.
        max_values: maximum of all features together; more raise MalformedError.

    Example:
        >>> parse_example(bytes.fromhex("0a0c0a0a0a016112051a030a0105"))
        {'a': array([5])}
    """
    features: dict[str, Feature] = {}
    budget = max_values
    for message in _messages(memoryview(record), 1):
        for entry in _messages(message, 1):
            key, feature = _entry(entry, budget)
            features[key] = feature
            budget -= len(feature) + 1
    return features


def _entry(entry: memoryview, budget: int) -> tuple[str, Feature]:
    key, value = b"", memoryview(b"")
    for number, wire, content in _fields(entry):
        if wire == _BYTES and number == 1:
            key = bytes(content)
        elif wire == _BYTES and number == 2:
            value = content
    try:
        name = key.decode()
    except UnicodeDecodeError as exc:
        raise MalformedError(f"feature name: expected utf-8, found {key[:40]!r}") from exc
    try:
        return name, _feature(value, budget)
    except MalformedError as exc:
        raise MalformedError(f"feature {name[:40]!r}: {exc}") from exc


def _feature(feature: memoryview, budget: int) -> Feature:
    kind, values = BYTES_LIST, memoryview(b"")
    for number, wire, content in _fields(feature):
        if wire == _BYTES and number in (BYTES_LIST, FLOAT_LIST, INT64_LIST):
            kind, values = number, content
    if kind == BYTES_LIST:
        items = list(islice(_messages(values, 1), budget + 1))
        _check_budget(len(items), budget)
        return items
    if kind == INT64_LIST:
        return unpack_varints(_packed(values, _VARINT, budget), budget)
    return _float_list(values, budget)


def _float_list(values: memoryview, budget: int) -> NDArray[np.float32]:
    data = _packed(values, _FIXED32, budget)
    if len(data) % 4:
        raise MalformedError(f"packed floats: expected a multiple of 4 bytes, found {len(data):,}")
    _check_budget(len(data) // 4, budget)
    return np.frombuffer(data, "<f4").astype(np.float32, copy=False)


def _packed(values: memoryview, single: int, budget: int) -> bytes:
    """Return the bytes of a list of numbers; a packed list is the concatenation of the values of an unpacked one."""
    parts: list[memoryview] = []
    for number, wire, content in _fields(values):
        if number == 1 and wire in (_BYTES, single):
            parts.append(content)
            _check_budget(len(parts), budget)
    return b"".join(parts)


def unpack_varints(packed: bytes, budget: int = MAX_VALUES) -> NDArray[np.int64]:
    """Return the integers of a packed list of varints, negative ones in two's complement.

    Example:
        >>> unpack_varints(b"\\x05\\xac\\x02" + b"\\xff" * 9 + b"\\x01")
        array([  5, 300,  -1])
    """
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    _check_budget(len(ends), budget)
    if len(ends) == len(data):
        return data.astype(np.int64)
    if data[-1] >= 0x80:
        raise MalformedError("packed integers: the last one is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > _MAX_VARINT_BYTES:
        raise MalformedError(f"packed integers: one has {lengths.max()} bytes, expected at most 10")
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    bits = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    return (content for number, wire, content in _fields(data) if number == wanted and wire == _BYTES)


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield number, wire type and content of every field of a message; a varint's content is its bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, end)
        wire = tag & 7
        start = at
        if wire == _BYTES:
            size, start = _varint(data, at, end)
            at = start + size
        elif wire == _VARINT:
            _, at = _varint(data, at, end)
        elif wire in _FIXED_SIZES:
            at += _FIXED_SIZES[wire]
        else:
            raise MalformedError(f"wire type: expected 0, 1, 2 or 5, found {wire}")
        if at > end:
            raise MalformedError(f"a field of {at - start:,} bytes has only {end - start:,} bytes left")
        if tag < 8:
            raise MalformedError("field number: expected at least 1, found 0")
        yield tag >> 3, wire, data[start:at]


def _varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if at >= end:
            raise MalformedError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedError("a number has more than 10 bytes")


def _check_budget(values: int, budget: int) -> None:
    if values > budget:
        raise MalformedError(f"expected at most {budget:,} values, found more")


class ExampleTooLongError(ValueError):
    """An example exceeds protobuf's limit of 2 GiB."""


class ExampleSpool:
    """Writer of examples, one after the other, whose values are added piece by piece.

    Args:
        kinds: list type of every feature, by name: ``BYTES_LIST``, ``FLOAT_LIST`` or ``INT64_LIST``.
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
        """Add byte strings to a feature."""
        for value in values:
            self._files[name].write(_head(1, len(value)) + value)

    def add_numbers(self, name: str, values: NDArray[np.generic]) -> None:
        """Add numbers to a feature, as float32 or int64."""
        if self._kinds[name] == FLOAT_LIST:
            self._files[name].write(values.astype("<f4").tobytes())
        else:
            self._files[name].write(varints(values.astype(np.int64).reshape(-1)))

    def pop(self) -> Iterator[bytes]:
        """Return the example as a TFRecord, in pieces, and begin the next; raises ExampleTooLongError."""
        entries = {name: self._entry(name) for name in self._files}
        features = sum(size for _, size in entries.values())
        head = _head(1, features)
        size = len(head) + features
        if size > MAX_BYTES:
            raise ExampleTooLongError(f"an example of {size:,} bytes; expected at most {MAX_BYTES:,}")
        return framed(size, self._pieces(head, entries))

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
