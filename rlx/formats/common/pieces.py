"""Trajectories piece by piece, each piece with the observation after its last step, for writing row by row."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role, Schema

_MAX_SMALL_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Piece:
    """n >= 1 consecutive steps of one trajectory.

    Args:
        data: an array for every field: [n, ...], observations [n + 1, ...].
        trajectory: how many trajectories came before.
        start: how many steps of the trajectory came before.
        is_last: whether the trajectory ends here.
        episode: the source's number of the episode.
        from_reset: whether the trajectory starts with the first step of its episode.
        final_recorded: whether its final observation was recorded; known in the last piece.
        cut: whether its recording stops although the environment did not end it; known in the last piece.
    """

    data: Mapping[str, NDArray[np.generic]]
    trajectory: int
    start: int
    is_last: bool
    episode: int
    from_reset: bool
    final_recorded: bool
    cut: bool

    @property
    def steps(self) -> int:
        """Steps in the piece."""
        return len(self.data["reward"])

    def rows(self, name: str) -> NDArray[np.generic]:
        """Return [n] the rows of a field; of observations, those before each step."""
        return self.data[name][: self.steps]

    def next(self, name: str) -> NDArray[np.generic]:
        """Return [n] the observation after each step."""
        return self.data[name][1:]

    def stored(self, name: str) -> NDArray[np.generic]:
        """Return [n] the rows of an observation, and in the last piece [n + 1]: every observation once."""
        return self.data[name] if self.is_last else self.rows(name)


def pieces(blocks: Iterable[Block], schema: Schema) -> Iterator[Piece]:
    """Yield the segments of the blocks, in order. One is held back until the observation after it is known.

    Example:
        >>> schema = Schema.of(observation=("int8", ()), action=("int8", ()))
        >>> flags = np.zeros(2, bool)
        >>> data = {"observation": np.array([0, 1, 2], "i1"), "action": np.zeros(2, "i1"), "reward": np.ones(2, "f4")}
        >>> from rlx.block import single
        >>> (piece,) = pieces([single({**data, "terminated": flags, "truncated": flags}, episode=7)], schema)
        >>> piece.next("observation").tolist(), piece.episode, piece.is_last
        ([1, 2], 7, True)
    """
    observations = frozenset(schema.names(Role.OBSERVATION))
    held: Piece | None = None
    trajectory = start = 0
    for block in blocks:
        for piece in _segments(block, observations, trajectory, start):
            if not piece.steps and not piece.is_last:
                continue
            if held is not None:
                yield _completed(held, piece, observations)
            # A trajectory may end in a segment that has no step: its one observation is the held piece's.
            held = None if piece.is_last or not piece.steps else piece
            if piece.is_last and piece.steps:
                yield piece
            trajectory, start = (trajectory + 1, 0) if piece.is_last else (trajectory, start + piece.steps)


def small_pieces(blocks: Iterable[Block], schema: Schema) -> Iterator[Piece]:
    """Yield the same, none of them larger than a MiB: for whoever makes several times as much of them."""
    size = max(1, _MAX_SMALL_BYTES // schema.row_bytes)
    observations = frozenset(schema.names(Role.OBSERVATION))
    for piece in pieces(blocks, schema):
        for start in range(0, piece.steps, size):
            yield _part(piece, start, min(start + size, piece.steps), observations)


def _part(piece: Piece, start: int, stop: int, observations: frozenset[str]) -> Piece:
    data = {name: array[start : stop + (name in observations)] for name, array in piece.data.items()}
    is_last = piece.is_last and stop == piece.steps
    return replace(piece, data=data, start=piece.start + start, is_last=is_last)


def _completed(held: Piece, follower: Piece, observations: frozenset[str]) -> Piece:
    data = {
        name: np.concatenate([array, follower.data[name][:1]]) if name in observations else array
        for name, array in held.data.items()
    }
    ends = follower.is_last and not follower.steps
    return replace(held, data=data, is_last=ends, final_recorded=follower.final_recorded, cut=follower.cut)


def _segments(block: Block, observations: frozenset[str], trajectory: int, start: int) -> Iterator[Piece]:
    step = row = 0
    for number, length in enumerate(block.lengths.tolist()):
        is_last = number < block.closed
        data = {
            name: array[row : row + length + is_last] if name in observations else array[step : step + length]
            for name, array in block.data.items()
        }
        yield Piece(
            data,
            trajectory + number,
            start if number == 0 else 0,
            is_last,
            int(block.episodes[number]),
            bool(block.from_reset[number]),
            bool(block.final_recorded[number]),
            bool(block.cut[number]),
        )
        step, row = step + length, row + length + is_last
