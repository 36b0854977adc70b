"""Prioritized sampling on one core: CPU time to sample a batch and to update its priorities, by capacity.

Beside cpprb and TorchRL in one run, in turns, where they are installed. ``--rows`` adds the sampler alone over that
many rows, and the memory that the process takes.
"""

import resource
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from tensordict import TensorDict

from rlx.buffer import LazyTensorStorage, ReplayBuffer
from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from scripts.bench.timing import parse, report

CAPACITIES = (10_000, 1_000_000, 10_000_000)
_AT_ONCE = 1_000_000
ALPHA, BETA = 0.6, 0.4
Subject = tuple[Callable[[], Any], Callable[[Any], Any]]  # samples a batch; updates its priorities


@dataclass
class Full(Storage):
    """As much of a full storage as the sampler asks of it."""

    max_size: int

    def __len__(self) -> int:
        return self.max_size

    def row_at(self, ordinals: Rows) -> Rows:
        """[n] rows."""
        return ordinals


def blocks(capacity: int) -> Iterator[Rows]:
    """The rows, some at once."""
    for start in range(0, capacity, _AT_ONCE):
        yield np.arange(start, min(start + _AT_ONCE, capacity))


def steps(count: int) -> dict[str, torch.Tensor]:
    """Steps of one byte."""
    return {"x": torch.zeros(count, 1, dtype=torch.uint8)}


def rlx_sampler(capacity: int, batch_size: int) -> Subject:
    """The sampler alone."""
    storage, rng = cast(Storage, Full(capacity)), np.random.default_rng(0)  # type: ignore[abstract]
    sampler = PrioritizedSampler(capacity, ALPHA, BETA, seed=0)
    for rows in blocks(capacity):
        sampler.extended(storage, rows)
        sampler.update_priority(rows, rng.random(len(rows)) + 0.1)
    priority = rng.random(batch_size) + 0.1
    return lambda: sampler.sample(storage, batch_size), lambda batch: sampler.update_priority(batch[0], priority)


def rlx_buffer(capacity: int, batch_size: int, *, of_arrays: bool = False) -> Subject:
    """A buffer of TensorDicts, or of dicts of arrays."""
    sampler = PrioritizedSampler(capacity, ALPHA, BETA, seed=0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=batch_size)
    for rows in blocks(capacity):
        written: Any = {"x": np.zeros((len(rows), 1), np.uint8)}
        index = buffer.extend(written if of_arrays else TensorDict(steps(len(rows)), [len(rows)]))
        buffer.update_priority(index, torch.rand(len(rows)) + 0.1)
    priority = torch.rand(batch_size) + 0.1
    draw = partial(buffer.sample, return_info=True)
    return draw, lambda found: buffer.update_priority(found[1]["index"], priority)


def cpprb(capacity: int, batch_size: int) -> Subject:
    """cpprb's buffer of dicts of arrays."""
    peer: Any = import_module("cpprb")
    buffer, rng = (
        peer.PrioritizedReplayBuffer(capacity, {"x": {"dtype": np.uint8}}, alpha=ALPHA),
        np.random.default_rng(0),
    )
    for rows in blocks(capacity):
        buffer.add(x=np.zeros((len(rows), 1), np.uint8), priorities=rng.random(len(rows)) + 0.1)
    priority = rng.random(batch_size) + 0.1
    return (
        lambda: buffer.sample(batch_size, beta=BETA),
        lambda batch: buffer.update_priorities(batch["indexes"], priority),
    )


def torchrl(capacity: int, batch_size: int) -> Subject:
    """TorchRL's buffer of TensorDicts; its trees are an extension that not every torch can load."""
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer  # noqa: PLC0415 (a peer)

    storage: Any = LazyTensorStorage(capacity)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=batch_size)
    for rows in blocks(capacity):
        index = buffer.extend(TensorDict(steps(len(rows)), [len(rows)]))
        buffer.update_priority(index, torch.rand(len(rows)) + 0.1)
    priority = torch.rand(batch_size) + 0.1
    return buffer.sample, lambda batch: buffer.update_priority(batch["index"], priority)


SUBJECTS: dict[str, Callable[[int, int], Subject]] = {
    "rlx": rlx_buffer,
    "rlx_arrays": partial(rlx_buffer, of_arrays=True),
    "rlx_sampler": rlx_sampler,
    "cpprb": cpprb,
    "torchrl": torchrl,
}


def made(name: str, capacity: int, batch_size: int) -> Subject | None:
    """Return the sample and update calls of a library; None if it is not installed or does not work."""
    if name in ("cpprb", "torchrl") and find_spec(name) is None:
        return None
    try:
        return SUBJECTS[name](capacity, batch_size)
    except (ImportError, RuntimeError):
        return None


def milliseconds(subjects: dict[str, Subject | None], rounds: int, repeats: int) -> dict[str, Any]:
    """The least of the rounds' means, to sample, to update, and both."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, subject in subjects.items() if subject}
    for _ in range(rounds):
        for name, taken in found.items():
            sample, update = cast(Subject, subjects[name])
            sampling = updating = 0.0
            for _ in range(repeats):
                start = time.thread_time()
                batch = sample()
                middle = time.thread_time()
                update(batch)
                updating += time.thread_time() - middle
                sampling += middle - start
            taken.append((sampling / repeats * 1e3, updating / repeats * 1e3))
    result: dict[str, Any] = {}
    for name, taken in found.items():
        sampling, updating = (min(column) for column in zip(*taken, strict=True))
        both = min(map(sum, taken))
        result[name] = {"sample_ms": round(sampling, 4), "update_ms": round(updating, 4), "both_ms": round(both, 4)}
    return result


def main() -> None:
    """Times, prints."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=100, help="batches per round")
    parser.add_argument("--rows", type=int, help="such as 1_000_000_000: 8.4 GB, and a minute to write")
    options = parse(parser)
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    for capacity in CAPACITIES:
        subjects = {name: made(name, capacity, options.batch_size) for name in SUBJECTS}
        result[f"{capacity}"] = measured = milliseconds(subjects, options.rounds, options.repeats)
        for name in ("cpprb", "torchrl"):
            ours, theirs = measured["rlx"]["both_ms"], measured.get(name, {}).get("both_ms")
            measured[f"times_faster_than_{name}"] = None if theirs is None else round(theirs / ours, 2)
        del subjects
    if options.rows:
        subjects = {"rlx_sampler": rlx_sampler(options.rows, options.batch_size)}
        result[f"{options.rows}"] = milliseconds(subjects, options.rounds, options.repeats)
        result[f"{options.rows}"]["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
    report({"batch_size": options.batch_size, "by_capacity": result}, options)


if __name__ == "__main__":
    main()
