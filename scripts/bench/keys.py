"""CPU time of batches of observations and actions only, beside that of all keys.

python -m scripts.bench.keys [RUN]

Over a dataset of frames, by default the sample run: single transitions, stacks of four frames, and slices and contexts
of stacks, from a buffer and a loader, by one thread. Figures are medians of
rounds in which both take turns.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import torch

import rlx
from rlx.buffer import FrameStack, ReplayBuffer, SliceSampler

KEYS = ["observation", "action"]
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


def main() -> None:
    """Print milliseconds of CPU time per batch, and the share of time that batches of some keys take."""
    torch.set_num_threads(1)
    data = rlx.open(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "sample_run")
    for name, make in CASES.items():
        draws = {"all": make(data, None), "some": make(data, KEYS)}
        found: dict[str, list[float]] = {kind: [] for kind in draws}
        for _ in range(ROUNDS):
            for kind, draw in draws.items():
                found[kind].append(timed(draw))
        every, some = (1000 * median(found[kind]) for kind in ("all", "some"))
        print(json.dumps({"case": name, "all_ms": round(every, 2), "some_ms": round(some, 2), "share": some / every}))


if __name__ == "__main__":
    main()
