"""What reading a dataset at a URL costs: milliseconds, requests and bytes of a batch, beside the same dataset here.

python -m scripts.bench.remote [--game Pong] [--rows 100000] [--files 5] [--rounds 8] [--delay-ms 30] [--json]

The server is moto's S3, in Python on the same machine: it answers some hundred requests a second, where a real one
answers thousands, each after some ten milliseconds. So bytes and requests are what a real one would see, and times are
this server's; ``delayed`` are those with ``--delay-ms`` on top of every request. A batch is 128 random transitions, or
2 slices of 64. ``cold``: nothing of the dataset is here but its manifest and its table of trajectories, whose cost is
``open``. ``warm``: what the batch needs is in the cache. ``settled``: a batch after a hundred others.

``blocks``: batches a second of ``rlx.loader(..., shuffle="blocks")`` over thirty copies of that dataset, on a web
server that answers ``--delay-ms`` after each request, in memory of a tenth of the dataset; beside the same loader, and
one of random steps, over the same files here. Target: 0.5 of the local rate.
"""

import argparse
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rlx
from rlx.files.bucket import Bucket
from rlx.files.checksum import FileStat
from rlx.files.location import Location
from rlx.progress import Silent
from rlx.verbs.push import push
from scripts.bench import timing
from scripts.bench.cold import steps_of
from scripts.bench.dopamine_source import write_run
from scripts.bench.far_server import FarServer
from scripts.bench.play import GAMES, play
from tests.s3_server import S3Server

FRAMES = 20_000
SETTLING = 100
COPIES = 30
WINDOW = 512  # batches of 128 in a window of the loader
MEASURED = 24 * WINDOW
Steps = NDArray[np.int64]


