"""Weights of a policy as bytes, which can be sent or shared, and back."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tensordict import TensorDictBase

NewWeights: TypeAlias = "Mapping[str, Any] | TensorDictBase | torch.nn.Module"
Packed = NDArray[np.uint8]


def load(module: torch.nn.Module, weights: NewWeights) -> None:
    """Give a module new weights: a state_dict, a TensorDict of parameters or another module's."""
    if isinstance(weights, torch.nn.Module):
        weights = weights.state_dict()
    with torch.no_grad():
        if hasattr(weights, "to_module"):  # a TensorDict, known without an import that takes seconds
            weights.to_module(module, inplace=True)
        else:
            module.load_state_dict(weights)


def pack(module: torch.nn.Module) -> Packed:
    """Return the bytes of all parameters and buffers, concatenated.

    Example:
        >>> source, target = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> unpack(target, pack(source))
        >>> torch.equal(source.weight, target.weight)
        True
    """
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in _tensors(module)]
    return np.concatenate([np.empty(0, np.uint8), *parts])


def unpack(module: torch.nn.Module, packed: Packed) -> None:
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
