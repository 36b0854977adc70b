"""Bytes read from disk to sample a dataset at rest with the page cache cold: of the same steps, by rlx and by TorchRL.

python -m scripts.bench.cold [--game Pong] [--rows 100000] [--files 50] [--batches 1 20 200] [--json]

Before each measurement every file of both is written out and dropped from the page cache, by ``posix_fadvise``. A new
process then opens the buffer, which is not counted, reads that many batches of 128 random steps or 2 slices of 64, and
reports what ``/proc/self/io`` says was fetched from the disk meanwhile.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlx.datasets import AtariDQNExperienceReplay
from scripts.bench import peer, timing
from scripts.bench.dopamine_source import EPISODE, PADDING
from scripts.bench.play import GAMES
from scripts.bench.run import converted_run

BATCH, SLICES = 128, 2


def drop(folder: Path) -> None:
    """Drops all files below a directory from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def steps_of(kind: str, steps: int, batches: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The steps of the batches."""
    rng = np.random.default_rng(0)
    if kind == "random":
        return [rng.integers(0, steps, BATCH) for _ in range(batches)]
    length = BATCH // SLICES
    episodes = [rng.integers(0, steps // EPISODE, SLICES) for _ in range(batches)]
    firsts = [chosen * EPISODE + rng.integers(0, EPISODE - length, SLICES) for chosen in episodes]
    return [(first[:, None] + np.arange(length)).reshape(-1) for first in firsts]


def fetched() -> int:
    """Bytes that this process had read from disk."""
    found = re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("/proc/self/io has no read_bytes")
    return int(found[1])


def read(root: Path, whose: str, kind: str, batches: int, capacity: int) -> int:
    """Bytes fetched to read the batches."""
    ours = AtariDQNExperienceReplay(peer.RUN_ID, BATCH, root=root / "rlx", download=False)
    ours.storage.index()  # as TorchRL does when it opens
    chosen = steps_of(kind, len(ours), batches)
    if whose == "rlx":
        before = fetched()
        for steps in chosen:
            ours.storage.get(steps)
        return fetched() - before
    theirs = peer.open_replay(root / "torchrl", BATCH)
    rows = [torch.from_numpy(peer_rows(steps, capacity)) for steps in chosen]
    before = fetched()
    for row in rows:
        peer.read(theirs, row)
    return fetched() - before


def peer_rows(steps: np.ndarray[Any, np.dtype[np.int64]], capacity: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where TorchRL has these steps."""
    row = steps // EPISODE * (EPISODE + PADDING) + PADDING + steps % EPISODE
    rows: np.ndarray[Any, np.dtype[np.int64]] = (row + 1) // capacity * capacity + row % capacity
    return rows


def in_new_process(root: Path, *arguments: str | int) -> int:
    """What ``read`` says there."""
    drop(root)
    command = [sys.executable, "-W", "ignore", "-m", "scripts.bench.cold", "--read", str(root), *map(str, arguments)]
    return int(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def main() -> None:
    """Prints megabytes and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run")
    parser.add_argument("--files", type=int, default=50, help="files that the run lies in")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--read", nargs=5, metavar=("ROOT", "WHOSE", "KIND", "BATCHES", "CAPACITY"), help="one of them")
    options = timing.parse(parser)
    if options.read:
        root, whose, kind, batches, capacity = options.read
        print(read(Path(root), whose, kind, int(batches), int(capacity)))
        return
    result: dict[str, Any] = {"game": options.game, "target_ratio": 20}
    with tempfile.TemporaryDirectory() as folder:
        run = converted_run(Path(folder), options.game, options.rows, options.files)
        for kind in ("random", "slices_2x64"):
            for batches in options.batches:
                measured = (kind, batches, options.rows // options.files)
                ours = in_new_process(Path(folder), "rlx", *measured)
                theirs = in_new_process(Path(folder), "torchrl", *measured) if run.theirs else None
                result[f"{kind}_{batches}_batches"] = {
                    "rlx_mb": round(ours / 1e6, 2),
                    "torchrl_mb": None if theirs is None else round(theirs / 1e6, 2),
                    "ratio": None if theirs is None else round(theirs / max(ours, 1), 1),
                }
    timing.report(result, options)


if __name__ == "__main__":
    main()
