"""The state of environments, with which a collector continues in mid-episode.

An environment that has ``get_state`` and ``set_state`` is asked. Of any other, the attributes are the state, if they
are numbers, texts, arrays, generators, and containers of these; and so for its wrappers, for gymnasium's and rlx's own
objects, and for what ALE and MuJoCo copy. Functions, classes and spaces are not part of it: they stay as they are in
the environment that is restored. Anything else is named, or pickled if its user trusts the state.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import partial
from inspect import getattr_static
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
from gymnasium import Env
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlx.collector.environment.autoreset import AutoresetMode
from rlx.errors import CollectError

T = TypeVar("T")
State = dict[str, Any]
Node = Mapping[str, Any]
_MAX_BYTES = 64 << 20
_WORD = 1 << 63
_POINTER = 8
_ARRAYS = "biufcmMSU"
_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque, dict, OrderedDict)}
_BITS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
# Where a bit generator's next word is, and how many it has.
_POSITIONS = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}
_CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, np.ufunc, EnvSpec, Enum)
_OWN = ("gymnasium.", "ale_py.", "rlx.")
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
        "rlx.collector.environment.intake.Intake": "source",
    }.items()
}
_DRAWING = frozenset(
    ("screen", "clock", "surf", "font", "window", "window_surface", "viewer", "mujoco_renderer", "cell_images")
)
_DRAWN = ("gymnasium.envs.", "ale_py.")  # modules of the classes whose attributes of these names are for drawing
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
# Of numpy 2, or of numpy 1.
_byte_bounds = getattr(np.lib, "array_utils", np).byte_bounds


class HiddenStateError(CollectError):
    """An object keeps state where it cannot be read, or a state does not fit the object."""


def save_state(
    root: Any, *, trust: bool = False, limit: int | None = _MAX_BYTES, values: tuple[type, ...] = ()
) -> State:
    """Return the state of environments and of what steps them: numbers, texts and tensors, as ``torch.save`` takes.

    Args:
        root: a list of such objects, or one.
        trust: whether to pickle what is neither of the above; to be restored with ``trust`` alone.
        limit: most bytes.
        values: dataclasses whose objects are restored as new ones, from their fields.

    Raises:
        HiddenStateError: something's state cannot be read; the message has its name.
    """
    writer = _Writer(trust, limit, values)
    found = {"root": writer.value(root, type(root).__name__), "nodes": writer.nodes}
    spans = sorted(writer.spans)
    if any(start < end for (_, end), (start, _) in pairwise(spans)):
        raise HiddenStateError(f"{type(root).__name__} has arrays that are views of one memory")
    return found


def restore_state(root: T, state: Mapping[str, Any], *, trust: bool = False, values: tuple[type, ...] = ()) -> T:
    """Restore the state of an object that was made in the same way, and return it; of a list, a new list.

    The whole state is read before anything of the object changes. Unless it is trusted, a state decides values alone:
    no code of it is called, and no function, class or object is put where the object has another.

    Raises:
        HiddenStateError: the state does not fit.
    """
    name = type(root).__name__
    reader = _Reader(state, trust, values)
    try:
        made: T = reader.value(state["root"], root)
    except HiddenStateError:
        raise
    except Exception as exc:  # whatever a damaged state leads to
        raise HiddenStateError(f"{name}: the state does not fit: {exc!r}") from exc
    for write in reader.writes:
        write()
    if not _same(save_state(made, trust=trust, limit=None, values=values), state):
        raise HiddenStateError(f"{name}: not every attribute could be set")
    return made


class _Writer:
    """Writer of objects as nodes; each is written once, so that what is shared stays shared."""

    def __init__(self, trust: bool, limit: int | None, values: tuple[type, ...]) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.spans: list[tuple[int, int]] = []
        self._trust, self._limit, self._values, self._bytes = trust, limit, values, 0
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # else the id of an object made on the way might come again

    def value(self, value: Any, path: str) -> Any:
        """Return a value as the state has it: itself, or a reference to its node."""
        kind = type(value)
        if value is None or kind in (bool, float, str) or (kind is int and -_WORD <= value < _WORD):
            return value
        if (number := self._numbers.get(id(value))) is None:
            number = self._numbers[id(value)] = len(self.nodes)
            self.nodes.append({})
            self._alive.append(value)
            self.nodes[number].update(self._node(value, kind, path))
        return {"ref": number}

    def _node(self, value: Any, kind: type, path: str) -> dict[str, Any]:
        if _CONTAINERS.get(kind.__name__) is kind:
            return self._container(value, kind, path)
        if kind in self._values:
            parts = [getattr(value, field.name) for field in fields(value)]
            return {"kind": "value", "class": _name(kind), "fields": self.value(parts, path)}
        if kind is int:
            return {"kind": "int", "hex": hex(value)}
        if kind in (bytes, bytearray):
            return {**self._raw(np.frombuffer(bytes(value), np.uint8), path), "kind": kind.__name__}
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, np.generic):
            return {**self._raw(np.asarray(value), path), "kind": "scalar"}
        if isinstance(value, np.dtype):
            return {"kind": "dtype", "dtype": value.str}
        if isinstance(value, AutoresetMode):
            return {"kind": "autoreset", "name": value.name}
        if _name(kind) == "torch.Tensor":
            return {"kind": "tensor", "tensor": value.detach().cpu().clone()}
        if (found := _generator_state(value)) is not None:
            return {"kind": "generator", "class": kind.__name__, "state": self.value(found, path)}
        if _is_code(value):
            return self._code(value, path)
        if (copy := _COPIED.get(_name(kind))) is not None:
            return {"kind": "copied", "class": _name(kind), "state": self.value(copy[0](value), path)}
        return self._object(value, kind, path)

    def _container(self, value: Any, kind: type, path: str) -> dict[str, Any]:
        if issubclass(kind, dict):
            items: list[Any] = [
                [self.value(key, path), self.value(part, f"{path}[{key!r}]")] for key, part in value.items()
            ]
        else:
            parts = sorted(value, key=repr) if kind in (set, frozenset) else value
            items = [self.value(part, f"{path}[{number}]") for number, part in enumerate(parts)]
        return {"kind": kind.__name__, "items": items, **({"maxlen": value.maxlen} if kind is deque else {})}

    def _array(self, value: NDArray[Any], path: str) -> dict[str, Any]:
        if value.dtype.kind == "O":
            items = [self.value(part, f"{path}[{number}]") for number, part in enumerate(value.reshape(-1).tolist())]
            return {"kind": "objects", "shape": list(value.shape), "items": items}
        owner: Any = value
        while isinstance(owner, np.ndarray | memoryview):
            owner = owner.obj if isinstance(owner, memoryview) else owner.base
        if not (owner is None or isinstance(owner, bytes | bytearray) or _name(type(owner)) in _COPIES):
            raise HiddenStateError(f"{path} is a view of the memory of a {_name(type(owner))}")
        if value.nbytes:
            self.spans.append(_byte_bounds(value))
        return self._raw(value, path)

    def _raw(self, value: NDArray[Any], path: str) -> dict[str, Any]:
        import torch  # whoever saves a state has it imported

        if value.dtype.kind not in _ARRAYS:
            raise HiddenStateError(f"{path} is an array of {value.dtype}")
        self._bytes += value.nbytes
        if self._limit is not None and self._bytes > self._limit:
            raise HiddenStateError(f"{path} and what was read before it exceed {self._limit >> 20} MiB")
        raw = torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), np.uint8)) if value.nbytes else torch.empty(0)
        return {"kind": "array", "dtype": value.dtype.str, "shape": list(value.shape), "raw": raw}

    def _code(self, value: Any, path: str) -> dict[str, Any]:
        """Return the name alone: the environment that is restored keeps its own."""
        is_foreign = isinstance(value, FunctionType) and not _is_own(value) and not self._trust
        if is_foreign and value.__closure__:
            raise HiddenStateError(f"{path} is a function that may keep state in its closure")
        of = {"of": self.value(value.__self__, path)} if isinstance(value, MethodType) else {}
        return {"kind": "kept", "name": _name_of_code(value), **of}

    def _object(self, value: Any, kind: type, path: str) -> dict[str, Any]:
        is_environment = isinstance(value, Env | VectorEnv)
        if is_environment:
            path = kind.__name__  # which says more than how it was reached
        if not (is_environment or _is_own(kind) or isinstance(value, Space)) or not _is_plain(kind):
            hint = "give its environment get_state and set_state, or pass trust=True, which pickles it"
            raise HiddenStateError(f"{path} is a {_name(kind)}, whose state cannot be read", hint=hint)
        found = _attributes(value)
        if is_environment and _has_own_state(kind):
            own = value.get_state()
            kept = {name: part for name, part in found.items() if name == "_np_random" or _is_environment(part)}
            return {**self._of(kind, kept, path), "own": self.value(own, f"{path}.get_state()")}
        try:
            return self._of(kind, found, path)
        except HiddenStateError:
            if not self._trust or not is_environment or _is_own(kind):
                raise
        inner = self._of(kind, {name: part for name, part in found.items() if _is_environment(part)}, path)
        pickled = io.BytesIO()
        try:
            _Pickler(pickled, self._numbers).dump(
                {name: part for name, part in found.items() if name not in inner["attributes"]}
            )
        except Exception as exc:  # whatever the functions raise by which classes pickle themselves
            raise HiddenStateError(f"{path} cannot be pickled: {exc}") from exc
        return {**inner, "pickled": self._raw(np.frombuffer(pickled.getvalue(), np.uint8), path)["raw"]}

    def _of(self, kind: type, attributes: Mapping[str, Any], path: str) -> dict[str, Any]:
        values = {name: self.value(attributes[name], f"{path}.{name}") for name in sorted(attributes)}
        return {"kind": "object", "class": _name(kind), "attributes": values}


class _Reader:
    """Reader of nodes, in the places of the objects of an environment that was made in the same way."""

    def __init__(self, state: Mapping[str, Any], trust: bool, values: tuple[type, ...]) -> None:
        self.writes: list[Callable[[], object]] = []  # changes of live objects, made once the whole state is read
        self._nodes = state["nodes"]
        self._trust = trust
        self._values = {_name(kind): kind for kind in values}
        self._built: dict[int, Any] = {}

    def value(self, value: Any, current: Any) -> Any:
        """Return what the state has in a place, where the object has ``current``; None if it has nothing there."""
        if isinstance(value, dict):
            number = value["ref"]
            if number not in self._built:
                node = self._nodes[number]
                read = getattr(self, f"_read_{node['kind']}", None) if node["kind"] in _KINDS else None
                if read is None:
                    raise HiddenStateError(f"a {node['kind']} in the state")
                self._built[number] = read(node, current, number)
            made = self._built[number]
        elif value is None or isinstance(value, bool | int | float | str):
            made = value
        else:
            raise HiddenStateError(f"a {type(value).__name__} in the state")
        is_value = type(made) in self._values.values() and (current is None or type(current) is type(made))
        if made is not current and not is_value and (_is_kept(current) or _is_kept(made)):
            raise HiddenStateError(f"{_described(made)} is in the state, in the place of {_described(current)}")
        return made

    def _all(self, values: list[Any], current: Any) -> list[Any]:
        others = list(current) if isinstance(current, list | tuple | deque) else []
        return [self.value(value, others[i] if i < len(others) else None) for i, value in enumerate(values)]

    def _read_list(self, node: Node, current: Any, number: int) -> Any:
        made: Any = deque(maxlen=node["maxlen"]) if node["kind"] == "deque" else []
        self._built[number] = made
        made.extend(self._all(node["items"], current))
        return made

    _read_deque = _read_list

    def _read_tuple(self, node: Node, current: Any, _: int) -> Any:
        return _CONTAINERS[node["kind"]](self._all(node["items"], current))

    _read_set = _read_frozenset = _read_tuple

    def _read_dict(self, node: Node, current: Any, number: int) -> Any:
        made: Any = _CONTAINERS[node["kind"]]()
        self._built[number] = made
        others = current if isinstance(current, dict) else {}
        for key, part in node["items"]:
            at = self.value(key, None)
            made[at] = self.value(part, others.get(at))
        return made

    _read_OrderedDict = _read_dict

    def _read_value(self, node: Node, *_: Any) -> Any:
        if node["class"] not in self._values:
            raise HiddenStateError(f"a {node['class']} is in the state, but not in its place")
        return self._values[node["class"]](*self.value(node["fields"], None))

    def _read_int(self, node: Node, *_: Any) -> Any:
        return int(node["hex"], 16)

    def _read_bytes(self, node: Node, *_: Any) -> Any:
        return {"bytes": bytes, "bytearray": bytearray}[node["kind"]](node["raw"].numpy().tobytes())

    _read_bytearray = _read_bytes

    def _read_array(self, node: Node, *_: Any) -> Any:
        dtype = np.dtype(node["dtype"])
        if dtype.kind not in _ARRAYS:
            raise HiddenStateError(f"an array of {dtype} is in the state")
        return np.frombuffer(bytearray(node["raw"].numpy().tobytes()), dtype).reshape(node["shape"])

    def _read_scalar(self, node: Node, *_: Any) -> Any:
        return self._read_array(node)[()]

    def _read_objects(self, node: Node, current: Any, _: int) -> Any:
        made = np.empty(len(node["items"]), object)
        others = current.reshape(-1).tolist() if isinstance(current, np.ndarray) else []
        for place, part in enumerate(self._all(node["items"], others)):
            made[place] = part
        return made.reshape(node["shape"])

    def _read_dtype(self, node: Node, *_: Any) -> Any:
        return np.dtype(node["dtype"])

    def _read_autoreset(self, node: Node, *_: Any) -> Any:
        return AutoresetMode[node["name"]]

    def _read_tensor(self, node: Node, current: Any, _: int) -> Any:
        import torch  # it is imported already

        made = torch.as_tensor(node["tensor"]).clone()
        return made.to(current.device) if isinstance(current, torch.Tensor) else made

    def _read_generator(self, node: Node, *_: Any) -> Any:
        return _generator(node["class"], self.value(node["state"], None))

    def _read_kept(self, node: Node, current: Any, _: int) -> Any:
        if not _is_code(current) or _name_of_code(current) != node["name"]:
            raise HiddenStateError(f"{node['name']} is in the state, but not in its place")
        if isinstance(current, MethodType):
            self.value(node["of"], current.__self__)
        return current

    def _read_copied(self, node: Node, current: Any, _: int) -> Any:
        if _name(type(current)) != node["class"]:
            raise HiddenStateError(f"a {node['class']} is in the state, but not in its place")
        self.writes.append(_COPIED[node["class"]][1](current, self.value(node["state"], None)))
        return current

    def _read_object(self, node: Node, current: Any, number: int) -> Any:
        kind = type(current)
        if _name(kind) != node["class"] or not _is_kept(current):
            raise HiddenStateError(f"a {node['class']} is in the state, but not in its place")
        self._built[number] = current
        before = _attributes(current)
        after = {name: self._attribute(current, name, value, before) for name, value in node["attributes"].items()}
        if "own" in node:
            if not _has_own_state(kind):
                raise HiddenStateError(f"{_name(kind)} has no get_state and set_state")
            self.writes += [
                partial(vars(current).update, after),
                partial(current.set_state, self.value(node["own"], None)),
            ]
            return current
        if "pickled" in node:
            if not self._trust:
                raise HiddenStateError(
                    f"the state of {_name(kind)} is pickled", hint="load it with trust=True, if you trust its source"
                )
            raw = io.BytesIO(node["pickled"].numpy().tobytes())
            after |= _Unpickler(raw, self._built).load()
        self.writes.append(partial(vars(current).update, after))
        self.writes += [partial(vars(current).pop, name) for name in before.keys() - after.keys()]
        return current

    def _attribute(self, target: Any, name: str, value: Any, before: Mapping[str, Any]) -> Any:
        static = getattr_static(type(target), name, None)
        if name not in before and (
            name in _fixed(type(target)) or callable(static) or hasattr(type(static), "__get__")
        ):
            raise HiddenStateError(f"{_name(type(target))}.{name} is in the state, but is no attribute that may change")
        return self.value(value, before.get(name))


_KINDS = frozenset(name.removeprefix("_read_") for name in vars(_Reader) if name.startswith("_read_"))


class _Pickler(pickle.Pickler):
    """Pickler of the attributes of an environment; those of other environments are in nodes of their own."""

    def __init__(self, file: io.BytesIO, numbers: Mapping[int, int]) -> None:
        super().__init__(file)
        self._numbers = numbers

    def persistent_id(self, value: Any) -> Any:
        """Return the number of the node of an environment; None of anything else."""
        if not _is_environment(value):
            return None
        if id(value) not in self._numbers:  # gymnasium's own would be pickled without their state
            raise HiddenStateError(f"a {_name(type(value))} is in an attribute, whose state cannot be read")
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, built: Mapping[int, Any]) -> None:
        super().__init__(file)
        self._built = built

    def persistent_load(self, number: Any) -> Any:
        """Return the environment of a node."""
        return self._built[number]


# ---- what belongs to a state


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that may change; of a space, its generator and the spaces that it has."""
    if isinstance(value, Space):
        return {name: part for name, part in vars(value).items() if name == "_np_random" or _has_spaces(part)}
    fixed = _fixed(type(value))
    return {name: part for name, part in getattr(value, "__dict__", {}).items() if name not in fixed}


