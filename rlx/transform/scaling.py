"""Transforms of single values: clip and scale rewards, normalize observations, convert integers to floats."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.numbers import check_real
from rlx.schema import Field, Schema, is_observation, name_of
from rlx.store.statistics import parted_axis
from rlx.transform.keys import numeric_fields
from rlx.transform.protocol import Key, PerBlock, Pointwise, Seen, Transform, as_keys, leaves_named

if TYPE_CHECKING:
    from tensordict import TensorDictBase

logger = logging.getLogger(__name__)
_REWARD = ("next", "reward")
_PIXELS = 255.0
_INTEGER = re.compile(r"torch\.u?int")


@dataclass(frozen=True)
class ToFloat(PerBlock, Pointwise):
    """Transform of integers to float32: pixels of 0 to 255 become 0 to 1.

    Args:
        scale: the divisor; by default 255, for pixels only: uint8 of images or of observations.
        keys: fields to convert, in a batch at the root and under ``next``; by default all integer observations.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("Pong/5"), transform=rlx.buffer.ToFloat(), batch_size=4)
        >>> bool(buffer.sample()["observation"].max() <= 1)
        True
    """

    scale: float | None = None
    keys: Key | Sequence[Key] = ()

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_real("scale", self.scale, error=TransformError)
            if not (math.isfinite(self.scale) and self.scale):
                raise TransformError(f"scale is {self.scale}, expected a finite number other than 0")
        object.__setattr__(self, "keys", tuple(name_of(key) for key in as_keys(self.keys)))

    def schema(self, schema: Schema) -> Schema:
        """Return the schema with these fields as float32.

        Raises:
            TransformError: a field does not exist or is text, no observation holds integers, or a field holds no pixels
                and no scale is given.
        """
        changed = {name: replace(schema[name], dtype="float32", space=None) for name in self._names(schema)}
        return Schema({**schema.fields, **changed})

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with the fields divided by ``scale``."""
        scale = np.float32(self._divisor)
        changed = {name: block.data[name].astype(np.float32) / scale for name in self._names(schema)}
        return replace(block, data={**block.data, **changed})

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the batch with the keys divided by ``scale``."""
        for key in self._leaves(batch):
            values = batch.get(key)
            self._check(name_of(key), str(values.dtype).removeprefix("torch."), values.ndim - batch.batch_dims)
            floats = values.float()
            batch.set(key, floats / self._divisor if floats is values else floats.div_(self._divisor))
        return batch

    @property
    def _divisor(self) -> float:
        return _PIXELS if self.scale is None else self.scale

    def _check(self, name: str, dtype: str, dimensions: int) -> None:
        """Raise TransformError if a field holds no pixels and no scale is given."""
        if self.scale is None and not (dtype == "uint8" and (dimensions > 1 or is_observation(name))):
            raise TransformError(
                f"{name} is {dtype} of {dimensions} dimensions, no pixels: expected a scale to divide by",
                hint=f"to_float:scale=1,keys={name.removeprefix('next/')} only converts it",
            )

    def _names(self, schema: Schema) -> Sequence[str]:
        names = numeric_fields(schema, [name_of(key) for key in self.keys])
        found = [name for name in names if self.keys or schema[name].dtype.startswith(("int", "uint"))]
        if not found:
            raise TransformError("no observation has an integer dtype")
        for name in found:
            self._check(name, schema[name].dtype, len(schema[name].shape))
        return found

    def _leaves(self, batch: TensorDictBase) -> list[Any]:
        if not self.keys:
            # A batch does not say which of its keys are observations; it may lack `next`, too.
            leaves = batch.items(include_nested=True, leaves_only=True)
            return [key for key, values in leaves if is_observation(name_of(key)) and _INTEGER.match(str(values.dtype))]
        return list(leaves_named(batch, [tuple(name_of(key).split("/")) for key in self.keys]))


@dataclass(frozen=True)
class Normalize:
    """Transform that subtracts the mean of a field and divides by its standard deviation.

    Both are of each dimension of a vector (of 512 at most) and of each channel of a picture, else one for all numbers;
    they are from the dataset's manifest, which measures every sixteenth row of a kilobyte or more. So it must come
    before other transforms of the field. The result is float32, or float64 if the field is. Of a dataset that rlx 0.1.0
    wrote, both are one number per field, which is logged.

    Args:
        keys: fields to normalize; by default all numeric observations.
        eps: minimum of the divisor.
    """

    keys: tuple[str, ...] = ()
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise TransformError(f"eps is {self.eps}, expected more than 0")

    def learned(self, seen: Seen) -> Transform:
        """Return the transform with the dataset's means and standard deviations.

        Raises:
            TransformError: a field is text, or the manifest has no mean of it.
        """
        moments = {}
        for key in numeric_fields(seen.schema, self.keys):
            moments[key] = mean_and_divisor(key, seen.statistics.get(key, {}), seen.schema[key].shape, self.eps)
        return LearnedNormalize(moments)


Numbers = NDArray[np.float64]


def mean_and_divisor(key: str, figures: Mapping[str, Any], shape: Sequence[int], eps: float) -> tuple[Numbers, Numbers]:
    """Return a field's mean and its standard deviation, ``eps`` at least, in shapes that suit its rows.

    Where the manifest has one of both for a vector or a picture with channels, as rlx 0.1.0 wrote it, this is logged.

    Args:
        figures: ``mean`` and ``std`` of the manifest, each a number, or a list of one for each dimension or channel.
        shape: of a row.

    Raises:
        TransformError: there is no mean or standard deviation, of the field or of a part.

    Example:
        >>> figures = {"mean": [0.5, 0.25, 0.0], "std": [1.0, 0.0, 2.0]}
        >>> mean_and_divisor("pixels", figures, (2, 2, 3), 0.125)[1].tolist()
        [[[1.0, 0.125, 2.0]]]
    """
    mean, std = (np.asarray(figures.get(name), np.float64) for name in ("mean", "std"))  # NaN for None
    if np.isnan(mean).any() or np.isnan(std).any():
        raise TransformError(
            f"the manifest has no mean of {key}: expected an observation that no earlier transform has changed"
        )
    axis = parted_axis(shape)
    if mean.ndim and (axis is None or mean.shape != (shape[axis],)):
        raise TransformError(f"the manifest has {mean.size} means of {key}: expected one for each part of {[*shape]}")
    if mean.ndim:
        alone = [-1 if place == axis else 1 for place in range(len(shape))]
        return mean.reshape(alone), np.maximum(std.reshape(alone), eps)
    if axis is not None:
        logger.warning(
            "%s has one mean for all its %d parts, as rlx 0.1.0 wrote it: copy the dataset by `rlx preprocess` for "
            "one each",
            key,
            shape[axis],
        )
    return mean, np.maximum(std, eps)


@dataclass(frozen=True)
class LearnedNormalize(PerBlock):
    """``Normalize`` with the mean and divisor of each field."""

    moments: Mapping[str, tuple[Numbers, Numbers]]

    def schema(self, schema: Schema) -> Schema:
        """Return the schema with float32 fields; float64 stays."""
        changed = {key: _floating(schema[key]) for key in self.moments}
        return Schema({**schema.fields, **changed})

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with normalized fields."""
        data = dict(block.data)
        for key, (mean, std) in self.moments.items():
            numbers = data[key].astype(_floating(schema[key]).dtype)
            numbers -= mean.astype(numbers.dtype)
            numbers /= std.astype(numbers.dtype)
            data[key] = numbers
        return replace(block, data=data)


