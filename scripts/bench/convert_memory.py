"""Peak megabytes of processes that export a dataset into every format and import it again, and how they grow with it.

python -m scripts.bench.convert_memory [--formats minari ...] [--kinds pictures vectors] [--steps 20000 80000] [--json]

``peak`` is that of the larger of two datasets, ``growth`` how much less the smaller one takes; both are of a process
that does nothing else. Episodes have 1,000 steps: pictures are frames of Pong, 84x84, and vectors 376 numbers, as
Humanoid's. TorchRL's is its conversion of the same Dopamine files.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block, single
from rlx.manifest import Manifest
from rlx.schema import Schema
from rlx.store.codec import DEFAULT
from rlx.store.dataset_writer import claimed, open_writer
from rlx.store.layout import shard_name
from rlx.store.writer import train_dictionaries, write_shard
from rlx.verbs.export import EXPORT_FORMATS
from scripts.bench import peer, timing
from scripts.bench.peak import peak_mb
from scripts.bench.play import play

LENGTH, SHARD_EPISODES = 1000, 20
SIZES = ("small", "large")
_DISCRETE, _CONTINUOUS = ("int64", ()), ("float32", (2,))
_IMPORT = "import rlx, rlx.verbs.convert, rlx.verbs.export"
_PEER = "from pathlib import Path; from scripts.bench import peer"


@dataclass(frozen=True, slots=True)
class Steps:
    """Episodes of 1,000 steps, all of them the same but for their numbers.

    Args:
        observations: [1001, ...] of each.
        action: dtype and shape.
    """

    observations: NDArray[Any]
    action: tuple[str, tuple[int, ...]]

    @property
    def schema(self) -> Schema:
        """What one step holds."""
        return Schema.of(observation=(self.observations.dtype.name, self.observations.shape[1:]), action=self.action)

    def blocks(self, first: int, count: int) -> Iterator[Block]:
        """So many episodes."""
        dtype, shape = self.action
        data: dict[str, NDArray[Any]] = {
            "observation": self.observations,
            "action": np.zeros((LENGTH, *shape), dtype),
            "reward": np.ones(LENGTH, np.float32),
            "terminated": np.arange(LENGTH) == LENGTH - 1,
            "truncated": np.zeros(LENGTH, bool),
        }
        for episode in range(first, first + count):
            yield single(data, episode=episode)

    def write(self, path: Path, steps: int) -> None:
        """A dataset of that many steps, in shards of 20,000."""
        names = [shard_name(number) for number in range(-(-steps // LENGTH // SHARD_EPISODES))]
        with claimed(path):
            writer = open_writer(path, Manifest("Test/1", "zarr", DEFAULT.to_json(), self.schema, planned=names))
            form = writer.format()
            form = replace(form, dictionaries=train_dictionaries(self.blocks(0, SHARD_EPISODES), form))
            for number, name in enumerate(names):
                blocks = self.blocks(number * SHARD_EPISODES, SHARD_EPISODES)
                writer.commit(write_shard(writer.partial(name), name, form, blocks), origin={}, dropped={})


def observations(kind: str) -> NDArray[Any]:
    """[1001, ...] observations: frames of Pong, or vectors."""
    if kind == "vectors":
        return np.random.default_rng(0).normal(size=(LENGTH + 1, 376)).astype(np.float32)
    return play("Pong", 20_000).frames[: LENGTH + 1]


def programs(folder: Path, format: str, size: str) -> Iterator[tuple[str, str]]:
    """What is done to a dataset, one after the other, and the program that does it."""
    data, out, back = (str(folder / name) for name in (size, f"{size}-v0", f"{size}-back"))
    yield "export", f"{_IMPORT}; rlx.convert({data!r}, {out!r}, to={format!r})"
    yield "import", f"{_IMPORT}; rlx.convert({out!r}, {back!r}, jobs=1)"
    if format == "dopamine" and peer.is_installed():
        yield "torchrl_import", f"{_PEER}; peer.convert(Path({out!r}) / 'replay_logs', Path({back + '-peer'!r}), 1)"


def measure(format: str, kind: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Peaks and growths in megabytes."""
    found: dict[str, dict[str, int]] = {}
    steps = Steps(observations(kind), _DISCRETE if format == "dopamine" else _CONTINUOUS)
    with tempfile.TemporaryDirectory() as folder:
        for size, count in counts.items():
            steps.write(Path(folder) / size, count)
            for work, program in programs(Path(folder), format, size):
                found.setdefault(work, {})[size] = peak_mb(program)
    return {
        f"{work}_mb": {"peak": peaks["large"], "growth": peaks["large"] - peaks["small"]}
        for work, peaks in found.items()
    }


def main() -> None:
    """Prints peaks and growths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", choices=EXPORT_FORMATS, nargs="+", default=EXPORT_FORMATS)
    parser.add_argument("--kinds", choices=("pictures", "vectors"), nargs="+", default=("pictures", "vectors"))
    parser.add_argument("--steps", type=int, nargs=2, default=(20_000, 80_000), help="of the two datasets")
    options = timing.parse(parser)
    counts = dict(zip(SIZES, options.steps, strict=True))
    result: dict[str, Any] = {"steps": counts, "before_mb": peak_mb(_IMPORT)}
    for kind in options.kinds:
        result[kind] = {format: measure(format, kind, counts) for format in options.formats}
    timing.report(result, options)


if __name__ == "__main__":
    main()
