"""Steps per second of a buffer that 8 processes write and 2 sample: on Ray, TorchRL's on Ray, and a local buffer.

python -m scripts.bench.ray_buffer [--seconds 5] [--writers 8] [--readers 2] [--json]

Steps have an observation of 84 x 84 bytes, now and next. A writer extends by 64 of them at a time, a reader samples 128
at a time; both as fast as they can, for the given time. The local buffer is written and sampled by one thread, in
turns, in the same proportion. All have a storage of tensors of 20,000 steps. Times of single calls
are of one client alone.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from rlx.buffer import LazyTensorStorage, RayReplayBuffer, ReplayBuffer
from rlx.engine.ray_cluster import ray_cluster
from scripts.bench import peer, timing

CAPACITY, WRITTEN, BATCH = 20_000, 64, 128
WARMUP, CALLS = 5, 40


def _steps() -> TensorDict:
    images = torch.randint(0, 255, (WRITTEN, 84, 84), dtype=torch.uint8)
    after = {
        "observation": images,
        "reward": torch.zeros(WRITTEN, 1),
        "done": torch.zeros(WRITTEN, 1, dtype=torch.bool),
    }
    return TensorDict({"observation": images.clone(), "action": torch.arange(WRITTEN), "next": after}, [WRITTEN])


def _client(buffer: Any, writes: bool, seconds: float) -> int:
    """Return how many steps a client of its own process wrote, or sampled."""
    torch.set_num_threads(1)
    steps, calls = _steps(), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        buffer.extend(steps) if writes else buffer.sample(BATCH)
        calls += 1
    return calls * (WRITTEN if writes else BATCH)


def _milliseconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(WARMUP + CALLS):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken[WARMUP:]) * 1e3, 3)


def _alone(buffer: Any) -> dict[str, Any]:
    steps = _steps()
    return {
        "extend_64_ms": _milliseconds(lambda: buffer.extend(steps)),
        "sample_128_ms": _milliseconds(lambda: buffer.sample(BATCH)),
    }


def _together(ray: Any, buffer: Any, options: argparse.Namespace) -> dict[str, Any]:
    client = ray.remote(num_cpus=0)(_client)
    kinds = [True] * options.writers + [False] * options.readers
    buffer.extend(_steps())
    ray.get([client.remote(buffer, kind, 0.1) for kind in kinds])  # starts the processes
    done = ray.get([client.remote(buffer, kind, options.seconds) for kind in kinds])
    written, sampled = (
        sum(count for count, kind in zip(done, kinds, strict=True) if kind is way) for way in (True, False)
    )
    return {
        "written_per_s": round(written / options.seconds),
        "sampled_per_s": round(sampled / options.seconds),
        **_alone(buffer),
    }


def _local(options: argparse.Namespace) -> dict[str, Any]:
    buffer, steps = ReplayBuffer(storage=LazyTensorStorage(CAPACITY)), _steps()
    written = sampled = 0
    start = time.monotonic()
    while time.monotonic() - start < options.seconds:
        for _ in range(options.writers):
            buffer.extend(steps)
            written += WRITTEN
        for _ in range(options.readers):
            buffer.sample(BATCH)
            sampled += BATCH
    rates = {"written_per_s": round(written / options.seconds), "sampled_per_s": round(sampled / options.seconds)}
    return {**rates, **_alone(buffer)}


def _torchrl() -> Any:
    from torchrl.data import LazyTensorStorage as TheirStorage  # noqa: PLC0415
    from torchrl.data import RayReplayBuffer as TheirBuffer  # noqa: PLC0415

    def storage() -> Any:
        return TheirStorage(CAPACITY)

    return TheirBuffer(storage=storage, batch_size=BATCH, remote_config={"num_cpus": 0})


def main() -> None:
    """Prints rates and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--readers", type=int, default=2)
    options = timing.parse(parser)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    result: dict[str, Any] = {"writers": options.writers, "readers": options.readers, "local": _local(options)}
    with ray_cluster(cpus=options.writers + options.readers) as ray:
        with RayReplayBuffer(ReplayBuffer(storage=LazyTensorStorage(CAPACITY))) as buffer:
            result["rlx"] = _together(ray, buffer, options)
        if peer.is_installed():
            theirs = _torchrl()
            result["torchrl"] = _together(ray, theirs.client(), options)
            theirs.shutdown()
    timing.report(result, options)


if __name__ == "__main__":
    main()
