"""The state of live objects, environments above all, as numbers, texts and tensors.

Few environments can save themselves, but most are Python objects of plain attributes: these are read and written. What
cannot be read, such as the world of a physics engine, is reported by name, never skipped. Nothing is pickled: functions
and classes are in a state by name only, and ``state_restore`` leaves those of the fresh object where they are. What the
object's own code does with the restored values is up to that code.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlx.collector.environment.state_rules import (
    CONSTANTS,
    HiddenStateError,
    attributes_of,
    is_plain,
    name_of_class,
    name_of_constant,
    space_parts,
)

State = dict[str, Any]
_MAX_BYTES = 64 << 20
_WORD = 1 << 63
KINDS_OF_ARRAYS = "biufcmMSU"
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")

# Arrays of a MjData whose sizes the model alone decides.
_MUJOCO = " ".join(
    (
        "qacc act_dot sensordata energy xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos",
        "site_xmat cam_xpos cam_xmat light_xpos light_xdir subtree_com cdof cinert ten_length ten_velocity",
        "actuator_length actuator_velocity actuator_force crb cvel cdof_dot qfrc_bias qfrc_spring qfrc_damper",
        "qfrc_gravcomp qfrc_fluid qfrc_passive subtree_linvel subtree_angmom qfrc_actuator qfrc_smooth",
        "qacc_smooth qfrc_constraint qfrc_inverse cacc cfrc_int cfrc_ext",
    )
).split()
# Owners of memory that nobody else writes: what torch and ale-py return.
_COPIES = ("torch.Tensor", "nanobind.nb_ndarray")


def capture(root: Any, limit: int | None = _MAX_BYTES) -> State:
    """Return the state of an object and of all objects that it refers to; goes through ``torch.save``."""
    return Capture(root, limit).state


class Capture:
    """Reader of a graph of objects; each object is read once, so that shared objects stay shared."""

    def __init__(self, root: Any, limit: int | None = _MAX_BYTES) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.constants: dict[str, Any] = {}
        self.classes: dict[str, type] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # else the id of an object made on the way might come again
        self.name = type(root).__name__
        self._path = [self.name]
        self._bytes = 0
        self._limit = limit
        self._spans: list[tuple[int, int, int]] = []
        self.root = self.value(root)
        self._check_overlap()

    @property
    def state(self) -> State:
        """The nodes, and which of them is the root."""
        return {"root": self.root, "nodes": self.nodes}

    def value(self, value: Any) -> Any:
        """Return a value as the state has it: itself, or a reference to its node."""
        kind = type(value)
        if value is None or kind in (bool, float, str) or (kind is int and -_WORD <= value < _WORD):
            return value
        if (number := self._numbers.get(id(value))) is None:
            number = self._numbers[id(value)] = len(self.nodes)
            self.nodes.append({})
            self._alive.append(value)
            self.nodes[number].update(self._node(value, kind))
        return {"ref": number}

    def _node(self, value: Any, kind: type) -> dict[str, Any]:
        if reader := _READERS.get(kind):
            return reader(self, value)
        if reader := _FOREIGN.get(name_of_class(kind)):
            return reader(self, value)
        if isinstance(value, np.generic):
            return self._array_node("scalar", np.asarray(value))
        if isinstance(value, np.dtype):
            return {"kind": "dtype", "dtype": value.str}
        if isinstance(value, (Enum, *CONSTANTS)):
            return self._constant(value)
        if isinstance(value, Space):
            return self._space(value, kind)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            self.classes[name_of_class(kind)] = kind
            return {"kind": "named", "class": name_of_class(kind), "items": self._items(value)}
        return self._object(value, kind)

    @contextmanager
    def _at(self, name: str) -> Iterator[None]:
        self._path.append(name)
        yield
        self._path.pop()

    def _hidden(self, why: str) -> HiddenStateError:
        return HiddenStateError(f"{''.join(self._path)} {why}")

    def _items(self, values: Any) -> list[Any]:
        found = []
        for number, value in enumerate(values):
            with self._at(f"[{number}]"):
                found.append(self.value(value))
        return found

    def _sequence(self, value: Any) -> dict[str, Any]:
        return {"kind": type(value).__name__, "items": self._items(value)}

    def _deque(self, value: deque[Any]) -> dict[str, Any]:
        return {"kind": "deque", "items": self._items(value), "maxlen": value.maxlen}

    def _set(self, value: Any) -> dict[str, Any]:
        return {"kind": type(value).__name__, "items": self._items(sorted(value, key=repr))}

    def _dict(self, value: Any) -> dict[str, Any]:
        items = []
        for key, part in value.items():
            with self._at(f"[{key!r}]"):
                items.append((self.value(key), self.value(part)))
        return {"kind": type(value).__name__, "items": items}

    def _bytes_node(self, value: Any) -> dict[str, Any]:
        return self._array_node(type(value).__name__, np.frombuffer(bytes(value), np.uint8))

    def _array(self, value: NDArray[Any]) -> dict[str, Any]:
        if value.dtype.kind == "O":
            return {"kind": "objects", "shape": list(value.shape), "items": self._items(value.reshape(-1).tolist())}
        if (owner := _owner(value)) is not None:
            raise self._hidden(f"is a view of the memory of a {name_of_class(type(owner))}")
        if value.nbytes:
            self._spans.append((*np.lib.array_utils.byte_bounds(value), id(value)))
        return self._array_node("array", value)

    def _array_node(self, kind: str, value: NDArray[Any]) -> dict[str, Any]:
        import torch  # whoever saves a state has it imported

        if value.dtype.kind not in KINDS_OF_ARRAYS:
            raise self._hidden(f"is an array of {value.dtype}")
        self._bytes += value.nbytes
        if self._limit is not None and self._bytes > self._limit:
            raise self._hidden(f"and what was read before it exceed {self._limit >> 20} MiB")
        raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), np.uint8)) if value.nbytes else torch.empty(0)
        return {"kind": kind, "dtype": value.dtype.str, "shape": list(value.shape), "raw": raw}

    def _constant(self, value: Any) -> dict[str, Any]:
        described = name_of_constant(value)
        self.constants[described] = value
        return {"kind": "constant", "name": described}

    def _function(self, value: FunctionType) -> dict[str, Any]:
        if not value.__closure__:
            return self._constant(value)
        cells = []
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
            with self._at(f"<{name}>"):
                cells.append(self.value(cell.cell_contents))
        return {"kind": "closure", "name": name_of_class(value), "cells": cells}

    def _method(self, value: MethodType) -> dict[str, Any]:
        return {"kind": "method", "of": self.value(value.__self__), "name": value.__func__.__name__}

    def _ale(self, value: Any) -> dict[str, Any]:
        raw = value.cloneState(include_rng=True).__getstate__()
        return {"kind": "ale", "raw": self.value(bytes(raw))}

    def mujoco_model(self, value: Any) -> dict[str, Any]:
        """Return a digest: a model does not change, but it may have been changed before."""
        import mujoco  # only some users have it

        buffer = np.empty(mujoco.mj_sizeModel(value), np.uint8)
        mujoco.mj_saveModel(value, None, buffer)
        return {"kind": "mujoco_model", "digest": hashlib.blake2b(buffer.tobytes(), digest_size=16).hexdigest()}

    def _mujoco(self, value: Any) -> dict[str, Any]:
        import mujoco  # only some users have it

        spec = mujoco.mjtState.mjSTATE_INTEGRATION
        integration = np.empty(mujoco.mj_stateSize(value.model, spec))
        mujoco.mj_getState(value.model, value, integration, spec)
        # Positions of bodies, for example, are a step older, so they do not follow from the state.
        derived = {name: array.copy() for name, array in mujoco_arrays(value).items()}
        return {"kind": "mujoco", "integration": self.value(integration), "derived": self.value(derived)}

    def _space(self, value: Space[Any], kind: type) -> dict[str, Any]:
        return {"kind": "space", "class": name_of_class(kind), "attributes": self._attributes(space_parts(value))}

    def _object(self, value: Any, kind: type) -> dict[str, Any]:
        if not is_plain(kind):
            raise self._hidden(f"is a {name_of_class(kind)}, whose state cannot be read")
        self.classes[name_of_class(kind)] = kind
        path = self._path
        if isinstance(value, Env | VectorEnv):
            self._path = [kind.__name__]  # which says more than how it was reached
        found = self._attributes(attributes_of(value, kind))
        self._path = path
        return {"kind": "object", "class": name_of_class(kind), "attributes": found}

    def _attributes(self, found: Mapping[str, Any]) -> dict[str, Any]:
        values = {}
        for name in sorted(found):
            with self._at(f".{name}"):
                values[name] = self.value(found[name])
        return values

    def _check_overlap(self) -> None:
        spans = sorted(self._spans)
        for (_, end, _), (start, _, _) in pairwise(spans):
            if start < end:
                raise HiddenStateError(f"{self._path[0]} has arrays that are views of one memory")


def _owner(array: NDArray[Any]) -> Any:
    """Return the object whose memory an array is a view of; None if it is its own, or a copy made for it."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    is_own = base is None or isinstance(base, bytes | bytearray) or name_of_class(type(base)) in _COPIES
    return None if is_own else base


