"""Seconds that commands with little to do take: help, ``inspect`` of 50 shards, and collecting 64 steps of Pong.

python -m scripts.bench.start [--rounds 10] [--json]
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rlx
from scripts.bench import timing
from scripts.bench.dopamine_source import write_run
from scripts.bench.play import play

SHARDS = 50
_COLLECT = "ALE/Pong-v5 --envs 4 --steps 64 --overwrite"
_TARGETS = {"help_s": 0.25, "inspect_s": 0.6, "collect_s": 0.8}


def write_dataset(folder: Path) -> Path:
    """A dataset of 50 shards."""
    logs = folder / "Pong" / "1" / "replay_logs"
    logs.mkdir(parents=True)
    write_run(logs, play("Pong", 2000).frames, 2006, SHARDS)
    rlx.convert(logs, folder / "rlx", jobs=1)
    return folder / "rlx"


def seconds(command: list[str], rounds: int) -> float:
    """Median wall time of a command, after one run that does not count and caches the modules' bytecode."""
    taken = []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken[1:]), 3)


def main() -> None:
    """Prints the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    options = timing.parse(parser)
    rlx = shutil.which("rlx", path=str(Path(sys.executable).parent)) or shutil.which("rlx") or "rlx"
    with tempfile.TemporaryDirectory() as folder:
        dataset = str(write_dataset(Path(folder)))
        result = {
            "help_s": seconds([rlx, "--help"], options.rounds),
            "inspect_s": seconds([rlx, "inspect", dataset], options.rounds),
            "inspect_json_s": seconds([rlx, "inspect", dataset, "--json"], options.rounds),
            "collect_s": seconds([rlx, "collect", "-o", f"{folder}/pong", *_COLLECT.split()], options.rounds),
            "python_s": seconds([sys.executable, "-c", ""], options.rounds),
            "targets": _TARGETS,
        }
    timing.report(result, options)


if __name__ == "__main__":
    main()
