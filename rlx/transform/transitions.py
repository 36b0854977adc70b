"""Splitting of blocks, and conversion between blocks and transitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.schema import Role, Schema
from rlx.store.array import Rows

# Limit for a trajectory that must be in memory as a whole.
MAX_BYTES = 256 * 2**20


def split(block: Block, schema: Schema, steps: int) -> tuple[Block, Block]:
    """Return the first steps of a block, and the remaining ones, which follow them.

    If they part between two trajectories, the first block is not open.
    """
    ends = np.cumsum(block.lengths)
    closed = int(np.searchsorted(ends[: block.closed], steps, side="right"))  # trajectories that end before the cut
    before = int(ends[closed - 1]) if closed else 0
    is_open = steps > before
    rows = steps + closed
    data = {name: (rows if schema[name].role == Role.OBSERVATION else steps) for name in block.data}
    head, tail = slice(0, closed + is_open), slice(closed, None)
    lengths = block.lengths[tail].copy()
    from_reset = block.from_reset[tail].copy()
    if is_open:
        lengths[0] -= steps - before
        from_reset[0] = False
    return (
        Block(
            {name: array[: data[name]] for name, array in block.data.items()},
            np.array([*block.lengths[:closed], *[steps - before] * is_open], np.int64),
            block.episodes[head],
            block.from_reset[head],
            block.final_recorded[head] | (np.arange(closed + is_open) == closed),
            is_open,
            block.cut[head] & (np.arange(closed + is_open) < closed),
        ),
        Block(
            {name: array[data[name] :] for name, array in block.data.items()},
            lengths,
            block.episodes[tail],
            from_reset,
            block.final_recorded[tail],
            block.is_open,
            block.cut[tail],
        ),
    )


def held_back(blocks: Iterator[Block], schema: Schema, count: Callable[[int], int]) -> Iterator[Block]:
    """Yield the same steps, moving the last ones of an open trajectory to the next block.

    Args:
        blocks: whole trajectories, in order.
        count: returns how many of the given steps of an open trajectory to move.
    """
    tail: Block | None = None
    for block in blocks:
        joined = block if tail is None else join([tail, block])
        tail = None
        if joined.is_open:
            joined, tail = split(joined, schema, joined.steps - count(int(joined.lengths[-1])))
        if len(joined.lengths):
            yield joined


def whole(blocks: Iterator[Block]) -> Iterator[list[Block]]:
    """Yield the same blocks in the shortest groups that hold whole trajectories.

    Raises:
        TransformError: a trajectory has more than ``MAX_BYTES``.
    """
    group: list[Block] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += sum(array.nbytes for array in block.data.values())
        if not block.is_open:
            yield group
            group, size = [], 0
        elif size > MAX_BYTES:
            raise TransformError(
                f"trajectory {block.episodes[-1]} has more than {MAX_BYTES >> 20} MiB: "
                "too large for a transform of whole trajectories"
            )


@dataclass(frozen=True, slots=True)
class Transitions:
    """n >= 1 consecutive steps, of one trajectory or of several.

    Args:
        data: [n, ...] rows of every field; of observations, those before the steps.
        next: [n, ...] rows of every observation, those after the steps.
        trajectory: [n] number of the trajectory.
        index: [n] number of the step.
        is_first: [n] whether the step is the first of its episode.
        is_last: [n] whether the trajectory ends with the step.
        final_recorded: [n] whether the observation after the step was recorded.
        cut: [n] whether the recording stops after the step, before the episode ended.
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

    def part(self, start: int, stop: int) -> Transitions:
        """Return the transitions from start to stop."""
        here = slice(start, stop)
        return Transitions(
            {name: rows[here] for name, rows in self.data.items()},
            {name: rows[here] for name, rows in self.next.items()},
            *(getattr(self, column.name)[here] for column in fields(self)[2:]),
        )

    def __str__(self) -> str:
        first, last = int(self.trajectory[0]), int(self.trajectory[-1])
        return f"trajectory {first}" if first == last else f"trajectories {first} to {last}"


def transitions_of(blocks: Iterator[Block], schema: Schema, start: NDArray[np.int64]) -> Iterator[Transitions]:
    """Yield the transitions of each block that has steps.

    Args:
        blocks: whole trajectories, in order; ``episodes`` are their numbers.
        start: [N] number of the first step of every trajectory.
    """
    last, seen = -1, 0  # trajectory of the previous step, and its steps so far
    continues = False
    for block, following in _with_following(blocks, schema):
        trajectory = np.repeat(block.episodes, block.lengths)
        if block.steps:
            # Counted over all segments of a trajectory, as an earlier function may have cut it.
            position = np.arange(block.steps) - np.searchsorted(trajectory, trajectory) + seen * (trajectory == last)
            yield _transitions(block, following, schema, trajectory, start[trajectory] + position, continues)
            last, seen = int(trajectory[-1]), int(position[-1]) + 1
        continues = block.is_open


def _with_following(blocks: Iterator[Block], schema: Schema) -> Iterator[tuple[Block, Mapping[str, Rows]]]:
    """Yield each block, and if it is open the observations [1, ...] after its last step."""
    observations = schema.names(Role.OBSERVATION)
    held: Block | None = None
    for block in blocks:
        following = block
        if held is not None:
            if following.lengths[0] == 0:
                # Only now it is known that the trajectory ended with the held block.
                end, following = split(following, schema, 0)
                held = join([held, end])
            yield held, {name: following.data[name][:1] for name in observations} if held.is_open else {}
        held = following if len(following.lengths) else None
    if held is not None:
        yield held, {}


