"""Several steps as one: frames skipped, and transitions over n steps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.returns import discount, discounted_sum
from rlx.schema import Field, Role, Schema
from rlx.transform.keys import valid
from rlx.transform.protocol import PerBlock
from rlx.transform.segments import held_back, join, split

# Of a transition: the time it takes grows with them.
MAX_STEPS = 10_000


@dataclass(frozen=True)
class FrameSkip(PerBlock):
    """Transform that makes one step of every k of a trajectory, from its first; the last one may have fewer.

    It has the observation, the action and what else is at the root of the first of them, the sum of their rewards, and
    the flags and what else is under ``next`` of the last.

    Args:
        k: steps that become one.
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise TransformError(f"k is {self.k}, expected 1 or more")

    def schema(self, schema: Schema) -> Schema:
        """Return the same schema."""
        return schema

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the steps, k of them as one."""
        for block in held_back(blocks, schema, lambda steps: steps % self.k):
            yield self.apply(block, schema)

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with one step for every k."""
        begins = np.cumsum(block.lengths) - block.lengths
        lengths = -(-block.lengths // self.k)
        segment = np.repeat(np.arange(len(lengths)), lengths)
        first = begins[segment] + self.k * (np.arange(len(segment)) - (np.cumsum(lengths) - lengths)[segment])
        last = np.minimum(first + self.k, (begins + block.lengths)[segment]) - 1
        rows = {Role.OBSERVATION: _with_finals(block, first, lengths), Role.STEP: first, Role.NEXT: last}
        data = {name: block.data[name].take(rows[schema[name].role], axis=0) for name in schema}
        data["reward"] = _sums(block.data["reward"], first)
        return replace(block, data=data, lengths=lengths)


def _with_finals(block: Block, steps: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of the observations before these steps, and of the final ones of the segments that end in the
    block.
    """
    segment = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths)[: block.closed]
    finals = (np.cumsum(block.lengths) + np.arange(len(lengths)))[: block.closed]
    return np.insert(steps + segment, ends, finals)


def _sums(reward: NDArray[np.generic], first: NDArray[np.int64]) -> NDArray[np.generic]:
    if not len(first):
        return reward[:0]
    return np.add.reduceat(reward.astype(np.float64), first).astype(reward.dtype)


@dataclass(frozen=True)
class NStep:
    """Transform of each step to a transition over n steps, or fewer at the end of its trajectory.

    Every step becomes a trajectory of its own: its next observation lies n steps ahead, and is not the first one of the
    next step. So observations are stored twice, and slices can no longer be drawn; to draw slices, leave the steps
    unchanged and sample with ``--n-step``. Fields under ``next`` are those of the last of the n steps, with the
    discounted sum of their rewards. Added are, as TorchRL's MultiStep names them, ``steps_to_next_obs`` (int64 [1]),
    ``gamma`` (float32 [1], to that power) and under ``next`` ``original_reward`` ([1]).

    Args:
        n: steps, 1 to 10,000.
        gamma: discount of a step.
    """

    n: int = 3
    gamma: float = 0.99

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_STEPS:
            raise TransformError(f"n is {self.n}, expected 1 to {MAX_STEPS:,}")
        if not 0 <= self.gamma <= 1:
            raise TransformError(f"gamma is {self.gamma}, expected 0 to 1")

    def schema(self, schema: Schema) -> Schema:
        """Return the same schema with the added fields.

        Raises:
            TransformError: rewards are whole numbers, or a name is taken.
        """
        reward = schema["reward"]
        if not reward.dtype.startswith("float"):
            raise TransformError(f"rewards are {reward.dtype}: expected float32 or float64, to discount them")
        added = {
            "steps_to_next_obs": Field("int64", (1,), Role.STEP),
            "gamma": Field("float32", (1,), Role.STEP),
            "original_reward": Field(reward.dtype, (1,), Role.NEXT),
        }
        if taken := [name for name in added if name in schema.fields]:
            raise TransformError(f"there is a field {taken[0]!r} already")
        return valid({**schema.fields, **added})

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the transitions, each a trajectory."""
        tail: Block | None = None
        for block in blocks:
            joined = block if tail is None else join([tail, block])
            # Of an open trajectory, the last n steps do not yet have all that they lead to.
            ready = joined.steps - (min(self.n, int(joined.lengths[-1])) if joined.is_open else 0)
            if ready:
                yield self._transitions(joined, schema, ready)
            tail = split(joined, schema, ready)[1] if joined.is_open else None

    def _transitions(self, block: Block, schema: Schema, count: int) -> Block:
        """Return the first steps as transitions."""
        segment = np.repeat(np.arange(len(block.lengths)), block.lengths)
        step = np.arange(count)
        ends = np.cumsum(block.lengths)[segment[:count]]
        last = np.minimum(step + self.n, ends) - 1
        rows = {
            Role.OBSERVATION: (np.stack([step, last + 1], axis=1) + segment[:count, None]).reshape(-1),
            Role.STEP: step,
            Role.NEXT: last,
        }
        data = {name: block.data[name].take(rows[schema[name].role], axis=0) for name in schema}
        span = last - step + 1
        reward = block.data["reward"]
        data["original_reward"] = reward[:count, None].copy()
        data["reward"] = self._discounted(reward, span).astype(reward.dtype)
        data["steps_to_next_obs"] = span[:, None]
        data["gamma"] = discount(span, self.gamma)
        is_first = step == (ends - block.lengths[segment[:count]])
        is_last = (last + 1 == ends) & (segment[:count] < block.closed)
        return Block(
            data,
            np.ones(count, np.int64),
            block.episodes[segment[:count]],
            block.from_reset[segment[:count]] & is_first,
            block.final_recorded[segment[:count]] | ~is_last,
            cut=block.cut[segment[:count]] & is_last,
        )

    def _discounted(self, reward: NDArray[np.generic], span: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return [n] sums of as many rewards as each step spans."""
        steps = min(self.n, int(span.max()))
        padded = np.append(reward.astype(np.float64), np.zeros(steps))
        ahead = (np.where(k < span, padded[k : k + len(span)], 0.0) for k in range(steps))
        return discounted_sum(ahead, self.gamma)
