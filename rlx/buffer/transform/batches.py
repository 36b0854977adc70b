"""Transforms of batches: stacks of observations, n-step transitions, returns to go, casts, and moves to a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase

from rlx.accelerator import present
from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.storage.step_schema import signed
from rlx.buffer.transform.compose import OverBatch, StoredSteps, pick
from rlx.errors import TransformError
from rlx.numbers import check_whole
from rlx.returns import discount
from rlx.schema import Schema
from rlx.store.step_reader import Padding, Stack
from rlx.transform import multi_step
from rlx.transform.protocol import Pointwise, Reader, as_keys, as_path, leaves_named, wanted

STEPS_AHEAD = "steps_to_next_obs"  # of n-step transitions


@dataclass(frozen=True, slots=True)
class FrameStack(OverBatch):
    """Transform that stacks each observation on the k - 1 before it, oldest first: [n, *shape] becomes [n, k, *shape].

    ``("next", observation)`` becomes the last k - 1 of them and the next one. Observations come from the storage, not
    from the batch: steps may be random, and a slice's first stack reaches back before the slice. If the episode has
    fewer, or the storage has overwritten them, the oldest available one is repeated, as in
    ``gymnasium.wrappers.FrameStackObservation``.

    Args:
        k: observations per stack.
        padding: ``repeat`` the oldest observation, or ``zeros``.
        keys: keys of the observations.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("Pong/5"), transform=rlx.buffer.FrameStack(4), batch_size=8)
        >>> buffer.sample()["observation"].shape
        torch.Size([8, 4, 84, 84])
    """

    k: int
    padding: Padding = "repeat"
    keys: NestedKey | Sequence[NestedKey] = ("observation",)

    def __post_init__(self) -> None:
        check_whole("k", self.k)
        if self.padding not in ("repeat", "zeros"):
            raise ValueError(f"padding {self.padding!r}: expected 'repeat' or 'zeros'")
        object.__setattr__(self, "keys", as_keys(self.keys))

    def check_earlier(self, earlier: Sequence[Any]) -> None:
        """Raise TransformError if NStep is among the transforms before this one."""
        if any(isinstance(transform, multi_step.NStep) for transform in earlier):
            raise TransformError("FrameStack after NStep: the next stack is unknown; put FrameStack first")

    @property
    def stack(self) -> Stack:
        """How observations are stacked."""
        return Stack(self.k, self.padding)

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows with their observations stacked."""
        mine = [key for key in self.keys if wanted(key, keys) or wanted(("next", *as_path(key)), keys)]
        if not mine:
            return below.read(rows, keys)
        if isinstance(below, StoredSteps):
            stacked = below.read_stacked(rows, mine, self.stack, keys if keys is None else [*keys, STEPS_AHEAD])
            if stacked is not None and STEPS_AHEAD not in stacked.keys():  # noqa: SIM118
                return stacked
        batch = below.read(rows, None if keys is None else [*keys, *mine, STEPS_AHEAD])
        leaves_named(batch, mine)  # raises for any other
        if STEPS_AHEAD in batch.keys():  # noqa: SIM118  (a TensorDict iterates over its batch)
            raise TransformError("FrameStack cannot stack the observations of n-step transitions")
        back = below.index.precede(rows, self.k)
        missing = back < 0
        oldest = back[np.arange(len(rows)), missing.sum(1)]
        # The newest frame of a stack is in the batch.
        before = np.where(missing, oldest[:, None], back)[:, :-1]
        distinct, position = np.unique(before, return_inverse=True)
        frames = below.read(distinct, mine)
        for key in mine:
            stack = self._stack(batch.get(key), frames.get(key), position.reshape(before.shape))
            if self.padding == "zeros":
                signed(stack)[torch.from_numpy(missing)] = 0
            after = ("next", *as_path(key))
            if (then := batch.get(after, None)) is not None:
                batch.set(after, torch.cat([stack[:, 1:], then[:, None]], 1))
            batch.set(key, stack)
        return batch

    def _stack(self, now: torch.Tensor, frames: torch.Tensor, position: Rows) -> torch.Tensor:
        stack = now.new_empty((len(now), self.k, *now.shape[1:]))
        stack[:, -1] = now
        for place in range(self.k - 1):
            stack[:, place] = pick(frames, position[:, place])
        return stack


