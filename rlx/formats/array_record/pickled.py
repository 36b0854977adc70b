"""Pickled dicts of numbers, texts and arrays, parsed without unpickling: nothing is imported or called.

Of the opcodes, only those that such dicts need are known. The functions that numpy puts into a pickle to build an array
are recognised by name, and the array is built here, after its size was compared with its bytes.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPE = re.compile(r"[biuf][1248]")
_MODULES = frozenset({"numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric"})
_NUMERIC = "numpy._core.numeric"
_MAX_PROTOCOL = 5
_MARK = object()
_MAX_DIMENSIONS = 32


class MalformedRecordError(ValueError):
    """The bytes are no pickled dict of numbers, texts and arrays."""


@dataclass(slots=True)
class _Draft:
    """Result of a numpy function in a pickle, once its state is known; None for arrays of non-numbers."""

    function: str
    value: Any = None


def parse(data: bytes) -> dict[str, Any]:
    """Return the dict that was pickled: its arrays, and its other values as they are; objects of other types are None.

    Example:
        >>> import pickle
        >>> found = parse(pickle.dumps({"sequence_length": 2, "actions": np.arange(2, dtype=np.int8)}))
        >>> found["sequence_length"], found["actions"]
        (2, array([0, 1], dtype=int8))
    """
    try:
        found = _Machine(data).run()
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as exc:
        raise MalformedRecordError(f"expected a pickled dict of numbers, texts and arrays: {exc}") from exc
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise MalformedRecordError("expected a pickled dict with names as keys")
    return {key: value.value if isinstance(value, _Draft) else value for key, value in found.items()}


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while (opcode := self._take(1)[0]) != ord("."):
            if (values := _CONSTANTS.get(opcode)) is not None:
                self._stack.append(values())
            elif (number := _NUMBERS.get(opcode)) is not None:
                self._stack.append(number.unpack(self._take(number.size))[0])
            elif (counted := _COUNTED.get(opcode)) is not None:
                length, convert = counted
                self._stack.append(convert(self._take(length.unpack(self._take(length.size))[0])))
            else:
                _OPERATIONS[opcode](self)
        (found,) = self._stack
        return found

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError(f"cut off after {len(self._data):,} bytes")
        self._at += count
        return bytes(self._data[self._at - count : self._at])

    def _line(self) -> str:
        end = self._at
        while self._data[end] != ord("\n"):
            end += 1
        return str(self._take(end + 1 - self._at)[:-1], "ascii")

    def _popped(self) -> list[Any]:
        start = len(self._stack) - 1 - next(n for n, value in enumerate(reversed(self._stack)) if value is _MARK)
        values = self._stack[start + 1 :]
        del self._stack[start:]
        return values

    def protocol(self) -> None:
        if self._take(1)[0] > _MAX_PROTOCOL:
            raise ValueError("a later protocol than 5")

    def frame(self) -> None:
        self._take(8)

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def put(self) -> None:
        self._memo[self._take(1)[0]] = self._stack[-1]

    def long_put(self) -> None:
        self._memo[int.from_bytes(self._take(4), "little")] = self._stack[-1]

    def get(self) -> None:
        self._stack.append(self._memo[self._take(1)[0]])

    def long_get(self) -> None:
        self._stack.append(self._memo[int.from_bytes(self._take(4), "little")])

    def tuple(self) -> None:
        self._stack.append(tuple(self._popped()))

    def tuple_of(self, count: int) -> None:
        values = tuple(self._stack[-count:])
        if len(values) < count:
            raise ValueError("a tuple of too few values")
        self._stack[-count:] = [values]

    def append(self) -> None:
        value = self._stack.pop()
        self._container(list).append(value)

    def appends(self) -> None:
        values = self._popped()
        self._container(list).extend(values)

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._container(dict)[key] = value

    def set_items(self) -> None:
        values = self._popped()
        self._container(dict).update(zip(values[::2], values[1::2], strict=True))

    def _container(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise TypeError(f"items of a {type(self._stack[-1]).__name__}")
        return self._stack[-1]

    def global_name(self) -> None:
        self._stack.append(_function(self._line(), self._line()))

    def stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(_function(module, name))

    def reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(_called(function, arguments))

    def build(self) -> None:
        state, draft = self._stack.pop(), self._stack[-1]
        if draft.function == "dtype":
            draft.value = _ordered(draft.value, state)
        elif draft.function == "_reconstruct":
            _, shape, dtype, is_fortran, raw = state
            draft.value = _array(raw, dtype, shape, "F" if is_fortran else "C")
        else:
            raise TypeError(f"a state of {draft.function}")


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
    """Return the array of these bytes in this machine's byte order; None where it is not of numbers."""
    if dtype.function != "dtype" or dtype.value is None:
        return None
    if not all(type(size) is int and size >= 0 for size in shape) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"an array of shape {shape!r:.80}")
    expected = math.prod(shape) * dtype.value.itemsize
    if not isinstance(raw, bytes) or len(raw) != expected:
        raise ValueError(f"an array of {expected:,} bytes in {len(raw):,}")
    found = np.frombuffer(raw, dtype.value)
    return found.astype(found.dtype.newbyteorder("="), copy=False).reshape(shape, order="F" if order == "F" else "C")


def _long(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


_CONSTANTS: Mapping[int, Callable[[], Any]] = {
    ord("}"): dict,
    ord("]"): list,
    ord(")"): tuple,
    ord("("): lambda: _MARK,
    ord("N"): lambda: None,
    0x88: lambda: True,
    0x89: lambda: False,
}
_NUMBERS = {
    ord("J"): struct.Struct("<i"),
    ord("K"): struct.Struct("<B"),
    ord("M"): struct.Struct("<H"),
    ord("G"): struct.Struct(">d"),
}
_BYTE, _FOUR, _EIGHT = struct.Struct("<B"), struct.Struct("<I"), struct.Struct("<Q")
# Values after their length: texts, bytes and long integers.
_COUNTED: Mapping[int, tuple[struct.Struct, Callable[[bytes], Any]]] = {
    ord("X"): (_FOUR, bytes.decode),
    0x8C: (_BYTE, bytes.decode),
    0x8D: (_EIGHT, bytes.decode),
    ord("B"): (_FOUR, bytes),
    ord("C"): (_BYTE, bytes),
    0x8E: (_EIGHT, bytes),
    0x96: (_EIGHT, bytes),
    0x8A: (_BYTE, _long),
}
_OPERATIONS: Mapping[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    0x94: _Machine.memoize,
    ord("q"): _Machine.put,
    ord("r"): _Machine.long_put,
    ord("h"): _Machine.get,
    ord("j"): _Machine.long_get,
    ord("t"): _Machine.tuple,
    0x85: lambda machine: machine.tuple_of(1),
    0x86: lambda machine: machine.tuple_of(2),
    0x87: lambda machine: machine.tuple_of(3),
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("c"): _Machine.global_name,
    0x93: _Machine.stack_global,
    ord("R"): _Machine.reduce,
    ord("b"): _Machine.build,
}
