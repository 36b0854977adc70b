"""CPU time of datasets of 10, 100 and 1,000 shards: what grows faster than the shards shows here.

python -m scripts.bench.shards [--shards 10 100 1000] [--json]
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.block import Block, single
from rlx.manifest import Manifest
from rlx.progress import Silent
from rlx.schema import Schema
from rlx.store.codec import DEFAULT
from rlx.store.dataset_writer import open_writer
from rlx.store.layout import shard_directory, shard_name
from rlx.store.writer import ShardFormat, link_shard, train_dictionaries, write_shard
from scripts.bench import timing

STEPS = 100
_SCHEMA = Schema.of(observation=("uint8", (84, 84)), action=("int64", ()))


def _block() -> Block:
    """One trajectory of a bright square that moves over a fixed background."""
    frames = np.random.default_rng(0).integers(0, 64, (1, 84, 84), np.uint8).repeat(STEPS + 1, axis=0)
    for step, frame in enumerate(frames):
        frame[step % 70 : step % 70 + 8, 2 * step % 70 : 2 * step % 70 + 8] = 255
    ends = np.arange(STEPS) == STEPS - 1
    data: dict[str, Any] = {
        "observation": frames,
        "action": np.arange(STEPS) % 6,
        "reward": np.ones(STEPS, np.float32),
        "terminated": ends,
        "truncated": np.zeros(STEPS, bool),
    }
    return single(data, episode=0)


def make(path: Path, shards: int) -> None:
    """Write a dataset of equal shards: one is encoded, the others are links of it."""
    form = ShardFormat(_SCHEMA, "zarr", DEFAULT)
    form = replace(form, dictionaries=train_dictionaries([_block()], form))
    path.mkdir()
    names = [shard_name(number) for number in range(shards)]
    writer = open_writer(path, Manifest("Square/1", "zarr", DEFAULT.to_json(), _SCHEMA, planned=names))
    first = write_shard(path.with_name("first"), names[0], form, [_block()])
    for name in names:
        link_shard(path.with_name("first"), first.files, shard_directory(path, name), Silent())
    writer.manifest = writer.manifest.with_shards([replace(first, name=name) for name in names])
    writer.save()


def _seconds(work: Callable[[], object]) -> float:
    start = os.times()
    work()
    return round(sum(os.times()[:4]) - sum(start[:4]), 2)


def measure(folder: Path, shards: int) -> dict[str, float]:
    """Return seconds of CPU time of every verb, of its workers too; the merge is of two halves, by links."""
    halves = [folder / "left", folder / "right"]
    for half in halves:
        make(half, shards // 2)
        (folder / "first").rename(folder / f"{half.name}-first")
    merged = folder / "merged"
    steps = np.random.default_rng(1).integers(0, shards // 2 * 2 * STEPS, 128)
    seconds = {"merge": _seconds(lambda: rlx.merge(halves, merged))}
    seconds["open"] = _seconds(lambda: rlx.open(merged))
    seconds["open_and_first_batch"] = _seconds(lambda: rlx.open(merged)[steps])
    seconds["open_and_first_batch_again"] = _seconds(lambda: rlx.open(merged)[steps])
    dataset = rlx.open(merged)
    seconds["hundred_batches"] = _seconds(lambda: [dataset[steps] for _ in range(100)])
    seconds["inspect"] = _seconds(lambda: rlx.inspect(merged))
    seconds["verify"] = _seconds(lambda: rlx.verify(merged))
    seconds["split"] = _seconds(
        lambda: rlx.split(merged, [0.9, 0.1], by="shard", output=[folder / "most", folder / "rest"])
    )
    return seconds


def main() -> None:
    """Print seconds by number of shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1000])
    options = timing.parse(parser)
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "one", 1)
        rlx.open(Path(folder) / "one")[:1]  # imports of the first call are not measured
    for shards in options.shards:
        with tempfile.TemporaryDirectory() as folder:
            result[str(shards)] = measure(Path(folder), shards)
    timing.report({"steps_per_shard": STEPS, "cpu_s": result}, options)


if __name__ == "__main__":
    main()
