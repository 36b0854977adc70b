"""What a run on the hub costs: pushed, pulled on an empty machine, verified, opened in place and sampled.

python -m scripts.bench.hub                   # 50,000 steps of Pong from the emulator, a hub on loopback
python -m scripts.bench.hub --steps 5000
"""

import argparse
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from scripts.make_sample import GAME, RUN, Emulator
from scripts.rlu_writer import tf_example, write_shard
from tests.hub_server import HubServer

_SHARDS = 5
_URL = "hf://datasets/me/pong"
_RANDOM_STEPS = 128
T = TypeVar("T")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50_000)
    steps = parser.parse_args().steps
    with TemporaryDirectory() as scratch, HubServer() as hub:
        os.environ |= {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": hub.token,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": f"{scratch}/hf",
            "RLX_HOME": f"{scratch}/empty",
            "XDG_CACHE_HOME": f"{scratch}/cache",
        }
        measure(Path(scratch), hub, steps)


def measure(scratch: Path, hub: HubServer, steps: int) -> None:
    """Make the run and measure each thing that is done with it."""
    import rlx  # noqa: PLC0415  (after the environment is set)

    def told(name: str, work: Callable[[], T]) -> T:
        hub.requests.clear()
        started = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - started
        print(f"{name:<36}{seconds:8.2f} s {len(hub.requests):6} requests", flush=True)
        return result

    told("made and written", lambda: make_run(scratch / "run", steps))
    dataset = told("converted", lambda: rlx.convert(scratch / "run", scratch / "pong"))
    print(f"{dataset.steps:,} steps, {dataset.shards} shards, {dataset.bytes:,} bytes")
    told("pushed", lambda: rlx.push(scratch / "pong", _URL))
    told("pushed again", lambda: rlx.push(scratch / "pong", _URL))
    pulled = told("pulled on an empty machine", lambda: rlx.pull(_URL))
    assert not told("verified", lambda: rlx.verify(pulled.dataset)).problems
    assert contents(pulled.dataset) == contents(scratch / "pong"), "the copy differs"
    opened = told("opened in place", lambda: rlx.open(_URL))
    rows = np.random.default_rng(0).integers(len(opened), size=_RANDOM_STEPS)
    drawn = told(f"{_RANDOM_STEPS} random steps, cold", lambda: opened[rows.tolist()])
    told(f"{_RANDOM_STEPS} random steps, again", lambda: opened[rows.tolist()])
    told("64 slices of 32 steps, cold", lambda: rlx.open(_URL).sample(batch_size=2048, slice_len=32, seed=0))
    local = rlx.open(scratch / "pong")[rows.tolist()]
    assert all((drawn[key] == local[key]).all() for key in ("observation", "action", ("next", "reward")))
    print("equal bytes")


def make_run(root: Path, steps: int) -> None:
    """Write that many steps of Pong, and what is left of their last episode, in RL Unplugged's layout."""
    emulator, left = Emulator("pong", seed=0), steps
    for shard in range(_SHARDS):
        episodes = []
        wanted = left // (_SHARDS - shard)
        for number in count():
            episode = emulator.play(shard, number, None)
            episodes.append(episode)
            wanted, left = wanted - len(episode.actions), left - len(episode.actions)
            if wanted <= 0:
                break
        from rlx.formats.rl_unplugged import shard_file  # noqa: PLC0415

        write_shard(root / shard_file(GAME, RUN, shard), (tf_example(one.features()) for one in episodes))


def contents(dataset: Path) -> dict[str, bytes]:
    """Return every file of a dataset, but for its lock."""
    files = (path for path in dataset.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(dataset)): path.read_bytes() for path in files}


if __name__ == "__main__":
    main()
