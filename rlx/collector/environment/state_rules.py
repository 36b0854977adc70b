"""Rules of states: which attributes belong to one, and that functions, methods and classes stay where they are.

A state may come from elsewhere. It decides the values of attributes, so it must not decide which code is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Env
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from rlx.errors import CollectError

if TYPE_CHECKING:
    from rlx.collector.environment.state_capture import Capture

CONSTANTS = (type, ModuleType, BuiltinFunctionType, EnvSpec, np.ufunc, slice, range, complex)
_POINTER = 8
# Attributes that do not change, or that nothing depends on, by the class that has them.
_FIXED: Mapping[str, frozenset[str]] = {
    name: frozenset(attributes.split())
    for name, attributes in {
        "gymnasium.core.Env": "spec metadata",
        "gymnasium.core.Wrapper": "_saved_kwargs _cached_spec _metadata",
        "gymnasium.vector.vector_env.VectorEnv": "spec metadata",
        "gymnasium.vector.sync_vector_env.SyncVectorEnv": "env_fns",
        "gymnasium.utils.ezpickle.EzPickle": "_ezpickle_args _ezpickle_kwargs",
        "gymnasium.wrappers.common.PassiveEnvChecker": "_previous_data",
        "rlx.collector.environment.vector.VectorEnvironment": "name settings spec _as_seeds _here",
        "rlx.collector.rollout.loop.Rollout": "_observation_leaves _action_leaves _fit_actions",
    }.items()
}
_DRAWING = frozenset(
    ("screen", "clock", "surf", "font", "window", "window_surface", "viewer", "mujoco_renderer", "cell_images")
)
_DRAWN = ("gymnasium.envs.", "ale_py.")  # modules of the classes whose attributes of these names are for drawing


class HiddenStateError(CollectError):
    """An object keeps state where it cannot be read, or a state does not fit the object."""


# Kinds of nodes that are numbers, texts and arrays, and containers of them.
_DATA = frozenset(
    " ".join(
        (
            "list tuple set frozenset dict OrderedDict deque named int bytes bytearray array dtype scalar objects",
            "generator bits random_state random tensor torch_generator",
        )
    ).split()
)
KINDS = _DATA | {"constant", "closure", "method", "ale", "mujoco_model", "mujoco", "space", "object"}
_POSITIONS = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}


def is_code(value: Any) -> bool:
    """Return whether a value can be called, or has functions to call that belong to no captured class."""
    return callable(value) or isinstance(value, ModuleType | EnvSpec)


def check_place(made: Any, current: Any) -> None:
    """Raise HiddenStateError if a value is code, or takes the place of an environment, and the fresh one differs.

    Args:
        current: what the fresh object has in this place; None if it has nothing.
    """
    if isinstance(current, Env | VectorEnv | Space) and type(made) is not type(current):
        raise HiddenStateError(f"a {name_of_class(type(made))} is in the place of a {name_of_class(type(current))}")
    if made is current or not is_code(made):
        return
    if isinstance(made, MethodType):
        is_kept = isinstance(current, MethodType) and made.__func__ is current.__func__
        is_kept = is_kept and type(made.__self__) is type(current.__self__)
    else:
        is_kept = not isinstance(made, (*CONSTANTS, FunctionType)) and type(made) is type(current)
    if not is_kept:
        raise HiddenStateError(f"{described(made)} is in the state, but not in its place")


def described(value: Any) -> str:
    """Return the name of a function, class or module, or of the class of another object."""
    return name_of_class(value if isinstance(value, type | FunctionType) else type(value))


def check_bits(name: str, state: Mapping[str, Any]) -> None:
    """Raise HiddenStateError if a bit generator would read after the end of its words, which numpy does not check."""
    if name in _POSITIONS:
        key, last = _POSITIONS[name]
        position = (state["state"] if key in state["state"] else state)[key]
        if not 0 <= int(position) <= last:
            raise HiddenStateError(f"{name}: position {position}, expected at most {last}")


class Rules:
    """Which classes and attributes a state may have, by the graph of the fresh object.

    Args:
        state: the state; for its nodes.
    """

    def __init__(self, fresh: Capture, state: Mapping[str, Any], classes: tuple[type, ...]) -> None:
        self._classes = {**fresh.classes, **{name_of_class(kind): kind for kind in classes}}
        self._constants = fresh.constants
        self._nodes = state["nodes"]
        self._root = fresh.name
        self._names: dict[str, set[str]] = {}
        for node in fresh.nodes:
            if node["kind"] == "object":
                self._names.setdefault(node["class"], set()).update(node["attributes"])

    def class_of(self, name: str) -> type:
        """Return a class of the graph."""
        if name not in self._classes:
            raise HiddenStateError(f"class {name} is in the state, but not in {self._root}")
        return self._classes[name]

    def new(self, name: str) -> Any:
        """Return an object of a class of the graph, without attributes; no code of the class is run."""
        kind = self.class_of(name)
        if issubclass(kind, tuple) or hasattr(kind, "__del__"):  # code that the absence of attributes may confuse
            raise HiddenStateError(f"another {name} is in the state than in {self._root}")
        return object.__new__(kind)

    def named_tuple(self, name: str, items: list[Any]) -> Any:
        """Return a named tuple of a class of the graph; no code of the class is run."""
        kind: Any = self.class_of(name)
        if not issubclass(kind, tuple) or len(kind._fields) != len(items):
            raise HiddenStateError(f"class {name} has other fields in the state")
        return tuple.__new__(kind, items)

    def check_attribute(self, target: Any, name: str, value: Any, before: Mapping[str, Any]) -> None:
        """Raise HiddenStateError if a state may not set an attribute.

        Args:
            before: the attributes that may change; where a name is among them, ``check_place`` decides.
        """
        kind = type(target)
        if name in before:
            return
        why = None
        static = inspect.getattr_static(kind, name, None)
        is_known = name in slots_of(kind)
        if not is_known and not isinstance(static, cached_property):
            is_known = name in self._names.get(name_of_class(kind), ())
            if callable(static) or hasattr(type(static), "__get__"):
                why = "hides a function of its class"
        is_special = name.startswith("__") and name.endswith("__")
        is_fixed = name != "_np_random" if isinstance(target, Space) else name in fixed_attributes(kind)
        if is_special or is_fixed:
            why = "is not part of its state"
        elif why is None and not is_known and not self._is_data(value, set()):
            why = "is missing before, and not only numbers, texts and arrays"
        if why is not None:
            raise HiddenStateError(f"{name_of_class(kind)}.{name} {why}")

    def _is_data(self, value: Any, seen: set[int]) -> bool:
        """Return whether a part of the state is numbers, texts, arrays, generators and containers of them."""
        if isinstance(value, list | tuple):
            return all(self._is_data(part, seen) for part in value)
        if not isinstance(value, dict) or value.get("ref") in seen:
            return True
        if "ref" not in value:
            return all(self._is_data(part, seen) for part in value.values())
        seen.add(value["ref"])
        node = self._nodes[value["ref"]]
        if node["kind"] == "constant":
            return not is_code(self._constants.get(node["name"], np.ufunc))
        return node["kind"] in _DATA and all(self._is_data(part, seen) for part in node.values())


def name_of_class(kind: Any) -> str:
    """Return the module and name of a class or function."""
    return f"{_module(kind)}.{getattr(kind, '__qualname__', '?')}"


def name_of_constant(value: Any) -> str:
    """Return the text by which a state has a function, a class, or an object that does not change."""
    if isinstance(value, EnvSpec):
        return f"EnvSpec {value.id}"
    if isinstance(value, type | FunctionType):
        return name_of_class(value)
    return f"{name_of_class(type(value))} {value!r}"


def _module(kind: Any) -> str:
    return str(getattr(kind, "__module__", None))  # some classes of C code have none


def slots_of(kind: type) -> list[str]:
    """Return the names of the slots of a class and its bases."""
    found: list[str] = []
    for cls in kind.__mro__:
        slots = cls.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def is_plain(kind: type) -> bool:
    """Return whether objects of a class have attributes alone, and no memory of C code; as ``object.__reduce__``
    decides."""
    room = object.__basicsize__ + _POINTER * len(slots_of(kind))
    room += _POINTER * (kind.__dictoffset__ > 0) + _POINTER * (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ <= room and not kind.__itemsize__ and kind.__flags__ & (1 << 9) != 0


def attributes_of(value: Any, kind: type) -> dict[str, Any]:
    """Return the attributes of an object that may change."""
    fixed = fixed_attributes(kind)
    found = {name: getattr(value, name) for name in slots_of(kind) if hasattr(value, name)}
    found |= getattr(value, "__dict__", {})
    return {name: part for name, part in found.items() if name not in fixed}


def fixed_attributes(kind: type) -> set[str]:
    """Return the names of attributes that a class keeps out of its state."""
    found: set[str] = set()
    for cls in kind.__mro__:
        found |= _FIXED.get(name_of_class(cls), frozenset())
        if _module(cls).startswith(_DRAWN):
            found |= _DRAWING
    return found


def space_parts(space: Space[Any]) -> dict[str, Any]:
    """Return the attributes of a space that may change: its generator, and the spaces that it has."""
    return {name: part for name, part in vars(space).items() if name == "_np_random" or _has_spaces(part)}


def _has_spaces(part: Any) -> bool:
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else [part]
    return any(isinstance(value, Space) for value in values)
