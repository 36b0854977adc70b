"""Steps a second of halving the resolution of a run, with one worker and two, beside TorchRL's ``preprocess``.

python -m scripts.bench.preprocess [--rows 1000000] [--peer-rows 200000] [--rounds 3] [--json]

rlx averages with ``--transform resize:height=42,width=42`` and writes a dataset in the default store: compressed, with
checksums, synced to disk. TorchRL's averages with ``avg_pool2d`` and writes a raw memory map, which it deletes when it
returns. Both have two workers. TorchRL gets a run of fewer rows, for its files are raw; the chunk size that it does
best with, tried once before; and it forks. Then its defaults: nothing but the function and how many steps, for with
chunks as large as half of all steps it cannot have many. Then single steps, as its documentation wants functions to
take. Memory is the highest of a process that halves the whole shard alone, as a worker does.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlx
from rlx.transform.images import Resize
from scripts.bench import peer, timing
from scripts.bench.peak import peak_mb
from scripts.bench.run import converted_run

GAME = "Pong"
CHUNKS = (256, 1024, 4096, 16384)
DEFAULT_STEPS = 20_000
SINGLE_STEPS = 1000


def halve(source: Path, destination: Path, workers: int) -> None:
    """Halves a run with rlx, from the start."""
    rlx.preprocess(source, destination, transform=Resize(42, 42), num_workers=workers, overwrite=destination.exists())


def seconds_of(replay: Any, folder: Path, steps: int, **how: Any) -> float:
    """How long TorchRL takes."""
    start = time.perf_counter()
    peer.preprocess(replay, folder / "made", steps, **how)
    return time.perf_counter() - start


def measure(folder: Path, rows: int, peer_rows: int, rounds: int) -> dict[str, Any]:
    """Speeds, ratios and memory."""
    source = converted_run(folder / "ours", GAME, rows, 1, with_peer=False).ours / peer.RUN_ID
    subjects: list[Callable[[int], object]] = [
        lambda _: halve(source, folder / "one", 1),
        lambda _: halve(source, folder / "two", 2),
    ]
    steps, their_steps = rows - 1, peer_rows - 1
    theirs_at = converted_run(folder / "theirs", GAME, peer_rows, 1).theirs
    replay = None if theirs_at is None else peer.open_replay(theirs_at, 128)
    best: dict[str, Any] = {"num_workers": 2, "mp_start_method": "fork"}
    if replay is not None:
        tried = {chunk: seconds_of(replay, folder, their_steps // 4, chunksize=chunk, **best) for chunk in CHUNKS}
        best["chunksize"] = min(tried, key=lambda chunk: tried[chunk])
        subjects.append(lambda _: peer.preprocess(replay, folder / "made", their_steps, **best))
    one, two, *theirs = timing.interleaved(rounds, *subjects)
    # For as many steps as rlx had.
    their_best = [seconds * steps / their_steps for seconds in theirs[0]] if theirs else None
    result: dict[str, Any] = {
        "rlx_1_steps_per_s": rate(steps, one),
        "rlx_2_steps_per_s": rate(steps, two),
        "scaling_1_to_2": timing.times_faster(two, one)["ratio"],
        "best_chunk": {
            "chunk": best.get("chunksize"),
            "torchrl_steps_per_s": rate(steps, their_best),
            **timing.times_faster(two, their_best),
        },
    }
    for name, count, how in (("default", DEFAULT_STEPS, {}), ("single_steps", SINGLE_STEPS, {"chunksize": 0})):
        taken = None if replay is None else seconds_of(replay, folder, count, **how)
        their_rate = rate(count, None if taken is None else [taken])
        ratio = None if their_rate is None else round(rate(steps, two) / their_rate, 1)
        result[name] = {"torchrl_steps_per_s": their_rate, "ratio": ratio}
    return {**result, "peak_mb": peak_mb(_halving(source, folder / "alone"))}


def rate(steps: int, seconds: list[float] | None) -> Any:
    """Steps a second, at the median of the rounds; none of nothing."""
    return None if seconds is None else round(steps / statistics.median(seconds))


def _halving(source: Path, destination: Path) -> str:
    """A program that halves a run."""
    return (
        "from pathlib import Path; from scripts.bench.preprocess import halve; "
        f"halve(Path({str(source)!r}), Path({str(destination)!r}), 1)"
    )


def main() -> None:
    """Prints speeds, ratios and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of rlx's run, all in one shard")
    parser.add_argument("--peer-rows", type=int, default=200_000, help="rows of TorchRL's")
    parser.add_argument("--rounds", type=int, default=3)
    options = timing.parse(parser)
    result: dict[str, Any] = {
        "targets": {"best_chunk_ratio": 4, "default_ratio": 50, "scaling_1_to_2": 1.7, "peak_mb": 500},
        "game": GAME,
    }
    with tempfile.TemporaryDirectory() as folder:
        result.update(measure(Path(folder), options.rows, options.peer_rows, options.rounds))
    timing.report(result, options)


if __name__ == "__main__":
    main()
