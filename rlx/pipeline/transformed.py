"""A dataset on its way through transforms, as a Source: cut into shards that depend on nothing but the dataset."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.formats.common.source import MAX_BLOCK_STEPS, block_steps
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.transform.chain import Chain
from rlx.transform.protocol import Selection

# One large shard is to keep all workers busy, and many are not to become many more: a reader keeps few of them open.
_MIN_STEPS = 32_768
_MAX_PORTIONS = 16


class Watch(Protocol):
    """Receiver of the blocks read."""

    def read(self, block: Block) -> None:
        """Take note of a block; its ``episodes`` are the numbers of the trajectories."""

    def ended(self) -> None:
        """Take note that all results of the block have been taken."""


@dataclass(frozen=True, slots=True)
class Portion:
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
    """A dataset changed by transforms.

    Args:
        dataset: the dataset.
        chain: the transforms.
        portions: what each new shard is made of.
        notes: what a user must know of the result.
        max_steps: steps of the blocks that are read.
        watch: receives the steps read.
    """

    dataset: Dataset
    chain: Chain
    portions: Sequence[Portion]
    notes: Mapping[str, Any]
    max_steps: int = MAX_BLOCK_STEPS
    watch: Watch | None = None

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
        return range(len(self.portions))

    def files(self, shard: int) -> Sequence[str]:
        """Return the files that a new shard is made of, below the dataset's directory."""
        return self.dataset.shard_files(self.portions[shard].place)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a new shard; what they are made of is verified first."""
        portion = self.portions[shard]
        episodes = self.dataset.shard_table(portion.place).episode
        first = self.dataset.first_trajectories[portion.place]
        for block in self.chain.blocks(read_portion(self.dataset, portion, self.max_steps, self.watch), dropped):
            yield replace(block, episodes=episodes[block.episodes - first])
        if self.watch is not None:
            self.watch.ended()


def read_portion(
    dataset: Dataset, portion: Portion, max_steps: int = MAX_BLOCK_STEPS, watch: Watch | None = None
) -> Iterator[Block]:
    """Yield the trajectories of a portion, in blocks; ``episodes`` are their numbers in the dataset."""
    trajectories = portion.trajectories - dataset.first_trajectories[portion.place]
    size = min(block_steps(dataset.schema), max_steps)
    blocks = dataset.shard_blocks(portion.place, size, trajectories=trajectories, steps=portion.steps)
    begun = 0
    for block in blocks:
        numbered = replace(block, episodes=portion.trajectories[begun : begun + len(block.lengths)])
        if watch is not None:
            watch.read(numbered)
        yield numbered
        begun += block.closed


def chosen(dataset: Dataset, selections: Sequence[Selection]) -> NDArray[np.int64]:
    """Return [n] numbers of the trajectories that stay, ascending.

    Raises:
        TransformError: a selection names trajectories that do not exist.
    """
    numbers = np.arange(len(dataset.trajectories))
    names = np.array([int(record.name) for record in dataset.shard_records], np.int64)
    shard = names.repeat(np.diff(dataset.first_trajectories))
    for selection in selections:
        numbers = numbers[selection.keeps(dataset.trajectories.pick(numbers), shard[numbers])]
    return numbers


def portions(dataset: Dataset, trajectories: NDArray[np.int64], steps: int | None = None) -> list[Portion]:
    """Return the new shards that these trajectories are cut into: no more of one shard than keep sixteen workers busy.

    Args:
        dataset: the dataset.
        trajectories: [n] numbers of those that are read, ascending.
        steps: at most this many of them in all.
    """
    length = dataset.trajectories.length[trajectories]
    if steps is not None:
        before = np.cumsum(length) - length
        length = np.minimum(length, steps - before)[before < steps]
        trajectories = trajectories[: len(length)]
    wanted = max(_MIN_STEPS, -(-int(length.sum()) // _MAX_PORTIONS))
    edges = np.searchsorted(trajectories, dataset.first_trajectories)
    made: list[Portion] = []
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
                made.append(Portion(place, trajectories[piece], taken, record.bytes * taken // record.steps))
    return made
