"""Rewards clipped, reduced to their signs, and scaled."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Schema
from rlx.transform.protocol import PerBlock


class _OfRewards(PerBlock):
    def schema(self, schema: Schema) -> Schema:
        """Return the same schema."""
        return schema

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with other rewards."""
        reward = self.of(block.data["reward"]).astype(self.schema(schema)["reward"].dtype)
        return replace(block, data={**block.data, "reward": reward})

    def of(self, reward: NDArray[Any]) -> NDArray[Any]:
        """Return [S] rewards instead of these."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClipReward(_OfRewards):
    """Transform that clips rewards to a range.

    Args:
        low: the least.
        high: the most.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise TransformError(f"rewards between {self.low} and {self.high}: expected the smaller number first")

    def schema(self, schema: Schema) -> Schema:
        """Return the same schema."""
        whole = schema["reward"].dtype.startswith(("int", "uint"))
        if whole and not (self.low.is_integer() and self.high.is_integer()):
            raise TransformError(
                f"rewards of {schema['reward'].dtype} between {self.low} and {self.high}: expected whole"
            )
        return schema

    def of(self, reward: NDArray[Any]) -> NDArray[Any]:
        """Return [S] rewards within the range."""
        clipped: NDArray[Any] = np.clip(reward, self.low, self.high)
        return clipped


@dataclass(frozen=True)
class SignReward(_OfRewards):
    """Transform that reduces rewards to their sign: -1, 0 or 1."""

    def of(self, reward: NDArray[Any]) -> NDArray[Any]:
        """Return [S] signs."""
        signs: NDArray[Any] = np.sign(reward)
        return signs


@dataclass(frozen=True)
class ScaleReward(_OfRewards):
    """Transform that multiplies rewards, and shifts the product.

    Args:
        scale: what they are multiplied by.
        loc: added afterwards.
    """

    scale: float
    loc: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and math.isfinite(self.loc)):
            raise TransformError(f"rewards times {self.scale} plus {self.loc}: expected finite numbers")

    def schema(self, schema: Schema) -> Schema:
        """Return the same with rewards of float32 where they were whole numbers."""
        if schema["reward"].dtype.startswith("float"):
            return schema
        return Schema({**schema.fields, "reward": replace(schema["reward"], dtype="float32", space=None)})

    def of(self, reward: NDArray[Any]) -> NDArray[Any]:
        """Return [S] rewards times the scale, plus the shift."""
        return reward * self.scale + self.loc
