"""A Block: consecutive steps on their way through the program, with the trajectory boundaries that fall in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SchemaMismatchError
from rlx.schema import Role, Schema


@dataclass(frozen=True, slots=True)
class Block:
    """Named arrays of S consecutive steps, cut into segments of n trajectories.

    A segment is the part of one trajectory within the block. Only the last one may be *open*: its trajectory
    continues in the next block, whose first observation is also its final one. So the observations have S rows and one
    more for every segment that is not open: the final observation of a segment follows its steps directly.

    Args:
        data: an array for every field of the schema: [S, ...], observations [S + closed segments, ...]. Texts are an
            array of objects, each a ``str``.
        lengths: [n] steps of each segment. 0 only where a trajectory, open in the block before, ends without a step.
        episodes: [n] the source's number of the episode that each segment belongs to.
        from_reset: [n] whether the trajectory starts with the first step of its episode.
        final_recorded: [n] whether the source recorded the final observation; where not, its row is zeros.
        is_open: whether the last segment continues in the next block.
        cut: [n] whether the recording of the episode stops with the segment although the environment did not end it;
            its last step is then flagged truncated. False for all segments if not given.
    """

    data: Mapping[str, NDArray[np.generic]]
    lengths: NDArray[np.int64]
    episodes: NDArray[np.int64]
    from_reset: NDArray[np.bool_]
    final_recorded: NDArray[np.bool_]
    is_open: bool = False
    cut: NDArray[np.bool_] = None  # type: ignore[assignment]  # replaced in __post_init__

    def __post_init__(self) -> None:
        if self.cut is None:
            object.__setattr__(self, "cut", np.zeros(len(self.lengths), bool))

    @property
    def steps(self) -> int:
        """Steps in the block."""
        return int(self.lengths.sum())

    @property
    def closed(self) -> int:
        """Segments that end in the block."""
        return len(self.lengths) - int(self.is_open)

    def check(self, schema: Schema) -> None:
        """Raise SchemaMismatchError unless the block fits the schema to the last dtype and row."""
        if set(self.data) != set(schema):
            missing, extra = sorted(set(schema) - set(self.data)), sorted(set(self.data) - set(schema))
            raise SchemaMismatchError(f"block: fields missing {missing}, extra {extra}; expected {sorted(schema)}")
        self._check_segments()
        for name, array in self.data.items():
            field = schema[name]
            rows = self.steps + self.closed if field.role == Role.OBSERVATION else self.steps
            if array.dtype != field.numpy_dtype or array.shape != (rows, *field.shape):
                raise SchemaMismatchError(
                    f"block: {name} is {array.dtype}{list(array.shape)}, expected {field.dtype}{[rows, *field.shape]}"
                )
            if field.is_text and not all(isinstance(text, str) for text in array.flat):
                found = next(type(text).__name__ for text in array.flat if not isinstance(text, str))
                raise SchemaMismatchError(f"block: {name} has a {found}, expected only texts (str)")

    def _check_segments(self) -> None:
        columns = {"episodes": self.episodes, "from_reset": self.from_reset, "final_recorded": self.final_recorded}
        columns["cut"] = self.cut
        for name, column in columns.items():
            if column.shape != self.lengths.shape:
                raise SchemaMismatchError(f"block: {name} has {len(column)} rows, expected {len(self.lengths)}")
        if self.is_open and not len(self.lengths):
            raise SchemaMismatchError("block: is open, but has no segment")
        if (self.lengths[1:] < 1).any() or (self.lengths[:1] < 0).any():
            raise SchemaMismatchError("block: a segment has no step; only the first may be without")


def single(
    data: Mapping[str, NDArray[np.generic]],
    *,
    episode: int,
    from_reset: bool = True,
    final_recorded: bool = True,
    is_open: bool = False,
    cut: bool = False,
) -> Block:
    """Return a block of ``len(data["reward"])`` steps of one trajectory: all of them, or with ``is_open`` some."""
    return Block(
        data,
        np.array([len(data["reward"])], np.int64),
        np.array([episode], np.int64),
        np.array([from_reset]),
        np.array([final_recorded]),
        is_open,
        np.array([cut]),
    )


def join(blocks: Sequence[Block]) -> Block:
    """Return consecutive blocks as one block.

    Example:
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
