"""Measures how fast one core reads RL Unplugged: gunzip, checksums, parsing, PNG decoding; prints JSON.

python -m scripts.bench.rl_unplugged [--frames 20000] [--repeats 3] [--game pong]
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from rlx.formats.common.record_files import records
from rlx.formats.common.tf_example import parse_example
from rlx.formats.rl_unplugged import shard_file
from rlx.formats.rl_unplugged.reader import RLUnplugged, decode_frames
from scripts.make_sample import Emulator
from scripts.rlu_writer import tf_example, write_shard

GAMES = {"pong": "Pong", "space_invaders": "SpaceInvaders", "seaquest": "Seaquest", "ms_pacman": "MsPacman"}


def write_frames(path: Path, game: str, frames: int) -> int:
    """Writes one shard of at least that many frames from the emulator; returns how many."""
    emulator, written = Emulator(game, 0), 0
    examples: list[bytes] = []
    while written < frames:
        episode = emulator.play(0, len(examples), None)
        examples.append(tf_example(episode.features()))
        written += len(episode.actions)
    write_shard(path, examples)
    return written


def measure(source: RLUnplugged, frames: int) -> dict[str, float]:
    """Microseconds of processor time a frame, of each stage and of ``Source.blocks`` as a whole."""
    path = source.root / source.files(0)[0]
    times = [time.process_time()]
    examples = list(records(path))
    times.append(time.process_time())
    parsed = [parse_example(example) for example in examples]
    times.append(time.process_time())
    for features in parsed:
        pngs = features["observations"]
        assert isinstance(pngs, list)
        decode_frames(pngs)
    times.append(time.process_time())
    assert sum(block.steps + block.closed for block in source.blocks(0, Counter())) == frames
    times.append(time.process_time())
    stages = ("gunzip_crc_us", "parse_us", "png_us", "blocks_us")
    return {
        name: (stop - start) / frames * 1e6 for name, start, stop in zip(stages, times[:-1], times[1:], strict=True)
    }


def main() -> None:
    """Prints the fastest of some repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--game", choices=GAMES, default="pong")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = RLUnplugged(Path(folder), GAMES[options.game], 1)
        path = Path(folder) / shard_file(source.game, source.run, 0)
        frames = write_frames(path, options.game, options.frames)
        runs = [measure(source, frames) for _ in range(options.repeats)]
        best = {stage: round(min(run[stage] for run in runs), 2) for stage in runs[0]}
        sizes = {
            "game": options.game,
            "frames": frames,
            "bytes_per_frame": round(path.stat().st_size / frames, 1),
        }
        print(json.dumps({**sizes, **best, "frames_per_second": round(1e6 / best["blocks_us"])}))


if __name__ == "__main__":
    main()
