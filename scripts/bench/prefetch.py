"""Batches a second that a consumer gets through with two batches read ahead and with none, on two cores.

python -m scripts.bench.prefetch [--game Pong] [--rows 100000] [--rounds 15] [--json]

The consumer works between batches as long as one takes to be sampled: 128 random steps of a dataset at rest with four
frames stacked. One thread of torch, so that a core is left for reading ahead.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlx.buffer import FrameStack
from rlx.datasets import AtariDQNExperienceReplay
from scripts.bench import peer, timing
from scripts.bench.play import GAMES
from scripts.bench.run import converted_run

BATCH, STACK, BATCHES, WARMUP = 128, 4, 20, 2


def learner(seconds: float) -> Callable[[], None]:
    """Matrix products that take about so long."""
    matrix = torch.rand(256, 256)
    matrix @ matrix
    start = time.perf_counter()
    for _ in range(50):
        matrix @ matrix
    count = max(1, round(seconds / (time.perf_counter() - start) * 50))

    def learn() -> None:
        for _ in range(count):
            matrix @ matrix

    return learn


def main() -> None:
    """Prints milliseconds a batch and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run")
    parser.add_argument("--rounds", type=int, default=15)
    options = timing.parse(parser)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = converted_run(Path(folder), options.game, options.rows, 50)
        timing.report({"target_ratio": 1.5, **measure(run.ours, options.rounds)}, options)


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds a batch, sampled and worked on."""
    none, two = (
        AtariDQNExperienceReplay(
            peer.RUN_ID, BATCH, root=root, download=False, seed=0, transform=FrameStack(STACK), prefetch=depth
        )
        for depth in (0, 2)
    )
    (sampling,) = timing.interleaved(5, lambda _: none.sample(), repeats=BATCHES)
    learn = learner(sorted(sampling)[2])

    def work(replay: AtariDQNExperienceReplay) -> None:
        replay.sample()
        learn()

    subjects = (lambda _: work(two), lambda _: work(none), lambda _: learn())
    taken = timing.interleaved(WARMUP + rounds, *subjects, repeats=BATCHES)
    ahead, plain, learning = [seconds[WARMUP:] for seconds in taken]
    two.shutdown()
    return {
        "none_ms": timing.median_ms(plain),
        "two_threads_ms": timing.median_ms(ahead),
        "consumer_alone_ms": timing.median_ms(learning),
        **timing.times_faster(ahead, plain),
    }


if __name__ == "__main__":
    main()