def mujoco_arrays(data: Any) -> dict[str, NDArray[Any]]:
    """Return the derived arrays of a MjData that an environment may read before the next step."""
    found = {name: getattr(data, name, None) for name in _MUJOCO}
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


_Reader = Callable[[Capture, Any], dict[str, Any]]
_READERS: dict[type, _Reader] = {
    list: Capture._sequence,
    tuple: Capture._sequence,
    set: Capture._set,
    frozenset: Capture._set,
    dict: Capture._dict,
    OrderedDict: Capture._dict,
    deque: Capture._deque,
    int: lambda _, value: {"kind": "int", "hex": hex(value)},
    bytes: Capture._bytes_node,
    bytearray: Capture._bytes_node,
    np.ndarray: Capture._array,
    np.random.Generator: lambda self, value: {"kind": "generator", "bits": self.value(value.bit_generator)},
    np.random.RandomState: lambda self, value: {
        "kind": "random_state",
        "state": self.value(value.get_state(legacy=False)),
    },
    random.Random: lambda self, value: {"kind": "random", "state": self.value(value.getstate())},
    FunctionType: Capture._function,
    MethodType: Capture._method,
    **dict.fromkeys(
        (getattr(np.random, name) for name in BIT_GENERATORS),
        lambda self, value: {"kind": "bits", "name": type(value).__name__, "state": self.value(value.state)},
    ),
}
_FOREIGN: dict[str, _Reader] = {
    "torch.Tensor": lambda _, value: {"kind": "tensor", "tensor": value.detach().cpu().clone()},
    "torch._C.Generator": lambda _, value: {
        "kind": "torch_generator",
        "device": str(value.device),
        "tensor": value.get_state(),
    },
    "ale_py._ale_py.ALEInterface": Capture._ale,
    "mujoco._structs.MjModel": Capture.mujoco_model,
    "mujoco._structs.MjData": Capture._mujoco,
}
