"""Consecutive steps with the observations after each of them: the input of users' functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role, Schema
from rlx.store.array import Rows
from rlx.transform.segments import join, split


@dataclass(frozen=True, slots=True)
class Transitions:
    """n >= 1 consecutive steps, of one trajectory or of several.

    Args:
        data: [n, ...] of every field; of an observation, the one before the step.
        next: [n, ...] of every observation, the one after the step.
        trajectory: [n] number of the trajectory.
        index: [n] number of the step.
        is_first: [n] whether the step is the first of its episode.
        is_last: [n] whether the trajectory ends with the step.
        final_recorded: [n] whether the observation after the step was recorded.
        cut: [n] whether the recording stops with the step although the environment did not end the episode.
    """

    data: Mapping[str, Rows]
    next: Mapping[str, Rows]
    trajectory: NDArray[np.int64]
    index: NDArray[np.int64]
    is_first: NDArray[np.bool_]
    is_last: NDArray[np.bool_]
    final_recorded: NDArray[np.bool_]
    cut: NDArray[np.bool_]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.index)

    def part(self, start: int, stop: int) -> "Transitions":
        """Return the transitions from start to stop."""
        here = slice(start, stop)
        return Transitions(
            {name: rows[here] for name, rows in self.data.items()},
            {name: rows[here] for name, rows in self.next.items()},
            self.trajectory[here],
            self.index[here],
            self.is_first[here],
            self.is_last[here],
            self.final_recorded[here],
            self.cut[here],
        )

    def __str__(self) -> str:
        first, last = int(self.trajectory[0]), int(self.trajectory[-1])
        return f"trajectory {first}" if first == last else f"trajectories {first} to {last}"


def transitions_of(blocks: Iterator[Block], schema: Schema, start: NDArray[np.int64]) -> Iterator[Transitions]:
    """Yield the steps of blocks, as one value for each block that has any.

    Args:
        blocks: whole trajectories, in order; ``episodes`` are their numbers.
        schema: what a step holds.
        start: [N] number of the first step of every trajectory.
    """
    last, seen = -1, 0  # the trajectory of the step before, and how many of its steps came already
    goes_on = False
    for block, behind in _with_following(blocks, schema):
        trajectory = np.repeat(block.episodes, block.lengths)
        if block.steps:
            # Counted over all segments of a trajectory: a function before this one may have cut it.
            position = np.arange(block.steps) - np.searchsorted(trajectory, trajectory) + seen * (trajectory == last)
            yield _transitions(block, behind, schema, trajectory, start[trajectory] + position, goes_on)
            last, seen = int(trajectory[-1]), int(position[-1]) + 1
        goes_on = block.is_open


def _with_following(blocks: Iterator[Block], schema: Schema) -> Iterator[tuple[Block, Mapping[str, Rows]]]:
    """Yield each block, and if it is open the observations [1, ...] that its last step led to."""
    observations = schema.names(Role.OBSERVATION)
    held: Block | None = None
    for block in blocks:
        following = block
        if held is not None:
            if following.lengths[0] == 0:
                # The trajectory ended with the held block's last step, as is only now known.
                end, following = split(following, schema, 0)
                held = join([held, end])
            yield held, {name: following.data[name][:1] for name in observations} if held.is_open else {}
        held = following if len(following.lengths) else None
    if held is not None:
        yield held, {}


def _transitions(
    block: Block,
    behind: Mapping[str, Rows],
    schema: Schema,
    trajectory: NDArray[np.int64],
    index: NDArray[np.int64],
    goes_on: bool,
) -> Transitions:
    segment = np.repeat(np.arange(len(block.lengths)), block.lengths)
    closed = np.arange(len(block.lengths)) < block.closed
    steps = np.arange(block.steps)
    is_first, is_last = np.zeros((2, block.steps), bool)
    begun = (block.lengths > 0) & ~(goes_on & (np.arange(len(block.lengths)) == 0))
    is_first[(np.cumsum(block.lengths) - block.lengths)[begun]] = block.from_reset[begun]
    is_last[np.cumsum(block.lengths)[closed & (block.lengths > 0)] - 1] = True
    data, after = dict(block.data), {}
    for name in schema.names(Role.OBSERVATION):
        rows = np.concatenate([block.data[name], behind[name]]) if behind else block.data[name]
        data[name], after[name] = rows.take(steps + segment, axis=0), rows.take(steps + segment + 1, axis=0)
    final_recorded = ~is_last | block.final_recorded[segment]
    return Transitions(data, after, trajectory, index, is_first, is_last, final_recorded, is_last & block.cut[segment])
