"""A transformed dataset as a Source: cut into shards that depend only on the dataset."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.formats.common.source import MAX_BLOCK_STEPS, block_steps
from rlx.progress import Progress, Silent
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.layout import SHARDS
from rlx.transform.protocol import Chain
from rlx.verbs.shard_task import ShardResult, ShardTask, SharedSource, convert_shard

# One large shard is to keep all workers busy, and many are not to become many more: a reader keeps few of them open.
_MIN_STEPS = 32_768
_MAX_SHARDS = 16
# Names the trajectories that a worker is processing, in its unfinished shard.
IN_PROGRESS = "at"


class StepWatch:
    """Progress by the steps read, and a note of them for the process that finds this one dead."""

    def __init__(self, progress: Progress, note: Path) -> None:
        self._progress = progress
        self._note = note
        self._first: int | None = None

    def read(self, block: Block) -> None:
        """Take note of a block; its ``episodes`` are the numbers of the trajectories."""
        # A transform may still have the block before in hand, to see what follows it.
        first = int(block.episodes[0]) if self._first is None else self._first
        # Never half written: the process that finds another worker dead reads the notes of all.
        whole = self._note.with_suffix(".new")
        whole.write_text(f"{first} {block.episodes[-1]}")
        whole.replace(self._note)
        self._progress.advance("steps", block.steps)
        self._first = int(block.episodes[0])

    def ended(self) -> None:
        """Take note that all results of the blocks have been taken."""
        self._note.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ShardInput:
    """The input of one new shard.

    Args:
        place: of the shard that it is read from.
        trajectories: [n] numbers in the dataset of those that are read.
        steps: of all of them; fewer than they have where the last one is to be cut.
        bytes: of the shard, its share of them.
    """

    place: int
    trajectories: NDArray[np.int64]
    steps: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Transformed:
    """A dataset changed by transforms."""

    dataset: Dataset
    chain: Chain
    inputs: Sequence[ShardInput]
    notes: Mapping[str, Any]
    max_steps: int = MAX_BLOCK_STEPS
    watch: StepWatch | None = None

    @property
    def id(self) -> str:
        """Name of the dataset."""
        return self.dataset.manifest.id

    @property
    def schema(self) -> Schema:
        """Schema of a step afterwards."""
        return self.chain.schema

    def shards(self) -> Sequence[int]:
        """Return numbers of the new shards."""
        return range(len(self.inputs))

    def files(self, shard: int) -> Sequence[str]:
        """Return the files that a new shard is derived from, below the dataset's directory."""
        return self.dataset.shard_files(self.inputs[shard].place)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a new shard, after verifying the shard that they are derived from."""
        shard_input = self.inputs[shard]
        episodes = self.dataset.shard_table(shard_input.place).episode
        first = self.dataset.first_trajectories[shard_input.place]
        for block in self.chain.blocks(read_input(self.dataset, shard_input, self.max_steps, self.watch), dropped):
            yield replace(block, episodes=episodes[block.episodes - first])
        if self.watch is not None:
            self.watch.ended()


def read_input(
    dataset: Dataset, shard_input: ShardInput, max_steps: int = MAX_BLOCK_STEPS, watch: StepWatch | None = None
) -> Iterator[Block]:
    """Yield the input of a shard, in blocks; ``episodes`` are their numbers in the dataset."""
    trajectories = shard_input.trajectories - dataset.first_trajectories[shard_input.place]
    size = min(block_steps(dataset.schema), max_steps)
    blocks = dataset.shard_blocks(shard_input.place, size, trajectories=trajectories, steps=shard_input.steps)
    begun = 0
    for block in blocks:
        numbered = replace(block, episodes=shard_input.trajectories[begun : begun + len(block.lengths)])
        if watch is not None:
            watch.read(numbered)
        yield numbered
        begun += block.closed


def shard_inputs(dataset: Dataset, trajectories: NDArray[np.int64], steps: int | None = None) -> list[ShardInput]:
    """Return the new shards that these trajectories are cut into: no more of one shard than keep sixteen workers busy.

    Args:
        trajectories: [n] numbers of those that are read, ascending.
    """
    length = dataset.trajectories.length[trajectories]
    if steps is not None:
        before = np.cumsum(length) - length
        length = np.minimum(length, steps - before)[before < steps]
        trajectories = trajectories[: len(length)]
    wanted = max(_MIN_STEPS, -(-int(length.sum()) // _MAX_SHARDS))
    edges = np.searchsorted(trajectories, dataset.first_trajectories)
    made: list[ShardInput] = []
    for place, record in enumerate(dataset.shard_records):
        here = slice(edges[place], edges[place + 1])
        ends = np.cumsum(length[here])
        if not len(ends):
            continue
        count = -(-int(ends[-1]) // wanted)
        cuts = np.searchsorted(ends, np.arange(1, count) * ends[-1] // count) + 1
        for piece in np.split(np.arange(here.start, here.stop), np.unique(cuts)):
            taken = int(length[piece].sum())
            if taken:
                made.append(ShardInput(place, trajectories[piece], taken, record.bytes * taken // record.steps))
    return made


def transform_shard(task: ShardTask, progress: Progress) -> ShardResult:
    """Write one shard of a ``Transformed``."""
    assert isinstance(task.source, Transformed)
    watched = replace(task.source, watch=StepWatch(progress, task.directory / IN_PROGRESS))
    result = convert_shard(replace(task, shared=SharedSource(watched)), Silent())
    progress.advance("bytes read", watched.inputs[task.shard].bytes)
    progress.advance("bytes written", result.record.bytes)
    return result


def unfinished(destination: Path) -> str:
    """Return, in words, the trajectories that dead workers were processing."""
    named = []
    for note in sorted((destination / SHARDS).glob(f"*.partial/{IN_PROGRESS}")):
        with suppress(FileNotFoundError):  # a worker that lives has finished
            first, last = note.read_text().split()
            named.append(first if first == last else f"{first} to {last}")
    return f"; unfinished trajectories are {', '.join(named)}" if named else ""
