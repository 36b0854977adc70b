"""A run that rlx and TorchRL have both converted from the same files of Dopamine's."""

from dataclasses import dataclass
from pathlib import Path

import rlx
from scripts.bench import peer
from scripts.bench.dopamine_source import write_run
from scripts.bench.play import play

FRAMES = 20_000


@dataclass(frozen=True, slots=True)
class Run:
    """Where each has its own.

    Args:
        ours: the directory above rlx's dataset.
        theirs: the one above TorchRL's; None where TorchRL is not installed.
    """

    ours: Path
    theirs: Path | None


def converted_run(folder: Path, game: str, rows: int, files: int, *, with_peer: bool = True) -> Run:
    """Makes a run of real frames, repeated, and lets both convert it, or rlx alone."""
    logs = folder / "logs" / peer.RUN_ID / "replay_logs"
    logs.mkdir(parents=True)
    write_run(logs, play(game, FRAMES).frames, rows // files, files)
    rlx.convert(logs, folder / "rlx" / peer.RUN_ID, jobs=1)
    if not (with_peer and peer.is_installed()):
        return Run(folder / "rlx", None)
    peer.convert(logs, folder / "torchrl", 1)
    return Run(folder / "rlx", folder / "torchrl")
