"""Write throughput of ``CompressedStorage`` over that of ``LazyTensorStorage``: ``add``, and ``extend`` of 32 to 1,000.

python -m scripts.bench.compressed_writes [--game Pong] [--rounds 9] [--level 6] [--json]

Real steps, with ``next``, into full buffers of 20,000, in turns: microseconds a step, the least of the rounds, by CPU
time and by the clock. ``whole`` is the buffer's call, ``storage`` the part of it that writes steps to memory: without
checks and the index of trajectories, which cost the same with both. ``read_us`` is 128 random steps, ``bytes`` a
compressed frame after the dictionary.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rlx.buffer import CompressedStorage, LazyTensorStorage, ReplayBuffer
from rlx.buffer.storage.ring import RingStorage
from scripts.bench import timing
from scripts.bench.memory import steps_of
from scripts.bench.play import GAMES, play

STEPS, COUNTS, STEPS_A_TURN = 20_000, (1, 32, 100, 1000), 3_000
FLOOR, GOAL = 0.6, 0.8
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"cpu": time.thread_time, "wall": time.perf_counter}


class Subject:
    """A full buffer over a storage, and the time that its last turn took, by clock."""

    def __init__(self, storage: RingStorage, steps: TensorDictBase) -> None:
        self.storage, self.steps = storage, steps
        self.buffer = ReplayBuffer(storage=storage, batch_size=128)
        for first in range(0, STEPS, 1000):
            self.buffer.extend(steps[first : first + 1000])
        self._write = storage._append
        self._in_storage = dict.fromkeys(CLOCKS, 0.0)
        storage._append = self._timed  # type: ignore[assignment,method-assign]

    def _timed(self, *args: Any) -> None:
        started = {name: clock() for name, clock in CLOCKS.items()}
        self._write(*args)
        for name, clock in CLOCKS.items():
            self._in_storage[name] += clock() - started[name]

    def turn(self, number: int, count: int) -> dict[str, float]:
        """Microseconds a step of some writes of this many steps."""
        writes = max(3, STEPS_A_TURN // (count * 4 if count < 32 else count))
        first = [(number * writes + i) * count % (STEPS - count) for i in range(writes)]
        written = [self.steps[at] if count == 1 else self.steps[at : at + count] for at in first]
        write = self.buffer.add if count == 1 else self.buffer.extend
        self._in_storage = dict.fromkeys(CLOCKS, 0.0)
        started = {name: clock() for name, clock in CLOCKS.items()}
        for steps in written:
            write(steps)
        whole = {name: clock() - started[name] for name, clock in CLOCKS.items()}
        found = {f"whole_{name}": seconds for name, seconds in whole.items()}
        found |= {f"storage_{name}": seconds for name, seconds in self._in_storage.items()}
        return {name: seconds / writes / count * 1e6 for name, seconds in found.items()}


def writes(subjects: Sequence[Subject], count: int, rounds: int) -> dict[str, Any]:
    """The least microseconds a step of both, and the second's over the first's."""
    turns = [[subject.turn(number, count) for subject in subjects] for number in range(rounds)]
    result = {}
    for name in turns[0][0]:
        compressed, tensor = (min(both[i][name] for both in turns) for i in range(2))
        result[name] = {
            "ratio": round(tensor / compressed, 2),
            "compressed_us": round(compressed, 2),
            "tensor_us": round(tensor, 2),
        }
    return result


def main() -> None:
    """Prints times, ratios, the size of frames and the time of reads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--level", type=int, default=6, help="zstd level")
    options = timing.parse(parser)
    torch.set_num_threads(1)
    steps = steps_of(play(options.game, STEPS + 2000), STEPS)
    compressed = CompressedStorage(STEPS, level=options.level)
    subjects = [Subject(compressed, steps), Subject(LazyTensorStorage(STEPS), steps)]
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, STEPS, 128) for _ in range(20)]
    reads = timing.interleaved(
        options.rounds, *(lambda i, s=s: s.storage.get(rows[i % 20]) for s in subjects), repeats=20
    )
    sizes = compressed._refs["next", "observation"]["size"][-8_000:]
    result = {
        "game": options.game,
        "level": options.level,
        "target_ratios": {"floor": FLOOR, "goal": GOAL},
        **{"add" if count == 1 else f"extend_{count}": writes(subjects, count, options.rounds) for count in COUNTS},
        "read_us": {name: round(min(taken) * 1e6) for name, taken in zip(("compressed", "tensor"), reads, strict=True)},
        "bytes": round(float(sizes.mean()), 1),
    }
    timing.report(result, options)


if __name__ == "__main__":
    main()
