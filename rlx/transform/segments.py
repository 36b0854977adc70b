"""Blocks joined and cut apart again, for transforms that look across the end of a block."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Role, Schema

# Of a trajectory that is in memory as a whole.
MAX_BYTES = 256 * 2**20


def join(blocks: Sequence[Block]) -> Block:
    """Return one block of several that follow each other.

    Example:
        >>> from rlx.block import single
        >>> block = single({"reward": np.ones(3)}, episode=0)
        >>> join([block, block]).lengths
        array([3, 3])
    """
    if len(blocks) == 1:
        return blocks[0]
    episodes, from_reset = [], []
    lengths: list[int] = []
    final_recorded: list[bool] = []
    cut: list[bool] = []
    is_open = False
    for block in blocks:
        skip = int(is_open and len(block.lengths) > 0)
        if skip:
            lengths[-1] += int(block.lengths[0])
            final_recorded[-1] = bool(block.final_recorded[0])
            cut[-1] = bool(block.cut[0])
        lengths += block.lengths[skip:].tolist()
        final_recorded += block.final_recorded[skip:].tolist()
        cut += block.cut[skip:].tolist()
        episodes.append(block.episodes[skip:])
        from_reset.append(block.from_reset[skip:])
        is_open = block.is_open if len(block.lengths) else is_open
    data = {name: np.concatenate([block.data[name] for block in blocks]) for name in blocks[0].data}
    return Block(
        data,
        np.array(lengths, np.int64),
        np.concatenate(episodes),
        np.concatenate(from_reset),
        np.array(final_recorded, bool),
        is_open,
        np.array(cut, bool),
    )


def split(block: Block, schema: Schema, steps: int) -> tuple[Block, Block]:
    """Return the first steps of a block, and the remaining ones, which follow them.

    Where the cut falls between two trajectories, the first block is not open.
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
    """Yield the same steps, so cut that a block that ends inside a trajectory ends where it may.

    Args:
        blocks: whole trajectories, in order.
        schema: what a step holds.
        count: of the steps that a block has of its open trajectory, how many the next block is to have instead.
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
    """Yield the same blocks in groups that hold whole trajectories, the shortest there are.

    Raises:
        TransformError: a trajectory has more than 256 MiB; names it.
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
                "expected less where a transform has to see trajectories whole"
            )
