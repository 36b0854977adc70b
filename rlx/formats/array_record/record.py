"""The record of an ArrayRecord file: the arrays of some consecutive steps, compared with a schema."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.array_record import FINAL, FLAGS, LENGTH, TRAJECTORY, VIDEO
from rlx.formats.common.fields import check_field
from rlx.schema import TEXT, Schema

_MAX_STEPS = 2**32
Record = Mapping[str, Any]
Array = NDArray[Any]


class Steps:
    """The steps of one record.

    Args:
        keys: of every field but the flags; fields that are not recorded have none.

    Attributes:
        count: T.
        piece: which piece of which trajectory it is, if rlx wrote it.
        flags: [T] of each flag.
    """

    def __init__(self, record: Record, schema: Schema, keys: Mapping[str, str], place: str) -> None:
        self.place = place
        self.schema = schema
        self.count = length_of(record, place)
        piece = record.get(TRAJECTORY)
        self.piece: Mapping[str, Any] | None = piece if isinstance(piece, dict) else None
        self._keys = keys
        self._record = record
        self.flags = {name: flags_of(record.get(name), self.count, f"{place}: {name}") for name in FLAGS}

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return [stop - start, ...] rows of a field; see ``Columns``."""
        field = self.schema[name]
        if name not in self._keys:
            return field.zeros(stop - start)
        return self._array(self._keys[name], name, self.count)[start:stop]

    def after(self, name: str, row: int) -> Array:  # noqa: ARG002  (the last row)
        """Return [1, ...] the observation after the last step."""
        return self._array(FINAL + name, name, 1)

    def _array(self, key: str, name: str, count: int) -> Array:
        field, place = self.schema[name], f"{self.place}: {key}"
        rows = _rows(key, self._record.get(key), count, field.shape)
        found = None if rows is None else (TEXT if rows.dtype == object else rows.dtype.name, rows.shape)
        if rows is None or found != (field.dtype, (count, *field.shape)):
            raise CorruptShardError(
                f"{place}: expected {field.dtype}{[count, *field.shape]}, found {shown(self._record.get(key))}"
            )
        check_field(name, field, rows, place, 0)
        return rows


def length_of(record: Record, place: str) -> int:
    """Return T of a record."""
    length = record.get(LENGTH)
    if type(length) is not int or not 0 < length < _MAX_STEPS:
        raise CorruptShardError(f"{place}: {LENGTH}: expected a number of steps, found {length!r:.80}")
    return length


def flags_of(values: Any, count: int, place: str) -> NDArray[np.bool_]:
    """Return [T] a flag of a record; unset if the record does not have it."""
    if values is None:
        return np.zeros(count, bool)
    if (
        not isinstance(values, np.ndarray)
        or values.dtype.kind not in "bui"
        or values.shape not in ((count,), (count, 1))
    ):
        raise CorruptShardError(f"{place}: expected one flag per step, found {shown(values)}")
    flags: NDArray[np.bool_] = values.reshape(count) != 0
    return flags


def _rows(key: str, value: Any, count: int, shape: tuple[int, ...]) -> Array | None:
    if isinstance(value, np.ndarray) and value.ndim:
        return value.reshape(-1) if shape == () and value.shape == (count, 1) else value
    if isinstance(value, bytes) and key == VIDEO:
        size = count * math.prod(shape)
        return np.frombuffer(value, np.uint8).reshape(count, *shape) if len(value) == size else None
    return text_rows(value, count, shape)


def text_rows(value: Any, count: int, shape: tuple[int, ...]) -> Array | None:
    """Return texts [count, *shape], which a record keeps as one list; None where it is no such list."""
    if not isinstance(value, list) or len(value) != count * math.prod(shape):
        return None
    if not all(isinstance(text, str) for text in value):
        return None
    found = np.empty(len(value), object)
    found[:] = value
    return found.reshape(count, *shape)


def shown(value: Any) -> str:
    """Return type and size of a value, for messages."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    return f"{len(value):,} bytes" if isinstance(value, bytes) else f"{type(value).__name__}"
