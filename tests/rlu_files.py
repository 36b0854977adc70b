"""Runs in RL Unplugged's layout whose every value tells where it belongs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlx.formats.rl_unplugged import shard_file
from scripts.rlu_writer import Episode, tf_example, write_shard


def make_episode(steps: int, *, checkpoint: int = 0, number: int = 0, terminated: bool = True) -> Episode:
    """An episode of that many steps; frames begin with the checkpoint, the number, the step (two bytes)."""
    rows = np.arange(steps + 1)
    observations = np.zeros((steps + 1, 84, 84), np.uint8)
    observations[:, 0, :4] = np.stack([rows * 0 + checkpoint, rows * 0 + number, rows >> 8, rows & 255], axis=1)
    observations[:, 40:44, 40:44] = (rows * 37 % 256)[:, None, None]
    rewards = ((rows + number) % 3 - 1).astype(np.float32)
    return Episode(checkpoint, number, observations, (rows + number) % 6, rewards, terminated)


def write_run(
    root: Path, game: str, run: int, shards: Mapping[int, Sequence[int]], *, packed: bool = True
) -> dict[int, list[Episode]]:
    """Writes shards of episodes of that many steps, the last one of each cut; returns what was written."""
    written: dict[int, list[Episode]] = {}
    for shard, lengths in shards.items():
        written[shard] = [
            make_episode(steps, checkpoint=shard, number=number, terminated=number < len(lengths) - 1)
            for number, steps in enumerate(lengths)
        ]
        examples = (tf_example(episode.features(), packed=packed) for episode in written[shard])
        write_shard(root / shard_file(game, run, shard), examples)
    return written
