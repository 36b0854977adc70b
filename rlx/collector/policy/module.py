"""Torch modules as policies, modules in files, and a module's weights as bytes."""

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.accelerator import present
from rlx.collector.environment.space import Space
from rlx.collector.policy.protocol import FunctionPolicy
from rlx.errors import CollectError, PolicyNotFoundError
from rlx.store.ted import to_leaf

if TYPE_CHECKING:
    from tensordict import TensorDictBase

NewWeights: TypeAlias = "Mapping[str, Any] | TensorDictBase | torch.nn.Module"
Packed = NDArray[np.uint8]
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class ModulePolicy(FunctionPolicy):
    """A plain module that gives the actions for the observations, or the actions and a dict of more.

    Args:
        device: device of its inputs; that of its parameters by default.
    """

    def __init__(
        self, module: torch.nn.Module, action_space: Space | None = None, device: torch.device | str | None = None
    ) -> None:
        self._device = device_of(module, device)
        self.module = module if device is None else module.to(self._device)
        super().__init__(self._forward, action_space)

    @torch.no_grad()
    def _forward(self, observation: Any) -> Any:
        return self.module(tensors_of(observation, self._device))


def load_exported(path: Path) -> torch.nn.Module:
    """Return the module in a file that ``torch.export.save`` wrote; only tensors are unpickled."""
    if not path.is_file():
        raise PolicyNotFoundError(f"policy file {path} does not exist")
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torch logs the traceback; one line is enough here
    try:
        _check_constants(path)
        with _only_tensors():
            return torch.export.load(str(path)).module()
    except CollectError:
        raise
    except Exception as exc:  # torch raises whatever a damaged file leads to
        raise CollectError(
            f"{path} holds no exported module: {type(exc).__name__}",
            hint=f"for a state_dict, name the module's factory: {path}:module:factory",
        ) from exc
    finally:
        logging.disable(disabled)


def _check_constants(path: Path) -> None:
    """Raise CollectError if a file holds constants that torch would unpickle with any arguments."""
    names: list[str] = torch._C.PyTorchFileReader(str(path)).get_all_records()
    # torch finds members whatever their case.
    if pickled := [name for name in names if any(kind in name.lower() for kind in ("custom_obj_", "opaque_obj_"))]:
        raise CollectError(
            f"{path} holds pickled objects: {pickled[0]}",
            hint="torch.save(module.state_dict(), FILE) and `policy` FILE.pt:module:factory need none",
        )


@contextmanager
def _only_tensors() -> Iterator[None]:
    """Have ``torch.load`` unpickle tensors alone; ``torch.export.load`` asks for everything where that fails."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def load_weights(path: Path, factory: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return the module that the factory makes, with the weights of a file; only tensors are unpickled."""
    if not path.is_file():
        raise PolicyNotFoundError(f"policy file {path} does not exist")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        module = factory()
        module.load_state_dict(weights)
    except pickle.UnpicklingError as exc:  # torch's message suggests to unpickle it nevertheless
        raise CollectError(
            f"{path} holds more than tensors, or is damaged",
            hint="torch.save(module.state_dict(), path) writes weights",
        ) from exc
    except (RuntimeError, TypeError, AttributeError, EOFError, LookupError, ValueError, AssertionError) as exc:
        raise CollectError(f"{path}: weights cannot be loaded: {exc}") from exc
    return module.eval()


def device_of(module: torch.nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the given device, or by default that of the module's parameters."""
    if device is not None:
        return present(device)
    return next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))


def tensors_of(tree: Any, device: torch.device) -> Any:
    """Return the tensors of a tree of arrays; a tuple becomes a dict with the keys 0, 1, ..."""
    if isinstance(tree, Mapping):
        return {key: tensors_of(part, device) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return {str(number): tensors_of(part, device) for number, part in enumerate(tree)}
    rows = np.asarray(tree)
    if rows.dtype.kind in "OU":
        return to_leaf(rows.astype(object))
    return torch.from_numpy(np.ascontiguousarray(rows)).to(device)


def set_weights(module: torch.nn.Module, weights: NewWeights) -> None:
    """Give a module new weights: a state_dict, a TensorDict of parameters or another module's."""
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    with torch.no_grad():
        if hasattr(weights, "to_module"):  # a TensorDict, known without an import that takes seconds
            weights.to_module(module, inplace=True)
        else:
            module.load_state_dict(weights)


def pack_weights(module: torch.nn.Module) -> Packed:
    """Return the bytes of all parameters and buffers, concatenated.

    Example:
        >>> source, target = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> unpack_weights(target, pack_weights(source))
        >>> torch.equal(source.weight, target.weight)
        True
    """
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in _tensors(module)]
    return np.concatenate([np.empty(0, np.uint8), *parts])


def unpack_weights(module: torch.nn.Module, packed: Packed) -> None:
    """Give a module the weights of one like it."""
    at = 0
    with torch.no_grad():
        for tensor in _tensors(module):
            stop = at + tensor.numel() * tensor.element_size()
            # A copy of its own has the alignment that another dtype needs.
            values = torch.from_numpy(packed[at:stop].copy())
            tensor.copy_(values.view(tensor.dtype).reshape(tensor.shape))
            at = stop


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [value for value in module.state_dict().values() if isinstance(value, torch.Tensor)]
