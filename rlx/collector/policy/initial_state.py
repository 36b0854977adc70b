"""The state that a policy starts an episode with: as its modules declare it, or zeros of a shape that fits."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from rlx.errors import CollectError

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Key = tuple[str, ...]
State = dict[Key, torch.Tensor]
_MOST_CALLS = 3


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


def fitting_zeros(module: torch.nn.Module, given: "TensorDictBase", keys: Sequence[Key]) -> State:
    """Return zeros of one environment for each key, of the shape and dtype that the module gives back under ``next``.

    A copy of the module is called, and no generator of torch moves on.

    Args:
        module: reads each key and writes it under ``next``.
        given: everything else that it reads.
        keys: of its state.

    Raises:
        CollectError: no shape fits.
    """
    copy = deepcopy(module)
    devices = [given.device] if given.device is not None and given.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        for shape in _shapes(module):
            zeros = _settled(copy, given, {key: torch.zeros(shape, device=given.device) for key in keys})
            if zeros is not None:
                return zeros
    names = ", ".join(repr("/".join(key)) for key in keys)
    raise CollectError(
        f"the shape of the policy's state {names} is unknown: its module accepts no zeros of the shapes tried",
        hint="set initial_state of the module: {key: tensor of one environment}",
    )


def _settled(module: torch.nn.Module, given: "TensorDictBase", zeros: State) -> State | None:
    """Return zeros of the shapes that the module gives back for these;
    none if it fails, or never gives back the same."""
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
    """Yield shapes worth trying: what recurrent modules say of themselves, then a number, then sizes of the
    parameters."""
    for part in module.modules():
        if isinstance(size := getattr(part, "hidden_size", None), int):
            yield (size,)
            if isinstance(layers := getattr(part, "num_layers", None), int):
                yield (layers * (2 if getattr(part, "bidirectional", False) else 1), size)
    yield (1,)
    sizes = {size for parameter in module.parameters() for size in parameter.shape}
    yield from ((size,) for size in sorted(sizes))


def _primed(primer: Any) -> State:
    """Return the values that a primer of torchrl starts from, one for all or one a key."""
    defaults = primer.default_value
    found: State = {}
    for key, spec in primer.primers.items(True, True):
        path = (key,) if isinstance(key, str) else tuple(key)
        value = defaults.get(key, 0.0) if hasattr(defaults, "get") else defaults
        found[path] = torch.zeros(spec.shape, dtype=spec.dtype) + (0 if value is None or callable(value) else value)
    return found


def _flat(tree: Any, parents: Key = ()) -> Iterator[tuple[Key, Any]]:
    for key, part in tree.items():
        path = (*parents, *((key,) if isinstance(key, str) else key))
        if hasattr(part, "items"):
            yield from _flat(part, path)
        else:
            yield path, part
