"""Dopamine's trajectories as blocks: which steps go into which, and the reading of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from rlx.block import Block
from rlx.formats.dopamine.episodes import Trajectory
from rlx.formats.dopamine.ring import OBSERVATION
from rlx.formats.dopamine.rows import Rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Steps [first, first + steps) of a trajectory, which go into one block."""

    trajectory: Trajectory
    first: int
    steps: int

    @property
    def is_end(self) -> bool:
        """Whether the trajectory ends with it."""
        return self.first + self.steps == self.trajectory.steps


def pack(trajectories: Iterable[Trajectory], limit: int) -> Iterator[list[Piece]]:
    """Yield the pieces of each block: every block but the last has ``limit`` steps.

    Example:
        >>> one, two = (Trajectory(n, 0, 3, 0, True, is_terminal=True) for n in (1, 2))
        >>> blocks = pack([one, two], limit=4)
        >>> [[(piece.trajectory.episode, piece.first, piece.steps) for piece in block] for block in blocks]
        [[(1, 0, 3), (2, 0, 1)], [(2, 1, 2)]]
    """
    block: list[Piece] = []
    room = limit
    for trajectory in trajectories:
        first = 0
        while first < trajectory.steps:
            steps = min(room, trajectory.steps - first)
            block.append(Piece(trajectory, first, steps))
            first, room = first + steps, room - steps
            if not room:
                yield block
                block, room = [], limit
    if block:
        yield block


def read_block(pieces: Sequence[Piece], rows: Rows, extras: Mapping[str, str] = MappingProxyType({})) -> Block:
    """Return the block of these pieces; raises as ``Rows`` does, also if the padding after a trajectory is not zeros.

    Args:
        pieces: what goes into it.
        rows: of the run.
        extras: name of the array of every extra field.
    """
    steps = sum(piece.steps for piece in pieces)
    observation = rows.empty(OBSERVATION, steps + sum(piece.is_end for piece in pieces))
    more = {name: rows.empty(array, steps) for name, array in extras.items()}
    action, reward = np.empty(steps, np.int32), np.empty(steps, np.float32)
    terminated, truncated = np.zeros(steps, np.bool_), np.zeros(steps, np.bool_)
    step = frame = 0
    for piece in pieces:
        one, row = piece.trajectory, piece.trajectory.start + piece.first
        after, frames = step + piece.steps, piece.steps + piece.is_end
        recorded = frames - (piece.is_end and one.is_terminal)
        rows.read_observations(row, observation[frame : frame + recorded])
        observation[frame + recorded : frame + frames] = 0
        rows.read_column("$store$_action", row, action[step:after])
        rows.read_column("$store$_reward", row, reward[step:after])
        for name, array in extras.items():
            rows.read_rows(array, row, more[name][step:after])
        if piece.is_end:
            rows.check_blank(one.stop, one.stop + one.padding)
            terminated[after - 1], truncated[after - 1] = one.is_terminal, not one.is_terminal
        step, frame = after, frame + frames
    return Block(
        {
            "observation": observation,
            "action": action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            **more,
        },
        np.array([piece.steps for piece in pieces], np.int64),
        np.array([piece.trajectory.episode for piece in pieces], np.int64),
        np.array([piece.trajectory.from_reset for piece in pieces], np.bool_),
        np.array([not piece.trajectory.is_terminal for piece in pieces], np.bool_),
        is_open=not pieces[-1].is_end,
        cut=np.array([piece.is_end and not piece.trajectory.is_terminal for piece in pieces], np.bool_),
    )
