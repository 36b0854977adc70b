"""The steps of a shard as blocks, for whatever reads a dataset from end to end, or some trajectories of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role
from rlx.store.array import ArrayReader, Rows
from rlx.store.shards import Shards


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Trajectories of a shard, as if it had no others.

    Args:
        number: [n] their places in the shard, ascending.
        length: [n] how many of their steps are taken.
        start: [n] their first steps in the shard.
        episode, from_reset, final_recorded, cut: [n] as in a Block.
    """

    number: NDArray[np.int64]
    length: NDArray[np.int64]
    start: NDArray[np.int64]
    episode: NDArray[np.int64]
    from_reset: NDArray[np.bool_]
    final_recorded: NDArray[np.bool_]
    cut: NDArray[np.bool_]


def shard_blocks(
    shards: Shards,
    number: int,
    max_steps: int,
    *,
    trajectories: NDArray[np.int64] | None = None,
    steps: int | None = None,
) -> Iterator[Block]:
    """Yield one shard in blocks of at most ``max_steps`` steps, cut between trajectories where one fits, else inside
    it.

    Args:
        shards: of the dataset.
        number: the shard's place.
        max_steps: of a block.
        trajectories: [n] only these, places in the shard in ascending order.
        steps: maximum number of steps in all; the last trajectory is cut there.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}, expected at least 1")
    chosen = _chosen(shards, number, trajectories, steps)
    ends = np.cumsum(chosen.length)
    position, total = 0, int(ends[-1]) if len(ends) else 0
    while position < total:
        stop = _stop(ends, position, max_steps)
        yield _block(shards, number, chosen, ends, position, stop)
        position = stop
        for array in shards.arrays(number).values():
            array.release()


def _chosen(shards: Shards, number: int, trajectories: NDArray[np.int64] | None, steps: int | None) -> _Chosen:
    table = shards.table(number)
    picked = np.arange(len(table)) if trajectories is None else trajectories
    length, final_recorded, cut = table.length[picked], table.final_recorded[picked], table.cut[picked]
    if steps is not None:
        before = np.cumsum(length) - length
        picked = picked[before < steps]
        length, whole = np.minimum(length, steps - before)[: len(picked)], length[: len(picked)]
        # The last step of a cut trajectory is followed by the observation of its next step.
        final_recorded = final_recorded[: len(picked)] | (length < whole)
        cut = cut[: len(picked)] | (length < whole)
    columns = (table.start[picked], table.episode[picked], table.from_reset[picked], final_recorded, cut)
    return _Chosen(picked, length, *columns)


def _stop(ends: NDArray[np.int64], position: int, max_steps: int) -> int:
    """Return the last end of a trajectory within reach, or else as far as a block reaches.

    Example:
        >>> _stop(np.array([3, 5, 14]), 0, 6), _stop(np.array([3, 5, 14]), 5, 6)
        (5, 11)
    """
    reached = int(np.searchsorted(ends, position + max_steps, side="right")) - 1
    if reached >= 0 and ends[reached] > position:
        return int(ends[reached])
    return position + max_steps


def _block(shards: Shards, number: int, chosen: _Chosen, ends: NDArray[np.int64], start: int, stop: int) -> Block:
    """Return the chosen steps from start to stop, counted among the chosen ones."""
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left"))
    here = slice(first, last + 1)
    before = (ends - chosen.length)[here]
    begins = np.maximum(before, start)
    lengths = np.minimum(ends[here], stop) - begins
    is_open = bool(ends[last] > stop)
    steps = chosen.start[here] + begins - before
    # Observations: one row more for every trajectory of the shard before this one, and for each that ends in the block.
    closed = np.ones(len(lengths), np.int64)
    closed[-1] -= is_open
    rows = {Role.OBSERVATION: (steps + chosen.number[here], lengths + closed)}
    arrays = shards.arrays(number)
    data = {
        name: _read(arrays[name], *rows.get(field.role, (steps, lengths)))
        for name, field in shards.schema.fields.items()
    }
    columns = (chosen.episode[here], chosen.from_reset[here], chosen.final_recorded[here])
    return Block(data, lengths, *columns, is_open, chosen.cut[here])


def _read(array: ArrayReader, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Rows:
    """Return rows from each of these starts on, joined."""
    total = int(counts.sum())
    first, stop = int(starts[0]), int(starts[-1] + counts[-1])
    if stop - first == total:
        return array.read_range(first, stop)
    return array.read(np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(total))
