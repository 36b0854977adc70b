"""Restores the state of objects that were created in the same way; see ``state_capture``.

The whole state is read, and checked by ``state_rules``, before any attribute of a live object changes.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np
from gymnasium.spaces import Space

from rlx.collector.environment.state_capture import BIT_GENERATORS, KINDS_OF_ARRAYS, Capture, capture, mujoco_arrays
from rlx.collector.environment.state_rules import (
    KINDS,
    HiddenStateError,
    Rules,
    attributes_of,
    check_bits,
    check_place,
    is_code,
    name_of_class,
    name_of_constant,
    slots_of,
    space_parts,
)

T = TypeVar("T")
_NONE = type(None)


def restore(root: T, state: Mapping[str, Any], classes: tuple[type, ...] = ()) -> T:
    """Restore the state of an object that was created in the same way, and return it; of a list, a new list.

    Nothing of the state is called, and no function or class gets to where the object does not have it already; see
    ``state_rules``. New objects are made of classes that the object has other objects of.
    """
    made: T = _Restore(root, state, classes).run()
    if not _same(capture(made, None), state):
        raise HiddenStateError(f"{type(root).__name__}: not every attribute could be set")
    return made


class _Restore:
    """Writer of a state into the objects of a fresh graph; missing objects are created."""

    def __init__(self, root: Any, state: Mapping[str, Any], classes: tuple[type, ...]) -> None:
        self._fresh = Capture(root, None)
        self._rules = Rules(self._fresh, state, classes)
        self._root = root
        self._state = state
        self._built: dict[int, Any] = {}
        self._used: set[int] = set()
        self._writes: list[Callable[[], object]] = []  # changes of live objects, made once the whole state is read

    def run(self) -> Any:
        try:
            made = self._build(self._state["root"], self._root)
            self._check_root(made)
        except HiddenStateError:
            raise
        except Exception as exc:  # whatever a damaged state leads to
            raise HiddenStateError(f"{type(self._root).__name__}: state does not fit: {exc!r}") from exc
        try:
            for write in self._writes:
                write()
        except Exception as exc:
            name = type(self._root).__name__
            raise HiddenStateError(f"{name}: not every attribute could be set: {exc!r}") from exc
        return made

    def _check_root(self, made: Any) -> None:
        pairs = [(made, self._root)]
        if isinstance(made, list) and isinstance(self._root, list):
            pairs += zip(made, self._root, strict=True)
        if any(type(one) is not type(other) for one, other in pairs):
            raise HiddenStateError(f"{type(self._root).__name__}: the state is of something else")

    def _build(self, value: Any, current: Any = None) -> Any:
        if isinstance(value, dict):
            number = value["ref"]
            if number not in self._built:
                node = self._state["nodes"][number]
                self._built[number] = _WRITERS[node["kind"]](self, number, node, current)
            made = self._built[number]
        elif isinstance(value, bool | int | float | str | _NONE):
            made = value
        else:
            raise HiddenStateError(f"{type(self._root).__name__}: a {type(value).__name__} in the state")
        check_place(made, current)
        return made

    def _all(self, values: list[Any], current: Any) -> list[Any]:
        others = list(current) if isinstance(current, list | tuple | deque) else []
        return [self._build(value, others[i] if i < len(others) else None) for i, value in enumerate(values)]

    def _list(self, number: int, node: Mapping[str, Any], current: Any) -> Any:
        made: list[Any] | deque[Any] = deque(maxlen=node["maxlen"]) if node["kind"] == "deque" else []
        self._built[number] = made
        made.extend(self._all(node["items"], current))
        return made

    _deque = _list

    def _tuple(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        return tuple(self._all(node["items"], current))

    def _set(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        made = {self._key(item) for item in node["items"]}
        return made if node["kind"] == "set" else frozenset(made)

    _frozenset = _set

    def _named(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        return self._rules.named_tuple(node["class"], self._all(node["items"], current))

    def _dict(self, number: int, node: Mapping[str, Any], current: Any) -> Any:
        made: dict[Any, Any] = {} if node["kind"] == "dict" else OrderedDict()
        self._built[number] = made
        others: dict[Any, Any] = current if isinstance(current, dict) else {}
        code = {name_of_constant(key): key for key in others if is_code(key)}
        for key, part in node["items"]:
            node_of_key = self._state["nodes"][key["ref"]] if isinstance(key, dict) else {}
            at = self._key(key, code.get(str(node_of_key.get("name"))))
            made[at] = self._build(part, others.get(at))
        return made

    _OrderedDict = _dict

    def _key(self, value: Any, current: Any = None) -> Any:
        made = self._build(value, current)
        if self._changes_hash(made):
            raise HiddenStateError(f"a {name_of_class(type(made))} is in a set or a key, and its hash changes")
        return made

    def _changes_hash(self, made: Any) -> bool:
        """Return whether a hash depends on attributes that are written later."""
        if isinstance(made, tuple | frozenset):
            return any(map(self._changes_hash, made))
        own: Any = type(made).__hash__
        return id(made) in self._used and own is not object.__hash__

    def _int(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        return int(node["hex"], 16)

    def _bytes(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        return node["raw"].numpy().tobytes()

    def _bytearray(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        return bytearray(node["raw"].numpy().tobytes())

    def _array(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        dtype = np.dtype(node["dtype"])
        if dtype.kind not in KINDS_OF_ARRAYS:
            raise HiddenStateError(f"an array of {dtype} is in the state")
        return np.frombuffer(bytearray(node["raw"].numpy().tobytes()), dtype).reshape(node["shape"])

    def _dtype(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        return np.dtype(node["dtype"])

    def _scalar(self, number: int, node: Mapping[str, Any], current: Any) -> Any:
        return self._array(number, node, current)[()]

    def _objects(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        made = np.empty(len(node["items"]), object)
        others = current.reshape(-1).tolist() if isinstance(current, np.ndarray) else []
        for i, value in enumerate(self._all(node["items"], others)):
            made[i] = value
        return made.reshape(node["shape"])

    def _generator(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        return np.random.Generator(self._build(node["bits"]))

    def _bits(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        if node["name"] not in BIT_GENERATORS:
            raise HiddenStateError(f"generator {node['name']!r}: expected one of {', '.join(BIT_GENERATORS)}")
        made = getattr(np.random, node["name"])()
        state = self._build(node["state"])
        check_bits(node["name"], state)
        made.state = state
        return made

    def _random_state(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        made = np.random.RandomState()
        state = self._build(node["state"])
        check_bits(state["bit_generator"], state)
        made.set_state(state)
        return made

    def _random(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        made = random.Random()
        made.setstate(self._build(node["state"]))
        return made

    def _tensor(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        import torch  # it is imported already

        made = torch.as_tensor(node["tensor"]).clone()
        return made.to(current.device) if isinstance(current, torch.Tensor) else made

    def _torch_generator(self, _: int, node: Mapping[str, Any], __: Any) -> Any:
        import torch  # it is imported already

        made = torch.Generator(node["device"])
        made.set_state(node["tensor"])
        return made

    def _constant(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        if current is not None and name_of_constant(current) == node["name"]:
            return current  # two functions may have one name
        if node["name"] not in self._fresh.constants:
            raise HiddenStateError(f"{node['name']} is in the state, but not in {type(self._root).__name__}")
        return self._fresh.constants[node["name"]]

    def _closure(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        if not isinstance(current, FunctionType) or name_of_class(current) != node["name"]:
            raise HiddenStateError(f"function {node['name']} is in the state, but not in its place")
        for cell, value in zip(current.__closure__ or (), node["cells"], strict=True):
            made = self._build(value, cell.cell_contents)
            self._writes.append(partial(setattr, cell, "cell_contents", made))
        return current

    def _method(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        if not isinstance(current, MethodType) or current.__func__.__name__ != node["name"]:
            raise HiddenStateError(f"method {node['name']} is in the state, but not in its place")
        of = self._build(node["of"], current.__self__)
        return current if of is current.__self__ else MethodType(current.__func__, of)

    def _ale(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        from ale_py import ALEState  # only some users have it

        self._check_in_place(current, "ale_py._ale_py.ALEInterface")
        state = ALEState.__new__(ALEState)
        state.__setstate__(self._build(node["raw"]))
        self._writes.append(lambda: current.restoreState(state))
        return current

    def _check_in_place(self, current: Any, name: str) -> None:
        if name_of_class(type(current)) != name:
            raise HiddenStateError(f"a {name} is in the state, but not in its place")

    def _mujoco_model(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        self._check_in_place(current, "mujoco._structs.MjModel")
        if self._fresh.mujoco_model(current) != node:
            raise HiddenStateError("the MuJoCo model is another")
        return current

    def _mujoco(self, _: int, node: Mapping[str, Any], current: Any) -> Any:
        import mujoco  # only some users have it

        self._check_in_place(current, "mujoco._structs.MjData")
        spec = mujoco.mjtState.mjSTATE_INTEGRATION
        integration, arrays = self._build(node["integration"]), mujoco_arrays(current)
        derived = self._build(node["derived"])
        fits = integration.shape == (mujoco.mj_stateSize(current.model, spec),) and derived.keys() == arrays.keys()
        if not fits or any(array.shape != arrays[name].shape for name, array in derived.items()):
            raise HiddenStateError("the state of MuJoCo has other sizes")
        self._writes.append(lambda: mujoco.mj_setState(current.model, current, integration, spec))
        self._writes += [partial(np.copyto, arrays[name], array) for name, array in derived.items()]
        return current

    def _space(self, number: int, node: Mapping[str, Any], current: Any) -> Any:
        if not isinstance(current, Space):
            raise HiddenStateError(f"a {node['class']} is in the state, but not in its place")
        self._check_in_place(current, node["class"])
        return self._filled(current, number, node, space_parts(current))

    def _object(self, number: int, node: Mapping[str, Any], current: Any) -> Any:
        kind = self._rules.class_of(node["class"])
        is_there = name_of_class(type(current)) == node["class"] and not issubclass(kind, tuple)
        if is_there and id(current) not in self._used:
            self._used.add(id(current))
            return self._filled(current, number, node, attributes_of(current, type(current)))
        return self._filled(self._rules.new(node["class"]), number, node, None)

    def _filled(self, target: Any, number: int, node: Mapping[str, Any], before: Mapping[str, Any] | None) -> Any:
        """Set attributes: of a new object now, of a live one after the whole state was read."""
        self._built[number] = target
        old, writes = before or {}, []
        for name, value in node["attributes"].items():
            self._rules.check_attribute(target, name, value, old)
            made = self._build(value, old.get(name))
            if name not in old or made is not old[name]:
                writes.append(partial(_set, target, name, made))
        if not isinstance(target, Space):
            writes += [partial(object.__delattr__, target, name) for name in old.keys() - node["attributes"].keys()]
        if before is None:
            for write in writes:
                write()
        else:
            self._writes += writes
        return target


def _set(target: Any, name: str, made: Any) -> None:
    if name in getattr(target, "__dict__", {}) or name not in slots_of(type(target)):
        target.__dict__[name] = made
    else:
        object.__setattr__(target, name, made)


_Writer = Callable[[_Restore, int, Mapping[str, Any], Any], Any]
# A state says the kind of each node, so only these methods are called.
_WRITERS: dict[str, _Writer] = {kind: getattr(_Restore, f"_{kind}") for kind in KINDS}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        is_alike = isinstance(other, list | tuple) and len(one) == len(other)
        return is_alike and all(map(_same, one, other))
    if hasattr(one, "equal"):
        alike = hasattr(other, "equal") and one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and (one.equal(other) or one.numpy().tobytes() == other.numpy().tobytes()))
    return type(one) is type(other) and (one == other or (one != one and other != other))
