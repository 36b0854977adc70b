"""Steps a second of halving the resolution of a run, with one worker and two, beside TorchRL's ``preprocess``.

python -m scripts.bench.preprocess [--rows 400000] [--rounds 3] [--memory-rows 1000000] [--json]

rlx averages with ``--transform resize:height=42,width=42`` and writes a dataset in the default store: compressed, with
checksums, synced to disk. TorchRL's averages with ``avg_pool2d`` and writes a raw memory map, which it deletes when it
returns. Both have two workers. TorchRL gets the chunk size that it does best with, tried once before, and in a second
comparison its default. Memory is the highest of a process that halves a shard of so many rows alone, as a worker does.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlx.pipeline.options import Options
from rlx.pipeline.preprocess import preprocess
from rlx.pipeline.recipe import Recipe
from rlx.progress import Silent
from rlx.transform.images import Resize
from scripts.bench import peer, timing
from scripts.bench.run import converted_run

GAME = "Pong"
CHUNKS = (256, 1024, 4096, 16384)
DEFAULT_STEPS = 2000
_PEAK = "import re; print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"


def halve(source: Path, destination: Path, workers: int) -> None:
    """Halves a run with rlx, from the start."""
    options = Options(jobs=workers, overwrite=destination.exists())
    preprocess(source, destination, Recipe([Resize(42, 42)]), options, progress=Silent())


def seconds_of(replay: Any, folder: Path, chunk: int | None, steps: int) -> float:
    """How long TorchRL takes."""
    start = time.perf_counter()
    peer.preprocess(replay, folder / "theirs", 2, chunk, steps)
    return time.perf_counter() - start


def measure(folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    """Speeds and ratios."""
    run = converted_run(folder, GAME, rows, 1)
    source = run.ours / peer.RUN_ID
    subjects = [lambda _: halve(source, folder / "one", 1), lambda _: halve(source, folder / "two", 2)]
    result: dict[str, Any] = {}
    replay, steps = None, rows - 1
    if run.theirs is not None:
        replay = peer.open_replay(run.theirs, 128)
        tried = {chunk: seconds_of(replay, folder, chunk, steps // 4) for chunk in CHUNKS}
        best = min(tried, key=lambda chunk: tried[chunk])
        result["torchrl_best_chunk"] = best
        subjects.append(lambda _: peer.preprocess(replay, folder / "theirs", 2, best, steps))
    one, two, *theirs = timing.interleaved(rounds, *subjects)
    their_best = theirs[0] if theirs else None
    result["rlx_1_steps_per_s"] = rate(steps, one)
    result["rlx_2_steps_per_s"] = rate(steps, two)
    result["scaling_1_to_2"] = timing.times_faster(two, one)["ratio"]
    result["torchrl_best_steps_per_s"] = rate(steps, their_best)
    result.update({f"best_chunk_{name}": value for name, value in timing.times_faster(two, their_best).items()})
    default = None if replay is None else seconds_of(replay, folder, None, DEFAULT_STEPS) / DEFAULT_STEPS
    result["torchrl_default_steps_per_s"] = None if default is None else round(1 / default)
    result["default_ratio"] = None if default is None else round(default * steps / statistics.median(two), 1)
    return result


def rate(steps: int, seconds: list[float] | None) -> int | None:
    """Steps a second, at the median of the rounds."""
    return None if seconds is None else round(steps / statistics.median(seconds))


def peak_mb(folder: Path, rows: int) -> int:
    """Peak memory of a process that halves a single shard of so many rows, and has imported nothing else."""
    source = converted_run(folder, GAME, rows, 1, with_peer=False).ours / peer.RUN_ID
    program = (
        "from pathlib import Path; from scripts.bench.preprocess import halve; "
        f"halve(Path({str(source)!r}), Path({str(folder / 'halved')!r}), 1); {_PEAK}"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return int(found.stdout.splitlines()[-1])


def main() -> None:
    """Prints speeds, ratios and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="rows of the run, all in one shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--memory-rows", type=int, default=1_000_000, help="rows of the shard that memory is measured on"
    )
    options = timing.parse(parser)
    result: dict[str, Any] = {
        "targets": {"best_chunk_ratio": 4, "default_ratio": 50, "scaling_1_to_2": 1.7, "peak_mb": 500},
        "game": GAME,
    }
    with tempfile.TemporaryDirectory() as folder:
        result.update(measure(Path(folder), options.rows, options.rounds))
    with tempfile.TemporaryDirectory() as folder:
        result["peak_mb"] = peak_mb(Path(folder), options.memory_rows)
    timing.report(result, options)


if __name__ == "__main__":
    main()
