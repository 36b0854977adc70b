"""Time to sample a dataset at rest through ``AtariDQNExperienceReplay``, rlx's and TorchRL's, page cache warm.

python -m scripts.bench.sample [--game Pong] [--rows 100000] [--rounds 15] [--threads 1] [--json]

The same run, in Dopamine's files, is converted by rlx (the default store) and by TorchRL. Each buffer's ``sample``
draws 128 steps of its own: random ones; two slices of 64 (TorchRL with ``cache_values=True``); and random ones
with the last four frames of each stacked, by ``FrameStack(4)`` and by what TorchRL's
``CatFrames(4).make_rb_transform_and_sampler`` gives.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlx.buffer import FrameStack
from rlx.datasets import AtariDQNExperienceReplay
from scripts.bench import peer, timing
from scripts.bench.play import GAMES
from scripts.bench.run import Run, converted_run

BATCH, SLICES, STACK = 128, 2, 4
WARMUP = 2
TARGETS = {"random": 6, "slices_2x64": 15, "frame_stack_4": 6}
Replays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to sample, with rlx and with TorchRL."""

    ours: Callable[[Path], Any]
    theirs: Callable[[Path], Any]
    repeats: int = 10


def _ours(root: Path, **options: Any) -> Any:
    return AtariDQNExperienceReplay(peer.RUN_ID, BATCH, root=root, download=False, seed=0, **options)


KINDS = {
    "random": Kind(_ours, lambda root: peer.open_replay(root, BATCH)),
    "slices_2x64": Kind(
        lambda root: _ours(root, num_slices=SLICES), lambda root: peer.open_replay(root, BATCH, num_slices=SLICES)
    ),
    "frame_stack_4": Kind(
        lambda root: _ours(root, transform=FrameStack(STACK)), lambda root: peer.open_stacking(root, BATCH, STACK), 1
    ),
}


def measure(run: Run, kind: Kind, rounds: int) -> dict[str, Any]:
    """Milliseconds a batch and their ratio."""
    replays = [kind.ours(run.ours), *([kind.theirs(run.theirs)] if run.theirs else [])]
    _check([replay.sample() for replay in replays])
    subjects = [partial(_sampled, replay) for replay in replays]
    taken = timing.interleaved(WARMUP + rounds, *subjects, repeats=kind.repeats)
    ours, *theirs = [seconds[WARMUP:] for seconds in taken]
    their = theirs[0] if theirs else None
    return {
        "rlx_ms": timing.median_ms(ours),
        "torchrl_ms": timing.median_ms(their),
        **timing.times_faster(ours, their),
    }


def _sampled(replay: Any, _: int) -> None:
    replay.sample()


def _check(batches: list[Any]) -> None:
    """All give as many observations."""
    found = {tuple(batch[key].squeeze().shape) for batch in batches for key in ("observation", ("next", "observation"))}
    if len(found) > 1:
        raise RuntimeError(f"batches of {found}: expected the same of rlx and TorchRL")


def main() -> None:
    """Prints times and ratios, for a run in one shard and in fifty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=int, nargs="+", default=[1, 50], help="files that the run lies in")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    options = timing.parse(parser)
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"game": options.game, "threads": options.threads, "target_ratios": TARGETS}
    for files in options.files:
        with tempfile.TemporaryDirectory() as folder:
            run = converted_run(Path(folder), options.game, options.rows, files)
            result[f"shards_{files}"] = {name: measure(run, kind, options.rounds) for name, kind in KINDS.items()}
    timing.report(result, options)


if __name__ == "__main__":
    main()
