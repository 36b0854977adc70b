"""Transforms one after the other, once they have seen the data that they are for."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role, Schema
from rlx.transform.protocol import Learner, Seen, Transform


@dataclass(frozen=True, slots=True)
class Link:
    """One transform of a chain.

    Args:
        name: what its dropped steps are counted under.
        transform: what it does.
        schema: what a step holds before.
    """

    name: str
    transform: Transform
    schema: Schema


@dataclass(frozen=True, slots=True)
class Chain:
    """Transforms, the first of which is applied first.

    Args:
        links: the transforms.
        schema: what a step holds after them.
    """

    links: Sequence[Link]
    schema: Schema

    def blocks(self, blocks: Iterator[Block], dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of whole trajectories, changed.

        Args:
            blocks: the trajectories, in order; ``episodes`` are their numbers.
            dropped: receives how many steps went in and did not come out, by transform, once all have come out.
        """
        for link in self.links:
            blocks = _counted_out(
                link.transform.blocks(_counted_in(blocks, link.name, dropped), link.schema), link.name, dropped
            )
        return (_without_unrecorded(block, self.schema) for block in blocks)


def fitted(
    transforms: Sequence[tuple[str, Transform | Learner]],
    schema: Schema,
    read: Callable[[], Iterator[Block]],
    statistics: Mapping[str, Any],
    start: NDArray[np.int64],
) -> Chain:
    """Return the chain that some transforms are for the data of a dataset.

    Args:
        transforms: the transforms and their names.
        schema: what a step of the dataset holds.
        read: gives the first trajectories of the dataset, again whenever it is called.
        statistics: moments of the dataset's fields by name.
        start: [N] the first step of every trajectory of the dataset.

    Raises:
        TransformError: a transform does not suit the data.
    """
    chain = Chain((), schema)
    for name, transform in transforms:
        if isinstance(transform, Learner):
            known = {now: statistics[name] for now, name in _unchanged(chain, read).items() if name in statistics}
            blocks = partial(_from_start, chain, read)
            transform = transform.learned(Seen(chain.schema, blocks, known, start))
        chain = Chain([*chain.links, Link(name, transform, chain.schema)], transform.schema(chain.schema))
    return chain


def _from_start(chain: Chain, read: Callable[[], Iterator[Block]]) -> Iterator[Block]:
    return chain.blocks(read(), Counter())


def _unchanged(chain: Chain, read: Callable[[], Iterator[Block]]) -> dict[str, str]:
    """Return the fields that come out as they went in, with the names that they had."""
    given: list[Block] = []

    def noted() -> Iterator[Block]:
        for block in read():
            given.append(block)
            yield block

    first = next((block for block in chain.blocks(noted(), Counter()) if block.steps), None)
    names = {id(array): name for block in given for name, array in block.data.items()}
    return {name: names[id(array)] for name, array in first.data.items() if id(array) in names} if first else {}


def _counted_in(blocks: Iterator[Block], name: str, dropped: Counter[str]) -> Iterator[Block]:
    for block in blocks:
        dropped[name] += block.steps
        yield block


def _counted_out(blocks: Iterator[Block], name: str, dropped: Counter[str]) -> Iterator[Block]:
    for block in blocks:
        dropped[name] -= block.steps
        yield block
    if not dropped[name]:
        del dropped[name]


def _without_unrecorded(block: Block, schema: Schema) -> Block:
    """Return the block with blank rows, whatever became of them, for the final observations that no source recorded."""
    closed = np.arange(len(block.lengths)) < block.closed
    if block.final_recorded[closed].all():
        return block
    final = np.cumsum(block.lengths + closed) - 1
    rows = final[closed & ~block.final_recorded]
    data = dict(block.data)
    for name in schema.names(Role.OBSERVATION):
        blank = schema[name].zeros(len(rows))
        if (data[name][rows] != blank).any():
            data[name] = data[name].copy()
            data[name][rows] = blank
    return replace(block, data=data)
