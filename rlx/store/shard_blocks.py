"""The steps of a shard as blocks, for whatever reads a dataset from end to end."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role
from rlx.store.shards import Shards
from rlx.store.trajectories import Trajectories


def shard_blocks(shards: Shards, number: int, max_steps: int) -> Iterator[Block]:
    """One shard in blocks of at most ``max_steps`` steps, cut between trajectories where one fits, else inside it."""
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}, expected at least 1")
    table = shards.table(number)
    ends = np.cumsum(table.length)
    position, total = 0, int(ends[-1])
    while position < total:
        stop = _stop(ends, position, max_steps)
        yield _block(shards, number, table, position, stop)
        position = stop


def _stop(ends: NDArray[np.int64], position: int, max_steps: int) -> int:
    """The last end of a trajectory within reach, or else as far as a block reaches.

    Example:
        >>> _stop(np.array([3, 5, 14]), 0, 6), _stop(np.array([3, 5, 14]), 5, 6)
        (5, 11)
    """
    reached = int(np.searchsorted(ends, position + max_steps, side="right")) - 1
    if reached >= 0 and ends[reached] > position:
        return int(ends[reached])
    return position + max_steps


def _block(shards: Shards, number: int, table: Trajectories, start: int, stop: int) -> Block:
    ends = np.cumsum(table.length)
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left"))
    begins = np.maximum(ends - table.length, start)[first : last + 1]
    lengths = np.minimum(ends[first : last + 1], stop) - begins
    is_open = bool(ends[last] > stop)
    # Observations: one row more for every trajectory before this one, and for each that ends in the block.
    rows = {Role.OBSERVATION: (start + first, stop + last + (0 if is_open else 1))}
    arrays = shards[number].arrays
    roles = {name: field.role for name, field in shards.schema.fields.items()}
    data = {name: arrays[name].read_range(*rows.get(role, (start, stop))) for name, role in roles.items()}
    whole = slice(first, last + 1)
    return Block(data, lengths, table.episode[whole], table.from_reset[whole], table.final_recorded[whole], is_open)
