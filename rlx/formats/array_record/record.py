"""Records of ArrayRecord files: pickled dicts, parsed without unpickling, and their arrays of consecutive steps.

Nothing is imported or called, and only the opcodes of such dicts are supported. The functions with which numpy pickles
an array are recognised by name, and the array is built here, after its size was compared with its bytes.
"""

import math
import re
import reprlib  # shared parts make some texts of repr endless
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pickletools import genops
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.array_record import FINAL, FLAGS, LENGTH, TRAJECTORY, VIDEO
from rlx.formats.common.exporter import PieceInfo
from rlx.formats.common.fields import check_field, flags_of
from rlx.formats.common.source import MalformedError
from rlx.schema import TEXT, Schema

_DTYPE = re.compile(r"[biuf][1248]")
_MODULES = frozenset({"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric"})
_NUMERIC = "numpy._core.numeric"
_MAX_PROTOCOL = 5
_MARK = object()
_MAX_DIMENSIONS = 32


@dataclass(slots=True)
class _Draft:
    """Result of a numpy function in a pickle, once its state is known; ``value`` is None unless it has numbers."""

    function: str
    value: Any = None


def parse(data: bytes) -> dict[str, Any]:
    """Return a pickled dict of arrays and plain values; arrays of other types than numbers are None.

    Raises:
        MalformedError: this is another pickle, or a damaged one.

    Example:
        >>> import pickle
        >>> found = parse(pickle.dumps({"sequence_length": 2, "actions": np.arange(2, dtype=np.int8)}))
        >>> found["sequence_length"], found["actions"]
        (2, array([0, 1], dtype=int8))
    """
    try:
        found = _Machine().run(data)
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as exc:
        raise MalformedError(f"expected a pickled dict of numbers, texts and arrays: {exc}") from exc
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise MalformedError("expected a pickled dict with names as keys")
    return {key: value.value if isinstance(value, _Draft) else value for key, value in found.items()}


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in genops(data):
            if opcode.name in _CONSTANTS:
                self._stack.append(_CONSTANTS[opcode.name]())
            elif _VALUES.fullmatch(opcode.name):
                self._stack.append(_plain(argument))
            elif opcode.name not in ("FRAME", "STOP"):
                _OPERATIONS[opcode.name](self, argument)
        (found,) = self._stack
        return found

    def _popped(self) -> list[Any]:
        start = len(self._stack) - 1 - next(n for n, value in enumerate(reversed(self._stack)) if value is _MARK)
        values = self._stack[start + 1 :]
        del self._stack[start:]
        return values

    def protocol(self, version: int) -> None:
        if version > _MAX_PROTOCOL:
            raise ValueError("a later protocol than 5")

    def memoize(self, _: None) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def tuple(self, _: None) -> None:
        self._stack.append(tuple(self._popped()))

    def tuple_of(self, count: int) -> None:
        values = tuple(self._stack[-count:])
        if len(values) < count:
            raise ValueError("a tuple of too few values")
        self._stack[-count:] = [values]

    def append(self, _: None) -> None:
        value = self._stack.pop()
        self._container(list).append(value)

    def appends(self, _: None) -> None:
        values = self._popped()
        self._container(list).extend(values)

    def set_item(self, _: None) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key], [value])

    def set_items(self, _: None) -> None:
        values = self._popped()
        self._set(values[::2], values[1::2])

    def _set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        if not all(isinstance(key, str | bytes | int | float | None) for key in keys):
            raise TypeError("a key of several values")  # hashing nested tuples may take for ever, or overflow the stack
        self._container(dict).update(zip(keys, values, strict=True))

    def _container(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise TypeError(f"items of a {type(self._stack[-1]).__name__}")
        return self._stack[-1]

    def global_name(self, names: str) -> None:
        self._stack.append(_function(*names.split(" ", 1)))

    def stack_global(self, _: None) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("an object without a name")
        self._stack.append(_function(module, name))

    def reduce(self, _: None) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(_called(function, arguments))

    def build(self, _: None) -> None:
        state, draft = self._stack.pop(), self._stack[-1]
        if draft.function == "dtype":
            draft.value = _ordered(draft.value, state)
        elif draft.function == "_reconstruct":
            _, shape, dtype, is_fortran, raw = state
            draft.value = _array(raw, dtype, shape, "F" if is_fortran else "C")
        else:
            raise TypeError(f"a state of {draft.function}")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        value.encode()  # pickletools lets pass what is not UTF-8
    return bytes(value) if isinstance(value, bytearray) else value


def _function(module: str, name: str) -> _Draft:
    known = {"ndarray", "dtype"} if module == "numpy" else {"_reconstruct", "scalar", "_frombuffer"}
    if module not in (*_MODULES, _NUMERIC) or name not in known:
        raise ValueError(f"an object of {module}.{name}"[:200])
    return _Draft(f"call {name}")


def _called(function: _Draft, arguments: Any) -> _Draft:
    match function.function:
        case "call dtype":
            name = arguments[0]
            return _Draft("dtype", np.dtype(name) if isinstance(name, str) and _DTYPE.fullmatch(name) else None)
        case "call _reconstruct":
            return _Draft("_reconstruct")
        case "call scalar":
            dtype, raw = arguments
            found = _array(raw, dtype, (), "C")
            return _Draft("scalar", None if found is None else found.item())
        case "call _frombuffer":
            raw, dtype, shape, order = arguments
            return _Draft("_frombuffer", _array(raw, dtype, shape, order))
    raise TypeError(f"{function.function}: not a function")


def _ordered(dtype: np.dtype[Any] | None, state: Any) -> np.dtype[Any] | None:
    return None if dtype is None else dtype.newbyteorder(">" if state[1] == ">" else "<")


def _array(raw: Any, dtype: _Draft, shape: Any, order: str) -> NDArray[Any] | None:
    """Return the array of these bytes in this machine's byte order; None if it is not of numbers."""
    if dtype.function != "dtype" or dtype.value is None:
        return None
    if not all(type(size) is int and size >= 0 for size in shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"an array of shape {reprlib.repr(shape):.80}")
    expected = math.prod(shape) * dtype.value.itemsize
    if not isinstance(raw, bytes) or len(raw) != expected:
        raise ValueError(f"an array of {expected:,} bytes in {len(raw):,}")
    found = np.frombuffer(raw, dtype.value)
    return found.astype(found.dtype.newbyteorder("="), copy=False).reshape(shape, order="F" if order == "F" else "C")


_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
# Opcodes whose argument is their value.
_VALUES = re.compile(r"BININT[12]?|BINFLOAT|LONG1|(SHORT_)?BINUNICODE8?|(SHORT_)?BINBYTES8?|BYTEARRAY8")
_OPERATIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.protocol,
    "MEMOIZE": _Machine.memoize,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": _Machine.tuple,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.global_name,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


_MAX_STEPS = 2**32
Record = Mapping[str, Any]
Array = NDArray[Any]


def _piece_info(said: Mapping[str, Any], place: str) -> PieceInfo:
    values: dict[str, Any] = {field.name: said.get(field.name) for field in fields(PieceInfo)}
    if any(type(values[field.name]) is not field.type for field in fields(PieceInfo)):
        raise CorruptShardError(
            f"{place}: {TRAJECTORY}: expected whole numbers and flags, {', '.join(values)}, found {reprlib.repr(said)}"[
                :400
            ]
        )
    return PieceInfo(**values)


class RecordSteps:
    """The steps of one record.

    Args:
        keys: key of every recorded field but the flags; others are zeros.

    Attributes:
        count: T.
        piece: its place in a trajectory, if rlx wrote it; else None.
        flags: [T] of each flag.
    """

    def __init__(self, record: Record, schema: Schema, keys: Mapping[str, str], place: str) -> None:
        self.place = place
        self.schema = schema
        self.count = length_of(record, place)
        piece = record.get(TRAJECTORY)
        self.piece = _piece_info(piece, place) if isinstance(piece, dict) else None
        self._keys = keys
        self._record = record
        self.flags = {name: record_flags(record.get(name), self.count, f"{place}: {name}") for name in FLAGS}

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
    """Return T of a record; raises CorruptShardError if it is missing."""
    length = record.get(LENGTH)
    if type(length) is not int or not 0 <= length < _MAX_STEPS:
        raise CorruptShardError(f"{place}: {LENGTH}: expected a number of steps, found {reprlib.repr(length):.80}")
    return length


def record_flags(values: Any, count: int, place: str) -> NDArray[np.bool_]:
    """Return [T] a flag of a record; unset if the record does not have it."""
    if values is None:
        return np.zeros(count, bool)
    if (
        not isinstance(values, np.ndarray)
        or values.dtype.kind not in "buif"
        or values.shape not in ((count,), (count, 1))
    ):
        raise CorruptShardError(f"{place}: expected one flag per step, found {shown(values)}")
    return flags_of(values.reshape(count), place)


def _rows(key: str, value: Any, count: int, shape: tuple[int, ...]) -> Array | None:
    if isinstance(value, np.ndarray) and value.ndim:
        return value.reshape(-1) if shape == () and value.shape == (count, 1) else value
    if isinstance(value, bytes) and key == VIDEO:
        size = count * math.prod(shape)
        return np.frombuffer(value, np.uint8).reshape(count, *shape) if len(value) == size else None
    return text_rows(value, count, shape)


def text_rows(value: Any, count: int, shape: tuple[int, ...]) -> Array | None:
    """Return texts [count, *shape], which a record keeps as one list; None for other values."""
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