def written(folder: Path, game: str, rows: int, files: int) -> Path:
    """A run of real frames, repeated."""
    logs = folder / "logs" / game / "1" / "replay_logs"
    logs.mkdir(parents=True)
    write_run(logs, play(game, FRAMES).frames, rows // files, files)
    rlx.convert(logs, folder / "set", jobs=1)
    return folder / "set"


def milliseconds(dataset: rlx.Dataset, steps: Steps) -> float:
    """How long a batch takes."""
    start = time.perf_counter()
    dataset[steps]
    return (time.perf_counter() - start) * 1e3


def opened(url: str) -> tuple[rlx.Dataset, float]:
    """The dataset with its table of trajectories, and how many milliseconds that took."""
    start = time.perf_counter()
    dataset = rlx.open(url)
    len(dataset.trajectories)
    return dataset, (time.perf_counter() - start) * 1e3


def fetched(dataset: rlx.Dataset, batches: Sequence[Steps]) -> dict[str, float]:
    """Requests and kilobytes that a batch costs, on the average of these."""
    before = dataset.traffic
    for steps in batches:
        dataset[steps]
    requests, num_bytes = dataset.traffic.requests - before.requests, dataset.traffic.bytes - before.bytes
    return {"requests": round(requests / len(batches), 1), "kb": round(num_bytes / 1e3 / len(batches), 1)}


def measured(url: str, here: rlx.Dataset, kind: str, rounds: int, delay_s: float) -> dict[str, Any]:
    """The figures of one kind of batch, medians over rounds; each round opens the dataset anew."""
    batches = steps_of(kind, len(here), rounds + SETTLING)
    local, cold, warm, delayed, costs = [], [], [], [], []
    for steps in batches[:rounds]:
        local.append(milliseconds(here, steps))
        dataset, _ = opened(url)
        before = dataset.traffic
        cold.append(milliseconds(dataset, steps))
        costs.append((dataset.traffic.requests - before.requests, dataset.traffic.bytes - before.bytes))
        warm.append(milliseconds(dataset, steps))
        dataset, _ = opened(url)
        with Delayed(delay_s):
            delayed.append(milliseconds(dataset, steps))
    dataset, _ = opened(url)
    fetched(dataset, batches[:SETTLING])
    return {
        "local_ms": round(median(local), 2),
        "warm_ms": round(median(warm), 2),
        "cold_ms": round(median(cold), 1),
        "cold_delayed_ms": round(median(delayed), 1),
        "cold_requests": median(requests for requests, _ in costs),
        "cold_kb": round(median(num_bytes for _, num_bytes in costs) / 1e3, 1),
        **{f"settled_{name}": value for name, value in fetched(dataset, batches[-rounds:]).items()},
    }


def copied(folder: Path, path: Path, copies: int) -> Path:
    """A dataset of links to the files of one, several times over."""
    parts = [folder / f"part{number}" for number in range(copies)]
    for part in parts:
        shutil.copytree(path, part, copy_function=os.link)
    rlx.merge(parts, folder / "far")
    return folder / "far"


def rate(dataset: rlx.Dataset, **options: Any) -> dict[str, float]:
    """Batches a second of a loader after its first window, and what they fetch."""
    loader = rlx.loader(dataset, 128, seed=1, prefetch=0, **options)
    batches = iter(loader)
    for _ in itertools.islice(batches, WINDOW):
        pass
    before, loader.waited, start = dataset.traffic, 0.0, time.perf_counter()
    for _ in itertools.islice(batches, MEASURED):
        pass
    seconds, after = time.perf_counter() - start, dataset.traffic
    batches.close()  # type: ignore[attr-defined]
    return {
        "batches_per_s": round(MEASURED / seconds),
        "requests": round((after.requests - before.requests) / MEASURED, 2),
        "kb": round((after.bytes - before.bytes) / MEASURED / 1e3, 1),
    }


def blocks(folder: Path, path: Path, rounds: int, delay_s: float) -> dict[str, Any]:
    """The rates of loaders by blocks, medians over rounds."""
    here = rlx.open(copied(folder, path, COPIES))
    tenth = here.manifest.bytes // 10
    # Four windows are in memory; the rest is the cache's.
    windows = 4 * WINDOW * 128 * here.manifest.bytes // len(here)
    found: dict[str, list[dict[str, float]]] = {}
    with FarServer(folder, delay_s) as server:
        for _ in range(rounds):
            far = rlx.open(f"{server.url}/far", cache_bytes=max(tenth - windows, 2**20))
            found.setdefault("local_random", []).append(rate(here))
            found.setdefault("local", []).append(rate(here, shuffle="blocks"))
            found.setdefault("far", []).append(rate(far, shuffle="blocks"))
    result: dict[str, Any] = {"steps": len(here), "memory_mb": tenth // 10**6, "window_mb": windows // 10**6}
    for name, rounds_of in found.items():
        keys = rounds_of[0] if name == "far" else ("batches_per_s",)
        result |= {f"{name}_{key}": median(each[key] for each in rounds_of) for key in keys}
    for base in ("local", "local_random"):
        pairs = zip(found["far"], found[base], strict=True)
        result[f"far_of_{base}"] = round(median(a["batches_per_s"] / b["batches_per_s"] for a, b in pairs), 2)
    return result


class Delayed:
    """Within, every request for a range takes that many seconds longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._read = Bucket.read

    def __enter__(self) -> None:
        read, seconds = self._read, self._seconds

        def slow(self: Location, name: str, start: int, stop: int) -> tuple[bytes, FileStat]:
            time.sleep(seconds)
            return read(self, name, start, stop)

        Bucket.read = slow  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        Bucket.read = self._read  # type: ignore[method-assign]


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run")
    parser.add_argument("--files", type=int, default=5, help="files that the run lies in")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=30, help="what a request takes longer on a real network")
    options = timing.parse(parser)
    with tempfile.TemporaryDirectory() as folder, S3Server() as server:
        os.environ.update(server.environment)
        server.make_bucket("experience")
        url = f"s3://experience/{options.game}/1"
        path = written(Path(folder), options.game, options.rows, options.files)
        start = time.perf_counter()
        pushed = push(path, url, progress=Silent())
        push_s = time.perf_counter() - start
        here = rlx.open(path)
        dataset, open_ms = opened(url)
        with Delayed(options.delay_ms / 1e3):
            _, delayed_ms = opened(url)
        result = {
            "game": options.game,
            "shards": len(here.manifest.shards),
            "dataset_kb": round(here.manifest.bytes / 1e3),
            "push": {"s": round(push_s, 2), "files": pushed.transferred_files},
            "open": {
                "ms": round(open_ms, 1),
                "delayed_ms": round(delayed_ms, 1),
                "requests": dataset.traffic.requests,
                "kb": round(dataset.traffic.bytes / 1e3, 1),
            },
            "delay_ms": options.delay_ms,
            **{
                kind: measured(url, here, kind, options.rounds, options.delay_ms / 1e3)
                for kind in ("random", "slices_2x64")
            },
            "blocks": blocks(Path(folder), path, 3, options.delay_ms / 1e3),
        }
    timing.report(result, options)


if __name__ == "__main__":
    main()
