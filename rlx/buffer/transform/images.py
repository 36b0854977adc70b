"""Transforms of images in batches: random shifts, and the order of their channels."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.storage.step_schema import signed
from rlx.errors import TransformError
from rlx.numbers import check_whole
from rlx.transform.protocol import Pointwise, Random, as_keys, leaves_named

_MAX_CHANNELS = 4  # more in the last dimension are columns of an image


@dataclass(frozen=True)
class RandomShift(Random, Pointwise):
    """Transform that shifts each image by up to ``pad`` pixels, and repeats its edges: the augmentation of DrQ.

    The image is padded with its edges and cut at a random place (Kostrikov et al., 2020). Images are [*, H, W]: all
    channels and all frames of a stack are shifted alike, an observation and the next one apart. Shifts are made on the
    device of the batch. In a buffer or a loader they depend on ``seed`` and the batch, so a resumed run has the same.

    Args:
        pad: largest shift in each direction, in pixels.
        keys: keys of the images, each shifted at the root and under ``next``.
        seed: random seed; random by default.

    Raises:
        TransformError: values are no images, or have their channels last.

    Example:
        >>> shift = rlx.buffer.RandomShift(4, seed=0)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("Pong/5"), transform=shift, batch_size=8)
        >>> buffer.sample()["observation"].shape
        torch.Size([8, 84, 84])
    """

    pad: int = 4
    keys: NestedKey | Sequence[NestedKey] = ("observation",)
    seed: int = field(default_factory=lambda: secrets.randbits(63))

    def __post_init__(self) -> None:
        check_whole("pad", self.pad, error=TransformError)
        check_whole("seed", self.seed, None, error=TransformError)
        object.__setattr__(self, "keys", as_keys(self.keys))

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with its images shifted; called by itself, by the next numbers of the transform."""
        leaves = leaves_named(batch, self.keys)
        steps = batch.batch_size.numel()
        drawn = self._next_chance().uniform(self.seed, steps, 2 * len(leaves)).reshape(steps, len(leaves), 2)
        shifts = torch.from_numpy((drawn * (2 * self.pad + 1)).astype("int64") - self.pad)
        for number, key in enumerate(leaves):
            images = batch.get(key)
            if images.ndim < batch.batch_dims + 2 or images.shape[-1] <= _MAX_CHANNELS:
                raise TransformError(
                    f"{'/'.join(key)} is {list(images.shape[batch.batch_dims :])}: expected images [..., H, W]",
                    hint="ChannelOrder('first') moves channels before the height",
                )
            batch.set(key, shifted(images, shifts[:, number].to(images.device)))
        return batch


def shifted(images: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Return images [*B, *, H, W], each moved up and left by a shift [B, 2]; beyond its edges they are repeated.

    Example:
        >>> shifted(torch.arange(6).reshape(1, 2, 3), torch.tensor([[1, -1]]))
        tensor([[[3, 3, 4],
                 [3, 3, 4]]])
    """
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) + shifts[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shifts[:, 1:]).clamp(0, width - 1)
    pixels = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
    flat = signed(images.reshape(len(shifts), images.numel() // max(len(shifts) * height * width, 1), height * width))
    return flat.gather(2, pixels[:, None].expand(flat.shape)).reshape(images.shape).view(images.dtype)


@dataclass(frozen=True, slots=True)
class ChannelOrder(Pointwise):
    """Transform that moves the channels of images: from last to ``first``, or from first to ``last``.

    Args:
        order: ``first``: images [*, H, W, C] become [*, C, H, W]. ``last``: the other way round.
        keys: keys of the images, at the root and under ``next``.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"pixels": torch.zeros(2, 64, 48, 3)}, [2])
        >>> rlx.buffer.ChannelOrder("first", keys=["pixels"])(batch)["pixels"].shape
        torch.Size([2, 3, 64, 48])
    """

    order: Literal["first", "last"]
    keys: NestedKey | Sequence[NestedKey] = ("observation",)

    def __post_init__(self) -> None:
        if self.order not in ("first", "last"):
            raise TransformError(f"order {self.order!r}: expected 'first' or 'last'")
        object.__setattr__(self, "keys", as_keys(self.keys))

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with the channels of its images moved."""
        before, after = (-1, -3) if self.order == "first" else (-3, -1)
        for key in leaves_named(batch, self.keys):
            images = batch.get(key)
            if images.ndim < batch.batch_dims + 3:
                raise TransformError(
                    f"{'/'.join(key)} is {list(images.shape[batch.batch_dims :])}: expected images with channels"
                )
            batch.set(key, images.movedim(before, after).contiguous())
        return batch
