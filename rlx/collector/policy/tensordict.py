"""Policies that take and return TensorDicts, modules and functions, and the state that they start an episode with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from rlx.accelerator import present
from rlx.collector.environment.space import Arrays
from rlx.collector.policy.module import device_of, tensors_of
from rlx.collector.policy.protocol import Choice, Situation
from rlx.errors import CollectError, SchemaMismatchError
from rlx.seeding import generators_kept
from rlx.store.ted import to_rows
from rlx.transform.protocol import as_path

Key = tuple[str, ...]
State = dict[Key, torch.Tensor]
_MOST_CALLS = 3
_FLAGS = ("done", "terminated", "truncated")


def declared_state(policy: Any) -> State:
    """Return the state of one environment by key: of ``initial_state``, or as ``make_tensordict_primer`` of torchrl has
    it.

    Args:
        policy: a function or a module; of a module, also those in it.

    Example:
        >>> def act(td):
        ...     return td
        >>> act.initial_state = {"h": torch.zeros(3), "clock": {"t": torch.zeros(())}}
        >>> {key: list(row.shape) for key, row in declared_state(act).items()}
        {('h',): [3], ('clock', 't'): []}
    """
    found: State = {}
    for part in policy.modules() if isinstance(policy, torch.nn.Module) else [policy]:
        primer: Any = getattr(part, "make_tensordict_primer", None)
        if primer is not None:
            found |= _primed(primer())
        initial: Any = getattr(part, "initial_state", None)
        if hasattr(initial, "items"):
            found |= {key: torch.as_tensor(row).detach() for key, row in _flat(initial)}
    return found


def fitting_zeros(module: torch.nn.Module, given: TensorDictBase, keys: Sequence[Key]) -> State:
    """Return zeros of one environment for each key, of the shape and dtype that the module writes under ``next``.

    A copy of the module is called, and no generator of torch moves on.

    Args:
        module: reads each key and writes it under ``next``.
        given: everything else that it reads.
    """
    copy = deepcopy(module)
    with generators_kept():
        for shape in _shapes(module):
            zeros = _settled(copy, given, {key: torch.zeros(shape, device=given.device) for key in keys})
            if zeros is not None:
                return zeros
    names = ", ".join(repr("/".join(key)) for key in keys)
    raise CollectError(
        f"the shape of the policy's state {names} is unknown: its module accepts no zeros of the shapes tried",
        hint="set initial_state of the module: {key: tensor of one environment}",
    )


def _settled(module: torch.nn.Module, given: TensorDictBase, zeros: State) -> State | None:
    """Return zeros of the shapes that the module writes for these; none if it fails or the shapes never settle."""
    for _ in range(_MOST_CALLS):
        inputs = given.copy()
        for key, row in zeros.items():
            inputs[key] = row.expand(given.shape[0], *row.shape)
        try:
            output = module(inputs)
            found = {key: torch.zeros_like(output["next", *key][0]) for key in zeros}
        except Exception:
            return None
        if all(row.shape == zeros[key].shape and row.dtype == zeros[key].dtype for key, row in found.items()):
            return found
        zeros = found
    return None


def _shapes(module: torch.nn.Module) -> Iterator[tuple[int, ...]]:
    """Yield shapes to try: sizes of recurrent modules, then a number, then sizes of parameters."""
    for part in module.modules():
        if isinstance(size := getattr(part, "hidden_size", None), int):
            yield (size,)
            if isinstance(layers := getattr(part, "num_layers", None), int):
                yield (layers * (2 if getattr(part, "bidirectional", False) else 1), size)
    yield (1,)
    sizes = {size for parameter in module.parameters() for size in parameter.shape}
    yield from ((size,) for size in sorted(sizes))


def _primed(primer: Any) -> State:
    defaults = primer.default_value
    found: State = {}
    for key, spec in primer.primers.items(True, True):
        value = defaults.get(key, 0.0) if hasattr(defaults, "get") else defaults
        fill = 0 if value is None or callable(value) else value
        found[as_path(key)] = torch.zeros(spec.shape, dtype=spec.dtype) + fill
    return found


def _flat(tree: Any, parents: Key = ()) -> Iterator[tuple[Key, Any]]:
    for key, part in tree.items():
        path = (*parents, *as_path(key))
        if hasattr(part, "items"):
            yield from _flat(part, path)
        else:
            yield path, part


class TensorDictPolicy:
    """A policy that writes ``action`` and any other keys into a TensorDict of batch size [n].

    The TensorDict has ``observation`` and its parts, ``is_init`` [n, 1], the flags of the state before the action, all
    False, and the state of the policy: the keys that it writes under ``next`` and reads at the root (``in_keys`` and
    ``out_keys`` of a module). docs/collecting.md says how the state of a function is found, and what it starts from.

    Keys at the root that begin with ``_`` are kept for the next step, of any episode, as torchrl's module for
    Ornstein-Uhlenbeck noise expects.

    Args:
        device: device of its inputs; that of its parameters by default.
    """

    def __init__(self, function: Callable[[TensorDictBase], Any], device: torch.device | str | None = None) -> None:
        module = function if isinstance(function, torch.nn.Module) else None
        self._device = present(device or "cpu") if module is None else device_of(module, device)
        self.module = module if module is None or device is None else module.to(self._device)
        self._function = function
        self._reads = _keys(getattr(function, "in_keys", None))
        self._states = _states(self._reads, _keys(getattr(function, "out_keys", None)))
        self._zeros: dict[Key, torch.Tensor] = {}
        self._groups: dict[str, list[tuple[str, Key]]] | None = None
        self._private: dict[Key, Any] = {}

    @torch.no_grad()
    def initial_state(self, situation: Situation) -> Arrays:
        """Return [n, ...] by name: the state at the start of an episode, as far as it is known before a step."""
        n = len(situation.is_init)
        known = declared_state(self._function)
        unknown = [key for key in self._states or () if key not in known]
        if unknown and self.module is not None and not self._zeros:
            given = self._given(situation._replace(state={}))
            for key, row in known.items():
                given[key] = row.to(self._device).expand(n, *row.shape)
            self._check_reads(given, unknown)
            self._zeros = fitting_zeros(self.module, given, unknown)
        known |= self._zeros
        return {"/".join(key): _array(row.expand(n, *row.shape)).copy() for key, row in known.items()}

    @torch.no_grad()
    def __call__(self, situation: Situation) -> Choice:
        """Choose an action for every environment."""
        given = self._given(situation)
        if self._groups is not None:
            return self._choice(self._function(given), self._groups)
        self._check_reads(given, [])
        inputs = given.copy()
        try:
            output = self._function(given)
        except KeyError as exc:
            raise CollectError(
                f"policy {_name(self._function)} reads a key that is not supplied: {exc}; there are {_listed(inputs)}",
                hint="if it is a state of the policy, set its initial_state: {key: tensor of one environment}",
            ) from exc
        self._groups = self._learned(output, inputs)
        return self._choice(output, self._groups)

    def _given(self, situation: Situation) -> TensorDict:
        """Return the policy's input: all fields, and flags only where it reads them, or may."""
        observation = tensors_of(situation.observation, self._device)
        found: dict[str, Any] = {"observation": observation}
        if isinstance(observation, dict):
            found |= observation
        flag = torch.from_numpy(situation.is_init)[:, None].to(self._device)
        found["is_init"] = flag
        for name in _FLAGS:
            if self._reads is None or (name,) in self._reads:
                found[name] = torch.zeros_like(flag)
        given = TensorDict(found, [len(situation.is_init)], device=self._device)
        for name, array in situation.state.items():
            given[tuple(name.split("/"))] = torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
        for key, value in self._private.items():
            given[key] = value
        return given

    def _check_reads(self, given: TensorDictBase, states: list[Key]) -> None:
        """Refuse a key that the policy reads and that has no source; a state will be supplied."""
        for key in self._reads or ():
            if key not in states and key != ("_",) and given.get(key, None) is None:
                raise CollectError(
                    f"policy {_name(self._function)} reads {'/'.join(key)!r}, which is not supplied: "
                    f"there are {_listed(given)}",
                    hint="a state of the policy is what it writes under 'next' and reads at the root",
                )

    def _learned(self, output: Any, inputs: TensorDictBase) -> dict[str, list[tuple[str, Key]]]:
        """Return which keys the policy writes, with their names, by part of a Choice;
        it must write them in every step."""
        if not isinstance(output, TensorDictBase):
            raise CollectError(
                f"policy {_name(self._function)} gave a {type(output).__name__}: expected a TensorDict with 'action'"
            )
        there = set(_leaves(inputs))
        for key in there & set(_leaves(output)):
            if not _is_same(output.get(key), inputs.get(key)):
                raise CollectError(
                    f"policy {_name(self._function)} overwrites {'/'.join(key)!r}, which it is given",
                    hint="write it under another key",
                )
        written = [key for key in _leaves(output) if key not in there and key[0] != "action"]
        for key in written:
            if any("/" in part for part in key):
                raise CollectError(f"policy {_name(self._function)} writes {key}: expected keys without '/'")
        root = {key for key in written if key[0] != "next"}
        after = [key[1:] for key in written if key[0] == "next"]
        states = self._states
        if states is None:
            states = set(declared_state(self._function)) or {key for key in after if key not in root}
        return {
            "step": [("/".join(key), key) for key in written if key in root],
            "next": [("/".join(key), ("next", *key)) for key in after if key not in states],
            "state": [("/".join(key), ("next", *key)) for key in after if key in states],
        }

    def _choice(self, output: TensorDictBase, groups: dict[str, list[tuple[str, Key]]]) -> Choice:
        action = output.get("action", None)
        if action is None:
            raise CollectError(f"policy {_name(self._function)} writes no 'action'")
        step, after, state = (
            {name: self._read(output, name, key) for name, key in groups[group]} for group in ("step", "next", "state")
        )
        self._private = {key: output.get(key) for _, key in groups["step"] if key[-1].startswith("_")}
        return Choice(_tree(action), step, after, state)

    def _read(self, output: TensorDictBase, name: str, key: Key) -> NDArray[Any]:
        value = output.get(key, None)
        if value is None:
            raise CollectError(f"policy {_name(self._function)} did not write {name!r}, as it did in its first step")
        return _array(value)


def _keys(keys: Any) -> list[Key] | None:
    return None if keys is None else [as_path(key) for key in keys]


def _states(reads: list[Key] | None, writes: list[Key] | None) -> set[Key] | None:
    if reads is None or writes is None:
        return None
    return {key[1:] for key in writes if key[0] == "next" and key[1:] in reads}


def _leaves(given: TensorDictBase) -> Iterator[Key]:
    return map(as_path, given.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor))


def _listed(given: TensorDictBase) -> str:
    return ", ".join(repr("/".join(key)) for key in _leaves(given))


def _tree(value: Any) -> Any:
    return {key: _tree(part) for key, part in value.items()} if isinstance(value, TensorDictBase) else _array(value)


def _array(value: Any) -> NDArray[Any]:
    try:
        return to_rows(value)
    except SchemaMismatchError as exc:
        raise CollectError(f"policy writes {exc}") from exc


def _is_same(value: Any, given: Any) -> bool:
    return value is given or np.array_equal(_array(value), _array(given))


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
