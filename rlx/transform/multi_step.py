"""Transforms that depend on later steps: frame skip, n-step transitions and returns to go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.numbers import check_real, check_whole
from rlx.returns import discount, discounted_sum, returns_to_go
from rlx.schema import Field, Role, Schema, name_of
from rlx.transform.keys import valid
from rlx.transform.protocol import Key, PerBlock, Reader, Rows, as_path, wanted
from rlx.transform.transitions import held_back, split, whole

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_REWARD = ("next", "reward")

# Time grows with the steps per transition.
MAX_STEPS = 10_000


@dataclass(frozen=True)
class FrameSkip(PerBlock):
    """Transform that merges every k steps of a trajectory into one; the last one may merge fewer.

    A merged step has the root keys (observation, action) of its first step, the ``next`` keys (observation, flags) of
    its last, and the sum of the rewards.

    Args:
        k: steps to merge, at least 1.
    """

    k: int

    def __post_init__(self) -> None:
        check_whole("k", self.k, error=TransformError)

    def schema(self, schema: Schema) -> Schema:
        """Return the schema; integer rewards become int64."""
        reward = schema["reward"]
        if reward.dtype.startswith("float"):
            return schema
        return Schema({**schema.fields, "reward": replace(reward, dtype="int64", space=None)})

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the merged steps."""
        for block in held_back(blocks, schema, lambda steps: steps % self.k):
            yield self.apply(block, schema)

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with every k steps merged."""
        begins = np.cumsum(block.lengths) - block.lengths
        lengths = -(-block.lengths // self.k)
        segment = np.repeat(np.arange(len(lengths)), lengths)
        first = begins[segment] + self.k * (np.arange(len(segment)) - (np.cumsum(lengths) - lengths)[segment])
        last = np.minimum(first + self.k, (begins + block.lengths)[segment]) - 1
        rows = {Role.OBSERVATION: _with_finals(block, first, lengths), Role.STEP: first, Role.NEXT: last}
        data = {name: block.data[name].take(rows[schema[name].role], axis=0) for name in schema}
        data["reward"] = _sums(block.data["reward"], first).astype(self.schema(schema)["reward"].dtype)
        return replace(block, data=data, lengths=lengths)


def _with_finals(block: Block, steps: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of these steps' observations, and of the final one of each segment that ends in the block."""
    segment = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths)[: block.closed]
    finals = (np.cumsum(block.lengths) + np.arange(len(lengths)))[: block.closed]
    return np.insert(steps + segment, ends, finals)


def _sums(reward: NDArray[np.generic], first: NDArray[np.int64]) -> NDArray[np.generic]:
    wide = reward.astype(np.float64 if reward.dtype.kind == "f" else np.int64)
    return np.add.reduceat(wide, first) if len(first) else wide[:0]