def _transitions(
    block: Block,
    following: Mapping[str, Rows],
    schema: Schema,
    trajectory: NDArray[np.int64],
    index: NDArray[np.int64],
    continues: bool,
) -> Transitions:
    segment = np.repeat(np.arange(len(block.lengths)), block.lengths)
    closed = np.arange(len(block.lengths)) < block.closed
    steps = np.arange(block.steps)
    is_first, is_last = np.zeros((2, block.steps), bool)
    begun = (block.lengths > 0) & ~(continues & (np.arange(len(block.lengths)) == 0))
    is_first[(np.cumsum(block.lengths) - block.lengths)[begun]] = block.from_reset[begun]
    is_last[np.cumsum(block.lengths)[closed & (block.lengths > 0)] - 1] = True
    data, after = dict(block.data), {}
    for name in schema.names(Role.OBSERVATION):
        rows = np.concatenate([block.data[name], following[name]]) if following else block.data[name]
        data[name], after[name] = rows.take(steps + segment, axis=0), rows.take(steps + segment + 1, axis=0)
    final_recorded = ~is_last | block.final_recorded[segment]
    return Transitions(data, after, trajectory, index, is_first, is_last, final_recorded, is_last & block.cut[segment])


class Stitching:
    """Trajectories joined from the kept steps of transitions.

    A trajectory ends where the following step is not kept, and where a step is flagged terminated or truncated; the
    next kept step starts another trajectory of the same episode.
    """

    def __init__(self, schema: Schema) -> None:
        self._observations = schema.names(Role.OBSERVATION)
        self._open: tuple[int, int] | None = None  # the trajectory that continues, and its next step
        self._following: Mapping[str, Rows] = {}  # the observations [1, ...] after its last step

    def block(
        self, before: Transitions, places: NDArray[np.int64], data: Mapping[str, Rows], after: Mapping[str, Rows]
    ) -> Block:
        """Return the kept steps of the next transitions; ends an open trajectory that they do not continue.

        Args:
            before: the transitions, some of which are kept.
            places: [m] positions of the kept ones, ascending.
            data: [m, ...] rows of every field; of observations, those before the steps.
            after: [m, ...] rows of every observation, those after the steps.
        """
        trajectory, index = before.trajectory[places], before.index[places]
        continues = len(places) > 0 and self._open == (trajectory[0], index[0])
        ended = None if continues or self._open is None else self._open[0]
        ends = np.logical_or(data["terminated"], data["truncated"]) | before.is_last[places]
        if len(places):
            ends[:-1] |= np.diff(places) > 1
            ends[-1] |= places[-1] < before.steps - 1
        inside = np.flatnonzero(~ends[:-1])
        for name in self._observations:
            if continues:
                _check_same(name, self._following[name], data[name][:1], trajectory[:1])
            _check_same(name, after[name][inside], data[name][inside + 1], trajectory[inside])
        block = self._joined(before, places, data, after, ends, ended)
        self._open = None
        if len(places) and not ends[-1]:
            self._open = (int(trajectory[-1]), int(index[-1]) + 1)
            self._following = {name: after[name][-1:].copy() for name in self._observations}
        return block

    def _joined(
        self,
        before: Transitions,
        places: NDArray[np.int64],
        data: Mapping[str, Rows],
        after: Mapping[str, Rows],
        ends: NDArray[np.bool_],
        ended: int | None,
    ) -> Block:
        is_open = bool(len(ends)) and not ends[-1]
        last = np.flatnonzero(np.append(ends[:-1], True)) if len(ends) else np.arange(0)
        first = np.append(0, last[:-1] + 1)[: len(last)]
        closed = last[:-1] if is_open else last
        lengths, episodes = last - first + 1, before.trajectory[places[first]]
        from_reset, final_recorded = before.is_first[places[first]], before.final_recorded[places[last]]
        cut = before.cut[places[last]]
        rows = dict(data)
        for name in self._observations:
            rows[name] = np.insert(data[name], closed + 1, after[name][closed], axis=0) if len(closed) else data[name]
        if ended is not None:
            # An empty segment ends the open trajectory.
            lengths, episodes = np.append(0, lengths), np.append(ended, episodes)
            from_reset, final_recorded = np.append(False, from_reset), np.append(True, final_recorded)
            cut = np.append(False, cut)
            for name in self._observations:
                rows[name] = np.concatenate([self._following[name], rows[name]])
        return Block(rows, lengths, episodes, from_reset, final_recorded, is_open, cut)


def _check_same(name: str, seen_after: Rows, seen_before: Rows, trajectory: NDArray[np.int64]) -> None:
    if seen_after.tobytes() == seen_before.tobytes():
        return
    differs = [number for number, a, b in zip(trajectory, seen_after, seen_before, strict=True) if _differ(a, b)]
    if differs:
        raise TransformError(
            f"trajectory {differs[0]}: next {name} of a step differs from {name} of the following step; "
            "expected the same, as observations are stored once"
        )


def _differ(one: Rows, other: Rows) -> bool:
    return not np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
