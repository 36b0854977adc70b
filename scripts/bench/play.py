"""Frames of real games, played at random in the emulator and prepared as the DQN Replay Dataset prepares them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from rlx.block import Block, single
from rlx.schema import Schema

GAMES = ("Pong", "Breakout", "Seaquest", "SpaceInvaders", "MsPacman")
_ROMS = {"SpaceInvaders": "space_invaders", "MsPacman": "ms_pacman"}
_ENVS = 8


@dataclass(frozen=True, slots=True)
class Play:
    """Episodes of one game one after another.

    Args:
        game: one of ``GAMES``.
        frames: [n, 84, 84] of all episodes.
        counts: frames of each episode, its last observation among them; at least 2.
    """

    game: str
    frames: NDArray[np.uint8]
    counts: Sequence[int]

    @property
    def id(self) -> str:
        """Name of the run."""
        return f"{self.game}/1"

    @property
    def schema(self) -> Schema:
        """A frame, an action, a reward."""
        return Schema.of(observation=("uint8", (84, 84)), action=("int64", ()))

    @property
    def notes(self) -> Mapping[str, Any]:
        """None."""
        return {}

    def shards(self) -> Sequence[int]:
        """One."""
        return (0,)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (it lies in memory)
        """None."""
        return ()

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:  # noqa: ARG002  (nothing is)
        """A block an episode."""
        first = 0
        for number, count in enumerate(self.counts):
            never = np.zeros(count - 1, bool)
            ends = never.copy()
            ends[-1] = True
            data: dict[str, NDArray[Any]] = {
                "observation": self.frames[first : first + count],
                "action": np.zeros(count - 1, np.int64),
                "reward": np.zeros(count - 1, np.float32),
                "terminated": ends,
                "truncated": never,
            }
            yield single(data, episode=number)
            first += count


def play(game: str, frames: int, seed: int = 0) -> Play:
    """About that many frames of a game, sticky actions and all, from eight at once; their last episodes are cut."""
    env = AtariVectorEnv(
        _ROMS.get(game, game.lower()),
        num_envs=_ENVS,
        img_height=84,
        img_width=84,
        grayscale=True,
        stack_num=1,
        frameskip=4,
        repeat_action_probability=0.25,
        noop_max=0,
        maxpool=True,
        use_fire_reset=False,
        episodic_life=False,
        reward_clipping=False,
        max_num_frames_per_episode=108_000,
        full_action_space=False,
    )
    steps = -(-frames // _ENVS)
    actions = cast(Discrete, env.single_action_space).n
    policy = np.random.default_rng(seed)
    seen = np.empty((_ENVS, steps, 84, 84), np.uint8)
    done = np.zeros((_ENVS, steps), bool)  # whether the frame is the last of its episode
    observation, _ = env.reset(seed=seed)
    for step in range(steps):
        seen[:, step] = observation[:, 0]
        observation, _, terminated, truncated, _ = env.step(policy.integers(0, actions, _ENVS))
        if step + 1 < steps:
            done[:, step + 1] = terminated | truncated
    env.close()
    done[:, -1] = True
    last = np.flatnonzero(done.reshape(-1))
    counts = np.diff(last, prepend=-1)
    return _without_single_frames(Play(game, seen.reshape(-1, 84, 84), counts.tolist()))


def _without_single_frames(played: Play) -> Play:
    """Without the episodes of one frame, which have no step: those that were cut as they began."""
    counts = np.array(played.counts)
    frames = played.frames[np.repeat(counts > 1, counts)]
    return Play(played.game, frames, counts[counts > 1].tolist())
