"""A transform of datasets, for ``rlx preprocess --transform shift_reward:by=1``."""

from dataclasses import dataclass, replace

from rlx.block import Block
from rlx.schema import Schema
from rlx.transform.protocol import PerBlock


@dataclass(frozen=True)
class ShiftReward(PerBlock):
    """Adds a number to every reward."""

    by: float = 1.0

    def schema(self, schema: Schema) -> Schema:
        """Return the schema unchanged."""
        return schema

    def apply(self, block: Block, schema: Schema) -> Block:  # noqa: ARG002
        """Return the block with other rewards."""
        reward = block.data["reward"]
        return replace(block, data={**block.data, "reward": (reward + self.by).astype(reward.dtype)})
