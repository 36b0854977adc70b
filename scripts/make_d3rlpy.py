"""Writes tests/golden/d3rlpy: files that d3rlpy's own ReplayBuffer dumped. Run where d3rlpy 2 is installed."""

from pathlib import Path
from typing import Any

import numpy as np
from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer

DIRECTORY = Path(__file__).parents[1] / "tests/golden/d3rlpy"
LENGTHS = (4, 1, 6)


def main() -> None:
    """Writes a file for each kind of observation and action."""
    random = np.random.default_rng(0)
    vector, picture = ((3,), np.float32), ((1, 8, 8), np.uint8)
    kinds: dict[str, tuple[list[tuple[tuple[int, ...], Any]], bool]] = {
        "vectors": ([vector], False),
        "pictures": ([picture], True),
        "tuples": ([vector, picture], False),
    }
    DIRECTORY.mkdir(exist_ok=True)
    for name, (observations, is_discrete) in kinds.items():
        episodes = [_episode(random, length, observations, is_discrete) for length in LENGTHS]
        buffer = ReplayBuffer(InfiniteBuffer(), episodes=episodes)
        with (DIRECTORY / f"{name}.h5").open("w+b") as file:
            buffer.dump(file)


def _episode(
    random: np.random.Generator, length: int, observations: list[tuple[tuple[int, ...], Any]], is_discrete: bool
) -> Episode:
    arrays = [random.integers(0, 256, (length, *shape)).astype(dtype) for shape, dtype in observations]
    actions = random.integers(0, 4, (length, 1)) if is_discrete else random.random((length, 2), np.float32)
    # The second episode is one step long, and d3rlpy keeps it only if it terminated.
    return Episode(
        observations=arrays if len(arrays) > 1 else arrays[0],
        actions=actions,
        rewards=random.random((length, 1), np.float32),
        terminated=length != LENGTHS[-1],
    )


if __name__ == "__main__":
    main()
