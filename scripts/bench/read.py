"""Time to read a batch: 128 random transitions, and 2 slices of 64, page cache warm.

python -m scripts.bench.read [--game Pong] [--rows 100000] [--rounds 15] [--threads 1] [--json]

The same run, in Dopamine's files, is converted by rlx (the default store) and by TorchRL. In every round both read the
same steps: rlx by ``dataset[indices]``; TorchRL by its storage's ``get`` (``ratio``), and by its own ``sample``, which
draws its own indices (``ratio_sample``). ``memmap`` is the least a raw file can take: the observations and next
observations at these indices, gathered by torch from an uncompressed memory map of all frames, and nothing else.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import rlx
from scripts.bench import peer, timing
from scripts.bench.dopamine_source import EPISODE, PADDING, write_run
from scripts.bench.play import GAMES, play

BATCH, SLICES = 128, 2
REPEATS, WARMUP = 20, 2
Draw = Callable[[np.random.Generator], NDArray[np.int64]]
Indices = NDArray[np.int64]


class Bench:
    """One run, as rlx keeps it, as TorchRL does, and as one tensor of raw frames on disk."""

    def __init__(self, folder: Path, frames: NDArray[np.uint8], rows: int, files: int) -> None:
        logs = folder / "logs" / peer.RUN_ID / "replay_logs"
        logs.mkdir(parents=True)
        self._capacity = rows // files
        write_run(logs, frames, self._capacity, files)
        rlx.convert(logs, folder / "rlx", jobs=1)
        self.dataset = rlx.open(folder / "rlx")
        self.replays: dict[str, Any] = {}
        if peer.is_installed():
            peer.convert(logs, folder / "torchrl", 1)
            self.replays = {
                "random_128": peer.open_replay(folder / "torchrl", BATCH),
                "slices_2x64": peer.open_replay(folder / "torchrl", BATCH, num_slices=SLICES),
            }
        raw = np.memmap(folder / "frames", np.uint8, "w+", shape=(len(self.dataset) + 1, *frames.shape[1:]))
        for start in range(0, len(self.dataset), EPISODE):
            part = self.dataset[start : start + EPISODE]
            raw[start : start + len(part)] = part["observation"].numpy()
        self._raw = torch.from_numpy(raw)

    def random(self, generator: np.random.Generator) -> Indices:
        """Any steps."""
        return generator.integers(0, len(self.dataset), BATCH)

    def slices(self, generator: np.random.Generator) -> Indices:
        """Two pieces of trajectories, both drawn uniformly, as TorchRL's sampler draws them."""
        length = BATCH // SLICES
        table = self.dataset.trajectories
        chosen = generator.choice(np.flatnonzero(table.length >= length), SLICES)
        first = table.start[chosen] + generator.integers(0, table.length[chosen] - length + 1)
        steps: Indices = (first[:, None] + np.arange(length)).reshape(-1)
        return steps

    def peer_rows(self, steps: Indices) -> Indices:
        """Where TorchRL, which keeps each file's ring as it is, has these steps."""
        row = steps // EPISODE * (EPISODE + PADDING) + PADDING + steps % EPISODE
        return (row + 1) // self._capacity * self._capacity + row % self._capacity

    def gather(self, steps: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Observations and next ones from the raw frames; at the end of a trajectory some other frame for the next."""
        rows = torch.from_numpy(steps)
        return self._raw[rows], self._raw[rows + 1]

    def measure(self, name: str, draw: Draw, rounds: int) -> dict[str, Any]:
        """Milliseconds a batch and ratios."""
        generator = np.random.default_rng(0)
        batches = [draw(generator) for _ in range((WARMUP + rounds) * REPEATS)]
        subjects: list[Callable[[int], object]] = [
            lambda i: self.dataset[batches[i]],
            lambda i: self.gather(batches[i]),
            lambda _: self.dataset[draw(generator)],
        ]
        if replay := self.replays.get(name):
            rows = [torch.from_numpy(self.peer_rows(batch)) for batch in batches]
            self._check(replay, batches[0], rows[0])
            subjects += [lambda i: peer.read(replay, rows[i]), lambda _: replay.sample()]
        taken = timing.interleaved(WARMUP + rounds, *subjects, repeats=REPEATS)
        read, raw, sampled, *theirs = [seconds[WARMUP:] for seconds in taken]
        their_read, their_sample = theirs or (None, None)
        return {
            "rlx_ms": timing.median_ms(read),
            "memmap_ms": timing.median_ms(raw),
            "torchrl_ms": timing.median_ms(their_read),
            "rlx_sample_ms": timing.median_ms(sampled),
            "torchrl_sample_ms": timing.median_ms(their_sample),
            **timing.times_faster(read, their_read),
            "ratio_sample": timing.times_faster(sampled, their_sample)["ratio"],
            "ratio_memmap": timing.times_faster(read, raw)["ratio"],
        }

    def _check(self, replay: Any, steps: Indices, rows: torch.Tensor) -> None:
        """Both read the same steps, but for the order that TorchRL loses where a batch spans files."""
        ours, theirs = self.dataset[steps]["observation"], peer.read(replay, rows)["observation"]
        if not torch.equal(ours.sum((1, 2)).sort().values, theirs.sum((1, 2)).sort().values):
            raise RuntimeError("rlx and TorchRL read other steps: expected the same")


def main() -> None:
    """Prints times and ratios, for a run in one shard and in fifty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=int, nargs="+", default=[1, 50], help="files that the run lies in")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, for its gathers; rlx reads in one")
    options = timing.parse(parser)
    torch.set_num_threads(options.threads)
    frames = play(options.game, 20_000).frames
    result: dict[str, Any] = {
        "game": options.game,
        "threads": options.threads,
        "targets": {"random_128": 6, "slices_2x64": 18},
    }
    for files in options.files:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), frames, options.rows, files)
            result[f"shards_{files}"] = {
                "random_128": bench.measure("random_128", bench.random, options.rounds),
                "slices_2x64": bench.measure("slices_2x64", bench.slices, options.rounds),
            }
    timing.report(result, options)


if __name__ == "__main__":
    main()
