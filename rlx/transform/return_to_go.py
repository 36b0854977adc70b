"""Return-to-go: the return of a trajectory from each step on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rlx.block import Block
from rlx.errors import TransformError
from rlx.returns import returns_to_go
from rlx.schema import Field, Role, Schema
from rlx.transform.keys import valid
from rlx.transform.segments import join, whole


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
