"""Milliseconds to write to and sample buffers in memory, beside TorchRL's, and what compressing costs and saves.

python -m scripts.bench.memory [--game Pong] [--rounds 15] [--threads 1] [--json]

20,000 real steps, with ``next``, in a ``LazyTensorStorage`` of as many; 100 and 1,000 are written at a time, and 128
sampled, at random or as 2 slices of 64 by the done flags: from a buffer that does not change, which suits TorchRL's
``cache_values=True``, and after 100 steps were written, as a learner does. ``compressed`` is rlx's
``CompressedStorage`` doing the same, beside its own ``LazyTensorStorage``.
"""

import argparse
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rlx.buffer import CompressedStorage, LazyTensorStorage, RandomSampler, ReplayBuffer, SliceSampler
from scripts.bench import peer, timing
from scripts.bench.play import GAMES, Play, play

BATCH, SLICES, STEPS = 128, 2, 20_000
REPEATS, WARMUP = 10, 2
CAPACITY = 200_000
MILLION = 1_000_000
Calls = Mapping[str, Callable[[int], object]]


def steps_of(played: Play, count: int = STEPS) -> TensorDict:
    """So many steps as a collector gives them: the last frame of an episode is only ``next``."""
    frames = torch.from_numpy(played.frames)
    counts = torch.tensor(played.counts)
    ends = torch.zeros(len(frames), dtype=torch.bool)
    ends[counts.cumsum(0) - 1] = True
    now = torch.arange(len(frames))[~ends][:count]
    done = ends[now + 1][:, None]
    after = {
        "observation": frames[now + 1],
        "reward": torch.zeros(len(now), 1),
        "done": done,
        "terminated": done.clone(),
        "truncated": torch.zeros_like(done),
    }
    flags = {key: torch.zeros_like(done) for key in ("done", "terminated", "truncated")}
    return TensorDict(
        {"observation": frames[now], "action": torch.zeros(len(now), dtype=torch.int64), "next": after, **flags},
        [len(now)],
    )


def calls(make: Callable[[bool], Any], steps: TensorDictBase) -> Calls:
    """What is measured of a buffer, of which there is one for random steps and one for slices."""
    random, slices = make(False), make(True)
    random.extend(steps)
    slices.extend(steps)

    def write(buffer: Any, number: int, count: int) -> None:
        first = number * count % (len(steps) - count)
        buffer.extend(steps[first : first + count])

    def learn(number: int) -> None:
        write(growing, number, 100)
        growing.sample(BATCH)

    growing = make(True)
    growing.extend(steps)
    return {
        "random": lambda _: random.sample(BATCH),
        "slices_2x64": lambda _: slices.sample(BATCH),
        "extend_100": lambda number: write(random, number, 100),
        "extend_1000": lambda number: write(random, number, 1000),
        "extend_100_slices_2x64": learn,
    }


def ours(storage: Callable[[int], Any]) -> Callable[[bool], Any]:
    """Makes rlx's buffer."""
    return lambda slices: ReplayBuffer(
        storage=storage(STEPS), sampler=SliceSampler(num_slices=SLICES, seed=0) if slices else RandomSampler(seed=0)
    )


def compare(first: Calls, second: Calls | None, names: tuple[str, str], rounds: int) -> dict[str, Any]:
    """Milliseconds of each call of two buffers, and their ratio."""
    result = {}
    for key, call in first.items():
        subjects = [call, *([second[key]] if second else [])]
        taken = timing.interleaved(WARMUP + rounds, *subjects, repeats=REPEATS)
        mine, *others = [seconds[WARMUP:] for seconds in taken]
        other = others[0] if others else None
        result[key] = {
            f"{names[0]}_ms": timing.median_ms(mine),
            f"{names[1]}_ms": timing.median_ms(other),
            **timing.times_faster(mine, other),
        }
    return result


def size(steps: TensorDictBase) -> dict[str, Any]:
    """Bytes of memory a step of a full buffer, and what a million take.

    The first frames are kept before there is a dictionary and take several times as much as the others, so the buffer
    has to be large: it is filled with the same steps again and again. Frames are compressed one by one, so that does
    not make them smaller.
    """
    storage = CompressedStorage(CAPACITY)
    buffer = ReplayBuffer(storage=storage)
    for first in itertools.islice(itertools.cycle(range(0, len(steps) - 999, 1000)), CAPACITY // 1000):
        buffer.extend(steps[first : first + 1000])
    a_step = storage.nbytes / CAPACITY
    return {"bytes_a_step": round(a_step, 1), "gb_of_a_million_steps": round(a_step * MILLION / 1e9, 3)}


def main() -> None:
    """Prints times, ratios and sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    options = timing.parse(parser)
    torch.set_num_threads(options.threads)
    steps = steps_of(play(options.game, STEPS + 2000))
    in_tensors = calls(ours(LazyTensorStorage), steps)
    theirs = None
    if peer.is_installed():
        theirs = calls(lambda slices: peer.memory_buffer(STEPS, SLICES if slices else None), steps)
    result: dict[str, Any] = {
        "game": options.game,
        "threads": options.threads,
        "target_ratios": {"random": 1, "extend": 1, "slices_2x64": 4},
        "tensors": compare(in_tensors, theirs, ("rlx", "torchrl"), options.rounds),
        "compressed": compare(calls(ours(CompressedStorage), steps), in_tensors, ("compressed", "tensor"), 5),
        "target_gb_of_a_million_steps": 0.3,
        "compressed_size": {game: size(steps_of(play(game, STEPS + 2000))) for game in GAMES},
    }
    timing.report(result, options)


if __name__ == "__main__":
    main()
