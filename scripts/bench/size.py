"""Bytes a frame of a dataset at rest, against raw frames, on real frames of five games.

python -m scripts.bench.size [--frames 20000] [--json]
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlx.progress import Silent
from rlx.store.dataset_writer import claimed
from rlx.store.dictionary import REFERENCE_ROWS
from rlx.store.shard_file import CRC_BYTES, INDEX_ENTRY_BYTES
from rlx.verbs.arguments import Options
from rlx.verbs.ingest import Ingest
from scripts.bench import timing
from scripts.bench.play import GAMES, Play, play

RAW_BYTES = 84 * 84


def measure(played: Play, path: Path) -> dict[str, Any]:
    """Writes a dataset of these episodes and says what it takes on disk."""
    with claimed(path) as claim:
        Ingest(played, None, Options(jobs=1), Silent()).run(claim)
    frames = len(played.frames)
    # The frames that the dictionary was not chosen from: a run has millions of them.
    later = _frame_bytes(path, frames)[REFERENCE_ROWS:]
    in_all = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    observations = sum(file.stat().st_size for file in path.glob("shards/*/observation/**/*") if file.is_file())
    return {
        "frames": frames,
        "dataset_bytes_per_frame": round(in_all / frames, 1),
        "observation_bytes_per_frame": round(observations / frames, 1),
        "ratio": round(RAW_BYTES * frames / in_all, 1),
        "ratio_of_frames_unseen_by_dictionary": round(
            RAW_BYTES * len(later) / (sum(later) + INDEX_ENTRY_BYTES * len(later)), 1
        ),
    }


def _frame_bytes(path: Path, frames: int) -> list[int]:
    """Compressed bytes of every frame, from the index at the end of the shard's file."""
    (file,) = path.glob("shards/*/observation/c/*/*/*")
    index = np.frombuffer(file.read_bytes()[-INDEX_ENTRY_BYTES * frames - CRC_BYTES : -CRC_BYTES], "<u8")
    sizes: list[int] = index[1::2].tolist()
    return sizes


def main() -> None:
    """Prints sizes and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=20_000, help="frames a game")
    options = timing.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        games = {game: measure(play(game, options.frames), Path(folder) / game) for game in GAMES}
    sizes = [game["dataset_bytes_per_frame"] for game in games.values()]
    result = {
        "raw_bytes_per_frame": RAW_BYTES,
        "games": games,
        "ratio": round(RAW_BYTES / statistics.mean(sizes), 1),
        "mean_of_ratios": round(statistics.mean(game["ratio"] for game in games.values()), 1),
        "target_ratio": 52,
    }
    timing.report(result, options)


if __name__ == "__main__":
    main()
