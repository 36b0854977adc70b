"""Transforms of each step by itself: clipping rewards, casting, moving to a device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.transform.neighbourhood import Pointwise, path

_REWARD = ("next", "reward")


@dataclass(frozen=True, slots=True)
class RewardClip(Pointwise):
    """Transform that clips rewards to a range.

    Args:
        low: lower bound.
        high: upper bound.

    Example:
        >>> transform = rlx.buffer.RewardClip(0, 0.5)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=transform, batch_size=4)
        >>> buffer.sample()["next", "reward"].unique()
        tensor([0.5000])
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"rewards between {self.low} and {self.high}: expected the smaller number first")

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with rewards in the range."""
        if (reward := batch.get(_REWARD, None)) is not None:
            batch.set(_REWARD, reward.clamp(self.low, self.high))
        return batch


@dataclass(frozen=True, slots=True)
class RewardSign(Pointwise):
    """Transform that reduces rewards to their sign: -1, 0 or 1.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("Pong/5"), transform=rlx.buffer.RewardSign())
        >>> buffer[:]["next", "reward"].unique()
        tensor([-1.,  0.,  1.])
    """

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with the signs of its rewards."""
        if (reward := batch.get(_REWARD, None)) is not None:
            batch.set(_REWARD, reward.sign())
        return batch


@dataclass(frozen=True, slots=True)
class ToDevice(Pointwise):
    """Transform that moves the batch to a device; from pinned memory, without waiting for the copy.

    Args:
        device: torch's name of it: ``cuda:0``.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=rlx.buffer.ToDevice("cpu"), batch_size=4)
        >>> buffer.sample().device
        device(type='cpu')
    """

    device: str | torch.device

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch on the device."""
        moved: TensorDictBase = batch.to(self.device, non_blocking=True)
        return moved


@dataclass(frozen=True, slots=True)
class ToDtype(Pointwise):
    """Transform that casts values, at the root and under ``next``.

    Args:
        dtype: what they become.
        keys: which; without, all floating-point ones.

    Example:
        >>> import torch
        >>> transform = rlx.buffer.ToDtype(torch.float64, keys=["observation"])
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=transform, batch_size=4)
        >>> buffer.sample()["next", "observation"].dtype
        torch.float64
    """

    dtype: torch.dtype
    keys: Sequence[NestedKey] | None = None

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with its values cast."""
        for key in _floating(batch) if self.keys is None else _present(batch, self.keys):
            batch.set(key, batch.get(key).to(self.dtype))
        return batch


@dataclass(frozen=True, slots=True)
class ToFloat(Pointwise):
    """Transform of integers to float32, at the root and under ``next``: pixels of 0 to 255 become 0 to 1.

    Args:
        scale: what they are divided by.
        keys: which.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("Pong/5"), transform=rlx.buffer.ToFloat(), batch_size=4)
        >>> bool(buffer.sample()["observation"].max() <= 1)
        True
    """

    scale: float = 255.0
    keys: Sequence[NestedKey] = ("observation",)

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with its values scaled."""
        for key in _present(batch, self.keys):
            batch.set(key, batch.get(key).to(torch.float32).div_(self.scale))
        return batch


def _present(batch: TensorDictBase, keys: Sequence[NestedKey]) -> list[NestedKey]:
    both = [found for key in keys for found in (path(key), ("next", *path(key)))]
    return [key for key in both if batch.get(key, None) is not None]


def _floating(batch: TensorDictBase) -> list[NestedKey]:
    return [key for key, value in batch.items(True, True) if value.is_floating_point()]
