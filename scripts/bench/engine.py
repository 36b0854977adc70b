"""Frames a second of conversion by two workers: processes of this machine, and a Ray cluster on it.

python -m scripts.bench.engine [--game Pong] [--shards 10] [--frames 20000] [--rounds 3] [--json]

Whole conversions of a run in RL Unplugged's layout are timed, with the start of the worker processes. Ray is measured
with a cluster that runs already, in turns with processes of this machine, and then with one that starts for the
conversion and ends with it.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import rlx
from rlx.engine.ray_cluster import ray_cluster
from rlx.verbs.arguments import EngineName
from scripts.bench import timing
from scripts.bench.convert import rate, write_unplugged
from scripts.bench.play import GAMES, play

WORKERS = 2


def anew(source: Path, destination: Path, engine: EngineName) -> None:
    """Converts a run, from the start."""
    rlx.convert(source, destination, jobs=WORKERS, overwrite=destination.exists(), engine=engine)


def measure(folder: Path, frames: int, rounds: int) -> dict[str, Any]:
    """Speeds on the run in a folder, and ratios."""

    def by_processes(_: int) -> None:
        anew(folder / "run", folder / "local", "local")

    def by_ray(_: int) -> None:
        anew(folder / "run", folder / "ray", "ray")

    with ray_cluster(cpus=WORKERS):
        timing.interleaved(1, by_processes, by_ray)  # whoever uses a cluster that runs finds warm workers
        local, ray = timing.interleaved(rounds, by_processes, by_ray)
    local_again, from_nothing = timing.interleaved(rounds, by_processes, by_ray)
    return {
        "frames": frames,
        "local_frames_per_s": rate(frames, local + local_again),
        "ray_frames_per_s": rate(frames, ray),
        "ray_with_start_frames_per_s": rate(frames, from_nothing),
        **timing.times_faster(ray, local),
        "ratio_with_start": timing.times_faster(from_nothing, local_again)["ratio"],
    }


def main() -> None:
    """Prints speeds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--shards", type=int, default=10)
    parser.add_argument("--frames", type=int, default=20_000, help="frames of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    options = timing.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        frames = write_unplugged(Path(folder) / "run", play(options.game, options.frames), 1, options.shards)
        result = measure(Path(folder), frames, options.rounds)
    timing.report({"target_ratio": 0.7, **result}, options)


if __name__ == "__main__":
    main()