@dataclass(frozen=True)
class NStep:
    """Transform of each step to a transition over n steps; ``rlx.buffer.NStep`` adds a call with a batch.

    In a dataset (``rlx preprocess --transform n_step:n=3``), every step becomes a trajectory of its own, as its next
    observation is not the observation of the following step. So observations are stored twice, and slices cannot be
    drawn; for slices, keep the dataset and transform the batches of a buffer.

    Args:
        n: steps per transition, 1 to 10,000.
        gamma: discount factor per step.
    """

    n: int = 3
    gamma: float = 0.99

    @property
    def replaces_next(self) -> bool:
        """Whether ``next`` becomes that of the last of n steps."""
        return True

    def __post_init__(self) -> None:
        check_whole("n", self.n, 1, MAX_STEPS, error=TransformError)
        check_real("gamma", self.gamma, 0, 1, error=TransformError)

    def schema(self, schema: Schema) -> Schema:
        """Return the same schema with the added fields.

        Raises:
            TransformError: rewards are integers, or an added field exists already.
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
            raise TransformError(f"field {taken[0]!r} already exists")
        return valid({**schema.fields, **added})

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the transitions, each a trajectory."""
        tail: Block | None = None
        for block in blocks:
            joined = block if tail is None else join([tail, block])
            # The last n steps of an open trajectory still lack later steps.
            ready = joined.steps - (min(self.n, int(joined.lengths[-1])) if joined.is_open else 0)
            if ready:
                yield self._transitions(joined, schema, ready)
            tail = split(joined, schema, ready)[1] if joined.is_open else None

    def _transitions(self, block: Block, schema: Schema, count: int) -> Block:
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
        """Return [n] discounted sums of the rewards that each step spans."""
        steps = min(self.n, int(span.max()))
        padded = np.append(reward.astype(np.float64), np.zeros(steps))
        ahead = (np.where(k < span, padded[k : k + len(span)], 0.0) for k in range(steps))
        return discounted_sum(ahead, self.gamma)

    def around(self, rows: Rows, keys: Sequence[Key] | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows of a buffer, each spanning n steps."""
        batch = below.read(rows, keys)
        asked = None if keys is None else [key for key in keys if as_path(key)[0] == "next"]
        if keys is not None and not (asked or wanted("gamma", keys) or wanted("steps_to_next_obs", keys)):
            return batch
        after, span = self.transitions(batch, rows, ["next"] if asked is None else asked, below)
        if asked is None or asked:
            batch.set("next", after)
        _put(batch, "steps_to_next_obs", span[:, None])
        _put(batch, "gamma", discount(span, self.gamma))
        return batch

    def transitions(
        self, batch: TensorDictBase, rows: Rows, keys: Sequence[Key], below: Reader
    ) -> tuple[TensorDictBase, Rows]:
        """Return what is under ``next`` after up to n steps from the rows of a batch, and [n] how many steps.

        Args:
            keys: keys under ``next`` that are needed, or ``next`` for all.
        """
        ahead = below.index.follow(rows, self.n)
        inside = ahead >= 0
        span = inside.sum(1)
        last = ahead[np.arange(len(rows)), span - 1]
        picked = below.pick(last, keys).get("next", None) if keys else None
        after = batch.empty() if picked is None else picked
        if wanted(_REWARD, keys) or wanted(("next", "original_reward"), keys):
            found = below.pick(np.where(inside, ahead, rows[:, None]).reshape(-1), [_REWARD]).get(_REWARD)
            rewards = found.reshape(*ahead.shape, *found.shape[1:])
            if not inside.all():
                rewards[~inside] = 0
            after.set("original_reward", rewards[:, 0])
            # In float64, as for datasets, so that both results have the same bits.
            total = discounted_sum(rewards.double().unbind(1), self.gamma)
            after.set("reward", total.to(rewards.dtype) if rewards.is_floating_point() else total.float())
        return after, span


@dataclass(frozen=True)
class ReturnToGo:
    """Transform that adds the discounted sum of rewards from each step to the end of its stored trajectory.

    ``rlx.buffer.ReturnToGo`` adds a call with a batch.

    Args:
        gamma: discount factor per step.
        key: key of the sum: float32 [n, 1].
    """

    gamma: float = 1.0
    key: Key = "return_to_go"

    def __post_init__(self) -> None:
        check_real("gamma", self.gamma, 0, 1, error=TransformError)
        object.__setattr__(self, "key", name_of(self.key))

    def check_earlier(self, earlier: Sequence[Any]) -> None:
        """Raise TransformError if NStep is among the transforms before this one."""
        if any(isinstance(transform, NStep) and transform.replaces_next for transform in earlier):
            raise TransformError("ReturnToGo after NStep would add up rewards several times; put ReturnToGo first")

    def schema(self, schema: Schema) -> Schema:
        """Return the schema with the new field.

        Raises:
            TransformError: a field of that name exists.
        """
        name = name_of(self.key)
        if name in schema.fields:
            raise TransformError(f"field {name!r} already exists")
        return valid({**schema.fields, name: Field("float32", (1,), Role.STEP)})

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:  # noqa: ARG002
        """Yield the steps with their returns to go."""
        for group in whole(blocks):
            rewards = join([replace(block, data={"reward": block.data["reward"]}) for block in group])
            returns = self._returns(rewards.data["reward"], rewards.lengths)
            stops = np.cumsum([block.steps for block in group])
            for block, stop in zip(group, stops.tolist(), strict=True):
                yield replace(block, data={**block.data, name_of(self.key): returns[stop - block.steps : stop]})

    def around(self, rows: Rows, keys: Sequence[Key] | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows of a buffer, with their returns to go; each reward is read once."""
        batch = below.read(rows, keys)
        if "steps_to_next_obs" in batch.keys():  # noqa: SIM118  (a TensorDict iterates over its batch)
            raise TransformError("ReturnToGo of n-step transitions would add up rewards several times")
        key = tuple(name_of(self.key).split("/"))
        if not (wanted(key, keys) and len(rows)):
            return batch
        remaining = below.index.remaining(rows)
        # Read each trajectory once, from its first step in the batch; steps of a trajectory share their last step.
        _, trajectory = np.unique(below.index.after(rows, remaining - 1), return_inverse=True)
        longest = np.zeros(trajectory.max() + 1, np.int64)
        np.maximum.at(longest, trajectory, remaining)
        first = np.zeros(len(longest), np.int64)
        is_first = remaining == longest[trajectory]
        first[trajectory[is_first]] = rows[is_first]
        ahead = below.index.follow(first, int(longest.max()))
        rewards = below.read(ahead[ahead >= 0], [_REWARD]).get(_REWARD).reshape(-1).cpu().numpy()
        _put(batch, key, self._returns(rewards, longest)[np.cumsum(longest)[trajectory] - remaining])
        return batch

    def _returns(self, rewards: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return [S, 1] the sums of consecutive trajectories."""
        return returns_to_go(rewards, lengths, self.gamma).astype(np.float32)[:, None]


def _put(batch: Any, key: Key, values: NDArray[Any]) -> None:
    batch.set(key, values)  # the TensorDict converts it to a tensor on its device
