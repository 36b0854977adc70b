"""Prioritized sampling on one core: milliseconds to sample a batch and to update its priorities, by capacity."""

import time
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from scripts.bench.timing import median_ms, parse, report

CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)


@dataclass
class Full:
    """As much of a full storage as the sampler asks of it."""

    max_size: int

    def __len__(self) -> int:
        return self.max_size

    def row_at(self, ordinals: Rows) -> Rows:
        """[n] rows."""
        return ordinals


def seconds(capacity: int, batch_size: int, rounds: int) -> tuple[list[float], list[float]]:
    """What sampling takes, and what updating takes, in every round."""
    storage = cast(Storage, Full(capacity))
    sampler = PrioritizedSampler(capacity, alpha=0.6, beta=0.4, seed=0)
    rng = np.random.default_rng(0)
    everything = np.arange(capacity)
    sampler.extended(storage, everything)
    sampler.update_priority(everything, rng.random(capacity))
    sampling, updating = [], []
    for _ in range(rounds):
        surprise = rng.random(batch_size)
        start = time.perf_counter()
        rows, _ = sampler.sample(storage, batch_size)
        middle = time.perf_counter()
        sampler.update_priority(rows, surprise)
        updating.append(time.perf_counter() - middle)
        sampling.append(middle - start)
    return sampling, updating


def main() -> None:
    """Times, prints."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parse(parser)
    torch.set_num_threads(1)
    result = {}
    for capacity in CAPACITIES:
        sampling, updating = seconds(capacity, options.batch_size, options.rounds)
        both = [one + other for one, other in zip(sampling, updating, strict=True)]
        result[f"{capacity}"] = {
            "sample_ms": median_ms(sampling),
            "update_ms": median_ms(updating),
            "both_ms": median_ms(both),
            "best_ms": round(min(both) * 1e3, 4),
        }
    report({"batch_size": options.batch_size, "by_capacity": result}, options)


if __name__ == "__main__":
    main()
