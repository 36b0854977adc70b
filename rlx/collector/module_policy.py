"""torch modules as policies: tensors made of the observations, actions made of what they give."""

import logging
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase

from rlx.errors import CollectError


class ModulePolicy:
    """A TensorDictModule that writes ``action``, or a plain module that gives the actions for the observations.

    Args:
        module: called without gradients.
        device: where its inputs go; where not given, where its parameters are.
    """

    def __init__(self, module: torch.nn.Module, device: torch.device | str | None = None) -> None:
        self.module = module if device is None else module.to(device)
        found = [tensor.device for tensor in (*module.parameters(), *module.buffers())]
        self._device = torch.device(device) if device is not None else (*found, torch.device("cpu"))[0]

    @torch.no_grad()
    def __call__(self, observation: Any) -> Any:
        """[n, ...] actions."""
        tensors = _tensors(observation, self._device)
        if not isinstance(self.module, TensorDictModuleBase):
            return _arrays(self.module(tensors))
        entries = tensors if isinstance(tensors, dict) else {"observation": tensors}
        found = {"observation": entries, **entries} if isinstance(tensors, dict) else entries
        steps = TensorDict(found, [_rows(tensors)], device=self._device)
        action = self.module(steps).get("action", None)
        if action is None:
            raise CollectError(f"policy {type(self.module).__name__} writes no 'action'")
        return _arrays(action)


def load_exported(path: Path) -> torch.nn.Module:
    """The module in a file that ``torch.export.save`` wrote.

    Raises:
        CollectError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise CollectError(f"policy file {path} does not exist")
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # torch logs the traceback of what is said here in a line
    try:
        return torch.export.load(str(path)).module()
    except Exception as exc:  # torch raises whatever a damaged file leads to
        raise CollectError(
            f"{path} holds no exported module: {type(exc).__name__}",
            hint=f"for a state_dict, say what makes the module: {path}:module:factory",
        ) from exc
    finally:
        logging.disable(disabled)


def load_weights(path: Path, factory: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """What the factory makes, with the weights of a file; nothing but tensors is unpickled.

    Raises:
        CollectError: there is no such file, it holds more than tensors, or weights of another module.
    """
    if not path.is_file():
        raise CollectError(f"policy file {path} does not exist")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        module = factory()
        module.load_state_dict(weights)
    except pickle.UnpicklingError as exc:  # torch's own words advise to unpickle it all the same
        raise CollectError(
            f"{path} holds more than tensors, or is damaged",
            hint="torch.save(module.state_dict(), path) writes weights",
        ) from exc
    except (RuntimeError, TypeError, AttributeError, EOFError, KeyError) as exc:
        raise CollectError(f"{path}: weights cannot be loaded: {exc}") from exc
    return module.eval()


def _tensors(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Mapping):
        return {key: _tensors(part, device) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return {str(number): _tensors(part, device) for number, part in enumerate(tree)}
    return torch.from_numpy(np.ascontiguousarray(tree)).to(device)


def _arrays(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.cpu().numpy()
    if isinstance(tree, Mapping) or hasattr(tree, "items"):
        return {key: _arrays(part) for key, part in tree.items()}
    return tuple(_arrays(part) for part in tree) if isinstance(tree, tuple) else tree


def _rows(tree: Any) -> int:
    return _rows(next(iter(tree.values()))) if isinstance(tree, dict) else len(tree)
