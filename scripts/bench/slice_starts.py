"""Choosing slices out of rings of 10^4 to 10^8 steps: milliseconds a batch, and how that grows with what is stored."""

import statistics
import time
from argparse import ArgumentParser
from typing import Any

import numpy as np
from tensordict import NestedKey

from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.protocol import Rows, Storage, TrajectoryIndex
from rlx.buffer.sampler.slices import SliceSampler, SliceSamplerWithoutReplacement
from rlx.buffer.sampler.steps import RandomSampler, SamplerWithoutReplacement, SeededSampler
from scripts.bench.timing import parse, report

CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


class Indexed(Storage):
    """As much of a storage as samplers ask of it: an index, and no flags."""

    lanes = 1

    def __init__(self, capacity: int, index: RingTrajectoryIndex) -> None:
        self.max_size = capacity
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def row_at(self, ordinals: Rows) -> Rows:
        """[n] rows."""
        return self._index.row_at(ordinals)

    def has(self, key: NestedKey) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def index(self, traj_key: Any = None, end_key: Any = None) -> TrajectoryIndex:  # noqa: ARG002
        """The index."""
        return self._index


def full(capacity: int) -> Storage:
    """A ring that was written one and a half times, in episodes of 200 to 1,800 steps."""
    lengths = np.random.default_rng(0).integers(200, 1800, size=max(1, capacity * 3 // 2000))
    index = RingTrajectoryIndex(capacity)
    for part in np.array_split(lengths, max(1, len(lengths) // 4096)):
        index.write_runs(np.zeros(len(part), np.int64), part, None, np.ones(len(part), bool))
    return Indexed(capacity, index)  # type: ignore[abstract]  # samplers neither write nor read steps


def main() -> None:
    """Times, prints."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--slice-len", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=500)
    options = parse(parser)
    storages = [full(capacity) for capacity in CAPACITIES]
    samplers: dict[str, SeededSampler] = {
        "random": RandomSampler(seed=0),
        "without_replacement": SamplerWithoutReplacement(seed=0),
        "slices": SliceSampler(slice_len=options.slice_len, seed=0),
        "slices_by_trajectory": SliceSampler(slice_len=options.slice_len, weighting="trajectory", seed=0),
        "slices_without_replacement": SliceSamplerWithoutReplacement(slice_len=options.slice_len, seed=0),
    }
    result: dict[str, Any] = {}
    for name, sampler in samplers.items():
        by_capacity = {
            capacity: _seconds(sampler.shard(0, 1), storage, options.batch_size, options.rounds)
            for capacity, storage in zip(CAPACITIES, storages, strict=True)
        }
        medians = {f"{capacity}": statistics.median(taken) * 1e3 for capacity, taken in by_capacity.items()}
        growth = max(medians.values()) / min(medians.values())
        result[name] = {key: round(value, 4) for key, value in (medians | {"growth": growth}).items()}
    report({"batch_size": options.batch_size, "slice_len": options.slice_len, "ms": result}, options)


def _seconds(sampler: Any, storage: Storage, batch_size: int, rounds: int) -> list[float]:
    sampler.sample(storage, batch_size)
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        sampler.sample(storage, batch_size)
        taken.append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    main()