@dataclass(frozen=True)
class NStep(OverBatch, multi_step.NStep):
    """Transform of each step to a transition over n steps, or fewer at the end of its trajectory.

    ``next`` becomes that of the last of these steps (observation, flags and all other keys), and
    ``("next", "reward")`` the discounted sum of their rewards. Adds ``steps_to_next_obs`` (int64 [n, 1], the number
    of steps), ``gamma`` (float32 [n, 1], the discount of the next observation's value: gamma to the power of that
    number) and ``("next", "original_reward")``. Transitions stop at terminations, at truncations, and at the newest
    stored step; called with a batch [*B, T], also at the ends of its rows.

    Args:
        n: steps per transition, 1 to 10,000.
        gamma: discount factor per step.
        key: where to put the transition of n steps, beside the one of one step: all keys under ``next``,
            ``steps_to_next_obs`` and ``gamma`` are then below this key, and nothing else is changed.

    Example:
        >>> data = rlx.open("cartpole")
        >>> buffer = rlx.ReplayBuffer(storage=data, transform=rlx.buffer.NStep(3, gamma=0.5), batch_size=8)
        >>> step = buffer[0]
        >>> float(step["next", "reward"]), bool((step["next", "observation"] == data[2]["next", "observation"]).all())
        (1.75, True)
        >>> rlx.buffer.NStep(3, gamma=0.5)(data[:4])["next", "reward"].flatten()
        tensor([1.7500, 1.7500, 1.5000, 1.0000])
        >>> both = rlx.buffer.NStep(3, gamma=0.5, key="n_step")(data[:4])
        >>> float(both[0]["n_step", "reward"]), float(both[0]["next", "reward"])
        (1.75, 1.0)
    """

    key: NestedKey | None = None

    @property
    def replaces_next(self) -> bool:
        """Whether ``next`` becomes that of the last of n steps."""
        return self.key is None

    def schema(self, schema: Schema) -> Schema:
        """Return the schema of a dataset of transitions.

        Raises:
            TransformError: ``key`` is given, or as for ``rlx preprocess --transform n_step``.
        """
        if self.key is not None:
            raise TransformError(f"key {self.key!r}: a dataset has n-step transitions or single steps, expected no key")
        return super().schema(schema)

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows of a buffer, each spanning n steps, or beside those."""
        if self.key is None:
            return super().around(rows, keys, below)
        batch = below.read(rows, keys)
        path = as_path(self.key)
        if keys is not None and not any(as_path(key)[: len(path)] == path or wanted(path, [key]) for key in keys):
            return batch
        after, span = self.transitions(batch, rows, ["next"], below)
        after.set("steps_to_next_obs", torch.from_numpy(span[:, None]))
        after.set("gamma", torch.from_numpy(discount(span, self.gamma)))
        batch.set(path, after)
        return batch


class ReturnToGo(OverBatch, multi_step.ReturnToGo):
    """Transform that adds the discounted sum of rewards from each step to the end of its stored trajectory.

    Each batch reads all rewards from its steps to the ends of their trajectories. If trajectories are long and the
    dataset is sampled many times, compute the sums once: ``rlx preprocess --transform return_to_go``. Called with a
    batch [*B, T], it adds up the rewards up to the ends of its rows.

    Args:
        gamma: discount factor per step.
        key: key of the sum: float32 [n, 1].

    Example:
        >>> transform = rlx.buffer.ReturnToGo(gamma=0.9)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=transform, batch_size=16)
        >>> buffer.sample()["return_to_go"].shape
        torch.Size([16, 1])
    """


@dataclass(frozen=True, slots=True)
class ToDevice(Pointwise):
    """Transform that moves the batch to a device; from pinned memory, without waiting for the copy.

    Args:
        device: name of a torch device, such as ``cuda:0``.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=rlx.buffer.ToDevice("cpu"), batch_size=4)
        >>> buffer.sample().device
        device(type='cpu')
    """

    device: str | torch.device

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch on the device."""
        device = present(self.device)
        # The CPU, which reads a copy to its own memory, would not wait for it.
        moved: TensorDictBase = batch.to(device, non_blocking=device.type != "cpu")
        return moved


@dataclass(frozen=True, slots=True)
class ToDtype(Pointwise):
    """Transform that casts values, at the root and under ``next``.

    Args:
        dtype: the new dtype.
        keys: keys to cast; by default all of floating point.

    Example:
        >>> import torch
        >>> transform = rlx.buffer.ToDtype(torch.float64, keys=["observation"])
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), transform=transform, batch_size=4)
        >>> buffer.sample()["next", "observation"].dtype
        torch.float64
    """

    dtype: torch.dtype
    keys: NestedKey | Sequence[NestedKey] | None = None

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with its values cast."""
        for key in _floating(batch) if self.keys is None else leaves_named(batch, as_keys(self.keys)):
            batch.set(key, batch.get(key).to(self.dtype))
        return batch


def _floating(batch: TensorDictBase) -> list[NestedKey]:
    return [key for key, value in batch.items(True, True) if value.is_floating_point()]
