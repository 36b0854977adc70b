"""Return-to-go: the return of a trajectory from each step on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.transform.keys import valid
from rlx.transform.segments import whole


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
            beyond = 0.0
            found: list[Block] = []
            for block in reversed(group):
                returns = self._returns(block, beyond)
                beyond = float(returns[0]) if len(returns) else 0.0
                found.append(replace(block, data={**block.data, self.key: returns.astype(np.float32)[:, None]}))
            yield from reversed(found)

    def _returns(self, block: Block, beyond: float) -> NDArray[np.float64]:
        """Return [S] returns to go; the open trajectory has a return of ``beyond`` after the block."""
        ends = np.cumsum(block.lengths)
        reward = block.data["reward"].astype(np.float64)
        returns = np.empty(len(reward))
        for number, (stop, length) in enumerate(zip(ends.tolist(), block.lengths.tolist(), strict=True)):
            start = beyond if number >= block.closed else 0.0
            backwards = accumulate(
                reward[stop - length : stop][::-1].tolist(), lambda later, now: now + self.gamma * later, initial=start
            )
            returns[stop - length : stop] = np.fromiter(backwards, np.float64, length + 1)[:0:-1]
        return returns
