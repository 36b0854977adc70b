"""CPU time of batches of observations and actions beside that of all keys, and of stacks padded with zeros beside
repeated frames.

python -m scripts.bench.keys [--steps 20000] [--json]

Over a dataset of frames of Pong: single transitions, stacks of four frames, and slices and contexts of stacks, from a
buffer and a loader, by one thread. Figures are medians of rounds in which both take turns.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch

import rlx
from rlx.buffer import FrameStack, ReplayBuffer, SliceSampler
from rlx.store.step_reader import Padding
from scripts.bench import timing
from scripts.bench.run import converted_run

KEYS = ["observation", "action"]
PADDINGS: tuple[Padding, ...] = ("repeat", "zeros")
ROUNDS, BATCHES = 15, 20


def buffer(data: Any, **options: Any) -> Callable[[], object]:
    """Samples of a buffer."""
    return ReplayBuffer(storage=data, **options).sample


def loader(data: Any, batch_size: int, **options: Any) -> Callable[[], object]:
    """Batches of a loader, epoch after epoch."""
    batches = rlx.loader(data, batch_size, prefetch=0, seed=0, **options)
    endless: Iterator[object] = (batch for _ in cycle([None]) for batch in batches)
    return lambda: next(endless)


CASES: dict[str, Callable[[Any, Any], Callable[[], object]]] = {
    "128 transitions": lambda data, keys: buffer(data, batch_size=128, keys=keys),
    "128 stacks": lambda data, keys: buffer(data, batch_size=128, keys=keys, transform=FrameStack(4)),
    "16 slices of 32 stacks": lambda data, keys: buffer(
        data, batch_size=512, keys=keys, transform=FrameStack(4), sampler=SliceSampler(slice_len=32, seed=0)
    ),
    "loader, 128 stacks": lambda data, keys: loader(data, 128, keys=keys, transform=FrameStack(4)),
    "loader, 16 contexts of 30 stacks": lambda data, keys: loader(
        data, 480, slice_len=30, pad="right", keys=keys, transform=FrameStack(4)
    ),
    "loader, 16 streams of 64": lambda data, keys: loader(data, 1024, slice_len=64, stream=True, carry=True, keys=keys),
}


def timed(draw: Callable[[], object]) -> float:
    """Seconds of CPU time per batch."""
    began = time.process_time()
    for _ in range(BATCHES):
        draw()
    return (time.process_time() - began) / BATCHES


def beside(*draws: Callable[[], object]) -> list[float]:
    """Milliseconds of CPU time per batch of each, in rounds in which they take turns."""
    rounds = [[timed(draw) for draw in draws] for _ in range(ROUNDS)]
    return [1000 * median(times) for times in zip(*rounds, strict=True)]


def main() -> None:
    """Time all cases, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    options = timing.parse(parser)
    torch.set_num_threads(1)
    keys, zeros = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        data = rlx.open(converted_run(Path(folder), "Pong", options.steps, 1, with_peer=False).ours / "Pong/1")
        for name, make in CASES.items():
            every, some = beside(make(data, None), make(data, KEYS))
            keys[name] = {"all_ms": round(every, 2), "some_ms": round(some, 2), "share": round(some / every, 2)}
        for size in (32, 128, 960):
            stacks = [buffer(data, batch_size=size, transform=FrameStack(4, padding=kind)) for kind in PADDINGS]
            repeat, zero = beside(*stacks)
            zeros[f"{size} stacks"] = {
                "repeat_ms": round(repeat, 2),
                "zeros_ms": round(zero, 2),
                "times": round(zero / repeat, 2),
            }
    timing.report({"tables": {"keys": keys, "zeros": zeros}}, options)


if __name__ == "__main__":
    main()
