"""The interface of transforms between the steps of a dataset and those of the next."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Schema
from rlx.store.trajectories import Trajectories


class Transform(Protocol):
    """A pure function of the steps of some trajectories; it can be pickled to another process.

    Blocks come in storage order and may end inside a trajectory. Their ``episodes`` are the numbers of the trajectories
    in the dataset, for messages, and are passed on unchanged. Input arrays must not be written to: they may lie in a
    memory map.
    """

    def schema(self, schema: Schema) -> Schema:
        """Return the schema of the result.

        Raises:
            TransformError: these steps do not suit it.
        """

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the steps, changed. The result does not depend on how they are cut into blocks.

        Args:
            blocks: whole trajectories, in order.
            schema: what a step holds before.

        Raises:
            TransformError: some step does not suit it; names the trajectory.
        """


class PerBlock:
    """A transform that needs to see no more than one block at a time."""

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block, changed."""
        raise NotImplementedError

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the steps, changed block by block."""
        for block in blocks:
            yield self.apply(block, schema)


@dataclass(frozen=True, slots=True)
class Seen:
    """The data that reach a transform, before any of them is written.

    Args:
        schema: what a step holds.
        blocks: yields the first of them, again at every call; empty for a dataset without steps.
        statistics: moments of those fields that are as the dataset has them, by name, as its manifest gives them.
        start: [N] the first step of every trajectory in the dataset.
    """

    schema: Schema
    blocks: Callable[[], Iterator[Block]]
    statistics: Mapping[str, Any]
    start: NDArray[np.int64]


@runtime_checkable
class Learner(Protocol):
    """A transform that depends on the data: it has to see some of them before it knows what it does."""

    def learned(self, seen: Seen) -> Transform:
        """Return the transform that it is for these data.

        Raises:
            TransformError: the data do not suit it.
        """


@runtime_checkable
class Selection(Protocol):
    """Which trajectories stay. Those that do not are never read.

    Selections stand before all transforms, and look at trajectories as the dataset has them.
    """

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return [N] whether each trajectory stays, of those that the selections before it have left.

        Args:
            table: the trajectories.
            shard: [N] number of the shard that each lies in.

        Raises:
            TransformError: the table has not what it asks for.
        """
