"""Steps a second and peak memory of reading a Dopamine run, on files of real frames, repeated.

    python scripts/bench/dopamine_source.py FRAMES_NPY [--rows 1000000] [--files 2]

FRAMES_NPY is an array of uint8 [n, 84, 84]; without it frames are recorded from the emulator. Prints JSON.
"""

import argparse
import gzip
import json
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.dopamine.reader import Dopamine

EPISODE = 1000
PADDING = 3


def record_frames(count: int) -> NDArray[np.uint8]:
    """Frames of random play, as Dopamine prepares them."""
    import ale_py  # noqa: PLC0415
    import gymnasium  # noqa: PLC0415

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Seaquest-v5", frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env, noop_max=0)
    env.action_space.seed(0)
    frames = np.empty((count, 84, 84), np.uint8)
    frames[0], _ = env.reset(seed=0)
    for row in range(1, count):
        frames[row], _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            frames[row], _ = env.reset()
    return frames


def write_run(folder: Path, frames: NDArray[np.uint8], capacity: int, files: int) -> None:
    """A run of ``files`` laps with an episode of 1,000 steps after another."""
    count = capacity * files - 1
    row_in_episode = np.arange(count + 1) % (EPISODE + PADDING)
    for suffix in range(files):
        rows = np.arange(capacity) + suffix * capacity
        rows[-1] -= capacity  # the oldest row; in the first file it wraps to one that is never read
        place = row_in_episode[rows]
        save(
            folder / f"$store$_action_ckpt.{suffix}.gz",
            np.where(place < PADDING, 0, place % 18).astype(np.int32),
        )
        save(folder / f"$store$_reward_ckpt.{suffix}.gz", (place % 50 == 49).astype(np.float32))
        save(folder / f"$store$_terminal_ckpt.{suffix}.gz", (place == EPISODE + PADDING - 1).astype(np.uint8))
        save(folder / f"add_count_ckpt.{suffix}.gz", np.array((suffix + 1) * capacity - 1))
        save(folder / f"invalid_range_ckpt.{suffix}.gz", (capacity - 2 + np.arange(5)) % capacity)
        with gzip.open(folder / f"$store$_observation_ckpt.{suffix}.gz", "wb", compresslevel=6) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (capacity, 84, 84)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, capacity, 1000):
                part = rows[start : start + 1000]
                block = frames[part % len(frames)]
                block[row_in_episode[part] < PADDING] = 0
                file.write(block.tobytes())


def save(path: Path, array: NDArray[Any]) -> None:
    """One small file."""
    with gzip.open(path, "wb") as file:
        np.save(file, array)


def main() -> None:
    """Makes the files, reads their first shard, prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames", nargs="?", type=Path)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the ring; the public data have 1,000,000")
    parser.add_argument("--files", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        frames = np.load(options.frames, mmap_mode="r") if options.frames else record_frames(4000)
        write_run(Path(name), frames, options.rows, options.files)
        packed = (Path(name) / "$store$_observation_ckpt.0.gz").stat().st_size
        del frames
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        source = Dopamine(Path(name), ".", "Seaquest/1")
        shards = source.shards()
        planned = time.perf_counter()
        steps = sum(block.steps for block in source.blocks(shards[0], Counter()))
        read = time.perf_counter()
    result = {
        "rows_per_file": options.rows,
        "packed_bytes_per_frame": round(packed / options.rows, 1),
        "plan_s_per_file": round((planned - start) / len(shards), 4),
        "steps": steps,
        "steps_per_s": round(steps / (read - planned)),
        "rss_before_mb": round(before / 1024),
        "rss_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
