"""Rewards clipped, reduced to their signs, scaled, and added up to returns."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.returns import returns_to_go
from rlx.schema import Field, Role, Schema
from rlx.transform.keys import valid
from rlx.transform.protocol import PerBlock
from rlx.transform.segments import join, whole


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
        low: lower bound.
        high: upper bound.
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


@dataclass(frozen=True)
class ReturnToGo:
    """Transform that adds the discounted sum of the rewards from each step to the end of its trajectory: float32 [1].

    Args:
        gamma: discount of a step.
        key: name of the field.
    """

    gamma: float = 1.0
    key: str = "return_to_go"

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise TransformError(f"gamma is {self.gamma}, expected 0 to 1")

    def schema(self, schema: Schema) -> Schema:
        """Return the same with the field.

        Raises:
            TransformError: there is one of that name.
        """
        if self.key in schema.fields:
            raise TransformError(f"there is a field {self.key!r} already")
        return valid({**schema.fields, self.key: Field("float32", (1,), Role.STEP)})

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:  # noqa: ARG002
        """Yield the steps with their returns to go."""
        for group in whole(blocks):
            rewards = join([replace(block, data={"reward": block.data["reward"]}) for block in group])
            returns = returns_to_go(rewards.data["reward"], rewards.lengths, self.gamma).astype(np.float32)[:, None]
            stops = np.cumsum([block.steps for block in group])
            for block, stop in zip(group, stops.tolist(), strict=True):
                yield replace(block, data={**block.data, self.key: returns[stop - block.steps : stop]})
