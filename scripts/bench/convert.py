"""Frames a second of conversion: Dopamine with one worker and two, beside TorchRL's; RL Unplugged with one and two.

python -m scripts.bench.convert [--rows 200000] [--rounds 3] [--full] [--json]

Whole conversions are timed: reading, encoding, checksums, fsync, the start of the worker processes. ``--full`` also
measures the peak memory of a conversion of one file of 1,000,000 frames (7 GB unpacked): a few minutes, 1 GB of disk.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rlx
from rlx.formats.rl_unplugged import shard_file
from scripts.bench import peer, timing
from scripts.bench.dopamine_source import write_run
from scripts.bench.peak import peak_mb
from scripts.bench.play import GAMES, Play, play
from scripts.rlu_writer import Episode, tf_example, write_shard

FILES = 2


def anew(source: Path, destination: Path, jobs: int, shards: list[int] | None = None) -> None:
    """Converts a directory with rlx, from the start."""
    rlx.convert(source, destination, jobs=jobs, overwrite=destination.exists(), shards=shards)


def peer_anew(logs: Path, destination: Path) -> None:
    """Converts a ``replay_logs`` with TorchRL and two processes, from the start."""
    shutil.rmtree(destination, ignore_errors=True)
    peer.convert(logs, destination, 2)


def write_unplugged(root: Path, played: Play, copies: int, files: int = FILES) -> int:
    """Files in RL Unplugged's layout, of a game's episodes over and over; returns how many frames they hold."""
    examples, first = [], 0
    for number, count in enumerate(played.counts):
        frames = played.frames[first : first + count]
        zeros = np.zeros(count, np.float32)
        episode = Episode(0, number, frames, np.zeros(count, np.int64), zeros, terminated=True)
        examples.append(tf_example(episode.features()))
        first += count
    for shard in range(files):
        write_shard(root / shard_file(played.game, 1, shard), examples * copies)
    return first * copies * files


class ProcessTimer:
    """Converts in this process and keeps the processor's seconds of every call: other work hardly changes them."""

    def __init__(self, source: Path, destination: Path) -> None:
        self._source = source
        self._destination = destination
        self.seconds: list[float] = []

    def __call__(self, _: int) -> None:
        """Converts once."""
        start = time.process_time()
        anew(self._source, self._destination, 1)
        self.seconds.append(time.process_time() - start)


def rate(frames: int, seconds: list[float] | None) -> int | None:
    """Frames a second, at the median of the rounds."""
    return None if seconds is None else round(frames / statistics.median(seconds))


def measure_dopamine(folder: Path, frames: NDArray[np.uint8], rows: int, rounds: int) -> dict[str, Any]:
    """Speeds on two files of that many rows each, and ratios."""
    logs = folder / peer.RUN_ID / "replay_logs"
    logs.mkdir(parents=True)
    write_run(logs, frames, rows, FILES)
    in_process = ProcessTimer(logs, folder / "one")
    subjects: list[Callable[[int], object]] = [
        in_process,
        lambda _: anew(logs, folder / "two", 2),
        lambda _: anew(logs, folder / "file", 1, [0]),
        lambda _: anew(logs, folder / "file_two", 2, [0]),
    ]
    if peer.is_installed():
        subjects.append(lambda _: peer_anew(logs, folder / "torchrl"))
    one, two, file, file_two, *theirs = timing.interleaved(rounds, *subjects)
    their_two = theirs[0] if theirs else None
    count = rows * FILES
    return {
        "rlx_frames_per_core_s": rate(count, in_process.seconds),
        "rlx_1_frames_per_s": rate(count, one),
        "rlx_2_frames_per_s": rate(count, two),
        "torchrl_2_frames_per_s": rate(count, their_two),
        "scaling_1_to_2": timing.times_faster(two, one)["ratio"],
        "scaling_1_to_2_of_one_file": timing.times_faster(file_two, file)["ratio"],
        **timing.times_faster(two, their_two),
    }


def measure_unplugged(folder: Path, played: Play, copies: int, rounds: int) -> dict[str, Any]:
    """Speeds on two files; nobody else reads them without TensorFlow."""
    count = write_unplugged(folder, played, copies)
    in_process = ProcessTimer(folder, folder / "one")
    one, two = timing.interleaved(rounds, in_process, lambda _: anew(folder, folder / "two", 2))
    return {
        "rlx_frames_per_core_s": rate(count, in_process.seconds),
        "rlx_1_frames_per_s": rate(count, one),
        "rlx_2_frames_per_s": rate(count, two),
        "scaling_1_to_2": timing.times_faster(two, one)["ratio"],
    }


def measure_memory(folder: Path, frames: NDArray[np.uint8], rows: int) -> dict[str, Any]:
    """Peak memory of a process that converts a single file of that many rows."""
    logs = folder / "big" / peer.RUN_ID / "replay_logs"
    logs.mkdir(parents=True)
    write_run(logs, frames, rows, 1)
    # In a process of its own that has imported nothing else, as a worker is.
    program = f"import rlx; rlx.convert({str(logs)!r}, {str(folder / 'rlx')!r}, jobs=1)"
    return {"rows": rows, "peak_mb": peak_mb(program), "before_mb": peak_mb()}


def main() -> None:
    """Prints speeds, ratios and, if asked, memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", choices=GAMES, nargs="+", default=["Pong", "Seaquest", "SpaceInvaders"])
    parser.add_argument("--rows", type=int, default=200_000, help="rows of each of the two Dopamine files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="measure memory on a file of 1,000,000 frames, too")
    options = timing.parse(parser)
    result: dict[str, Any] = {
        "targets": {
            "dopamine_1": 20_000,
            "ratio": 1,
            "unplugged_1": {"Pong": 25_000, "Seaquest": 18_000},
            "peak_mb": 500,
        },
        "dopamine": {},
        "unplugged": {},
    }
    for game in options.games:
        played = play(game, 20_000)
        with tempfile.TemporaryDirectory() as folder:
            result["dopamine"][game] = measure_dopamine(Path(folder), played.frames, options.rows, options.rounds)
        with tempfile.TemporaryDirectory() as folder:
            result["unplugged"][game] = measure_unplugged(Path(folder), played, 2, options.rounds)
    if options.full:
        with tempfile.TemporaryDirectory() as folder:
            result["memory"] = measure_memory(Path(folder), played.frames, 1_000_000)
    timing.report(result, options)


if __name__ == "__main__":
    main()