def _has_spaces(part: Any) -> bool:
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else [part]
    return any(isinstance(value, Space) for value in values)


def _fixed(kind: type) -> set[str]:
    """Return the names of attributes that a class keeps out of its state."""
    found: set[str] = set()
    for cls in kind.__mro__:
        found |= _FIXED.get(_name(cls), frozenset())
        if str(cls.__module__).startswith(_DRAWN):
            found |= _DRAWING
    return found


def _is_environment(value: Any) -> bool:
    return isinstance(value, Env | VectorEnv)


def _is_own(value: Any) -> bool:
    return f"{getattr(value, '__module__', None)}.".startswith(_OWN)


def _is_kept(value: Any) -> bool:
    """Return whether a value stays where the object has it: code, and objects whose attributes are restored."""
    if isinstance(value, AutoresetMode):
        return False
    is_object = isinstance(value, Env | VectorEnv | Space) or _is_own(type(value)) or _name(type(value)) in _COPIED
    return is_object or _is_code(value)


def _has_own_state(kind: type) -> bool:
    return callable(getattr(kind, "get_state", None)) and callable(getattr(kind, "set_state", None))


def _is_plain(kind: type) -> bool:
    """Return whether objects of a class have attributes alone, and no memory of C code; as ``object.__reduce__``
    decides."""
    room = object.__basicsize__ + _POINTER * (kind.__dictoffset__ > 0) + _POINTER * (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ <= room and not kind.__itemsize__ and kind.__flags__ & (1 << 9) != 0


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', None)}.{getattr(kind, '__qualname__', '?')}"


def _is_code(value: Any) -> bool:
    # Enums of ale-py before 0.12 are pybind11's, not Python's.
    return isinstance(value, _CODE) or hasattr(type(value), "__members__")


def _name_of_code(value: Any) -> str:
    return _name(value) if hasattr(value, "__qualname__") else f"{_name(type(value))} {value!r}"


def _described(value: Any) -> str:
    return _name_of_code(value) if _is_code(value) else f"a {_name(type(value))}"


# ---- generators, and what ALE and MuJoCo copy


def _generator_state(value: Any) -> Any:
    """Return the state of a generator of random numbers; None of anything else."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.getstate() if type(value) is random.Random else None


def _generator(name: str, state: Any) -> Any:
    if name == "Random":
        made: Any = random.Random()
        made.setstate(state)
        return made
    bits = state["bit_generator"]
    if bits not in _BITS:
        raise HiddenStateError(f"generator {bits!r}: expected one of {', '.join(_BITS)}")
    if bits in _POSITIONS:  # numpy does not check it, and would read after the end of its words
        key, last = _POSITIONS[bits]
        position = (state["state"] if key in state["state"] else state)[key]
        if not 0 <= int(position) <= last:
            raise HiddenStateError(f"{bits}: position {position}, expected at most {last}")
    if name == "RandomState":
        made = np.random.RandomState()
        made.set_state(state)
        return made
    made = np.random.Generator(getattr(np.random, bits)())
    made.bit_generator.state = state
    return made


def _save_ale(ale: Any) -> bytes:
    raw = ale.cloneState(include_rng=True).__getstate__()
    return bytes(raw[0] if isinstance(raw, tuple) else raw)  # before 0.12, a tuple of one


def _restore_ale(ale: Any, raw: Any) -> Callable[[], object]:
    from ale_py import ALEState  # only some users have it

    state = ALEState.__new__(ALEState)
    state.__setstate__((raw,) if isinstance(ale.cloneState().__getstate__(), tuple) else raw)
    return partial(ale.restoreState, state)


def _save_model(model: Any) -> bytes:
    """Return a digest: a model does not change, but it may have been changed before."""
    import mujoco  # only some users have it

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.blake2b(buffer.tobytes(), digest_size=16).digest()


def _check_model(model: Any, digest: bytes) -> Callable[[], object]:
    if _save_model(model) != digest:
        raise HiddenStateError("the MuJoCo model is another")
    return lambda: None


def _save_data(data: Any) -> list[Any]:
    import mujoco  # only some users have it

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    integration = np.empty(mujoco.mj_stateSize(data.model, spec))
    mujoco.mj_getState(data.model, data, integration, spec)
    # Positions of bodies, for example, are a step older, so they do not follow from the state.
    return [integration, {name: array.copy() for name, array in _derived(data).items()}]


def _restore_data(data: Any, state: list[Any]) -> Callable[[], object]:
    import mujoco  # only some users have it

    integration, derived = state
    arrays, spec = _derived(data), mujoco.mjtState.mjSTATE_INTEGRATION
    fits = integration.shape == (mujoco.mj_stateSize(data.model, spec),) and derived.keys() == arrays.keys()
    if not fits or any(array.shape != arrays[name].shape for name, array in derived.items()):
        raise HiddenStateError("the state of MuJoCo has other sizes")

    def write() -> None:
        mujoco.mj_setState(data.model, data, integration, spec)
        for name, array in derived.items():
            np.copyto(arrays[name], array)

    return write


def _derived(data: Any) -> dict[str, NDArray[Any]]:
    """Return the derived arrays of a MjData that an environment may read before the next step."""
    found = {name: getattr(data, name, None) for name in _MUJOCO}
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


# By class: a function that copies the state of an object, and one that checks a copy and returns what writes it.
_COPIED: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Callable[[], object]]]] = {
    "ale_py._ale_py.ALEInterface": (_save_ale, _restore_ale),
    "mujoco._structs.MjModel": (_save_model, _check_model),
    "mujoco._structs.MjData": (_save_data, _restore_data),
}


def _same(one: Any, other: Any) -> bool:
    """Return whether two states have the same bits, except for pickled parts, whose bytes may differ."""
    if isinstance(one, dict):
        is_alike = isinstance(other, dict) and one.keys() == other.keys()
        return is_alike and all(name == "pickled" or _same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "equal"):
        alike = hasattr(other, "equal") and one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and (one.equal(other) or one.numpy().tobytes() == other.numpy().tobytes()))
    return type(one) is type(other) and (one == other or (one != one and other != other))