def _floating(field: Field) -> Field:
    return replace(field, dtype="float64" if field.dtype == "float64" else "float32", space=None)


class _OfRewards(PerBlock, Pointwise):
    """A transform of the rewards of single steps."""

    def of(self, reward: Any) -> Any:
        """Return the new rewards, an array or a tensor as given."""
        raise NotImplementedError

    def schema(self, schema: Schema) -> Schema:
        """Return the same schema."""
        return schema

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with the new rewards."""
        reward = self.of(block.data["reward"]).astype(self.schema(schema)["reward"].dtype)
        return replace(block, data={**block.data, "reward": reward})

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        if (reward := batch.get(_REWARD, None)) is not None:
            batch.set(_REWARD, self.of(reward))
        return batch


@dataclass(frozen=True)
class RewardClip(_OfRewards):
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
        check_real("low", self.low, error=TransformError)
        check_real("high", self.high, error=TransformError)
        if not self.low <= self.high:
            raise TransformError(f"low is {self.low} and high is {self.high}, expected low <= high")

    def schema(self, schema: Schema) -> Schema:
        """Return the same schema.

        Raises:
            TransformError: rewards are integers, and a bound is not.
        """
        is_whole = schema["reward"].dtype.startswith(("int", "uint"))
        if is_whole and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise TransformError(
                f"rewards are {schema['reward'].dtype}: expected integer bounds, found {self.low} and {self.high}"
            )
        return schema

    def of(self, reward: Any) -> Any:
        """Return the clipped rewards."""
        low, high = self.low, self.high
        kind = str(reward.dtype).removeprefix("torch.")
        if kind.startswith(("int", "uint")) and isinstance(low, int) and isinstance(high, int):
            limits = np.iinfo(kind)  # torch would take -1 as 255 in uint8
            low, high = (min(max(bound, limits.min), limits.max) for bound in (low, high))
        return reward.clip(low, high)


@dataclass(frozen=True)
class RewardSign(_OfRewards):
    """Transform that reduces rewards to their sign: -1, 0 or 1.

    Example:
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("Pong/5"), transform=rlx.buffer.RewardSign())
        >>> buffer[:]["next", "reward"].unique()
        tensor([-1.,  0.,  1.])
    """

    def of(self, reward: Any) -> Any:
        """Return the signs."""
        return np.sign(reward) if isinstance(reward, np.ndarray) else reward.sign()


@dataclass(frozen=True)
class ScaleReward(_OfRewards):
    """Transform of rewards to ``reward * scale + loc``; integers become float32.

    Args:
        scale: the factor.
        loc: offset, added after scaling.
    """

    scale: float
    loc: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and math.isfinite(self.loc)):
            raise TransformError(f"scale is {self.scale} and loc is {self.loc}, expected finite numbers")

    def schema(self, schema: Schema) -> Schema:
        """Return the schema with float32 instead of integer rewards."""
        if schema["reward"].dtype.startswith("float"):
            return schema
        return Schema({**schema.fields, "reward": replace(schema["reward"], dtype="float32", space=None)})

    def of(self, reward: Any) -> Any:
        """Return ``reward * scale + loc``."""
        return reward * self.scale + self.loc
