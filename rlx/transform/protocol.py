"""The interfaces of transforms, and chains of transforms.

A transform of both, such as ``NStep``, has ``schema`` and ``blocks`` for datasets, and ``__call__`` or ``around`` for
the batches of a buffer; ``rlx.buffer`` makes those with ``around`` callable. This package imports no torch: it uses
only methods of the batches' tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Key as Key
from rlx.schema import Role, Schema, name_of
from rlx.schema import as_path as as_path
from rlx.store.trajectories import Trajectories

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Rows = NDArray[np.int64]


@runtime_checkable
class Transform(Protocol):
    """A pure function of the steps of some trajectories; it can be pickled to another process.

    Blocks come in storage order and may end inside a trajectory. Their ``episodes`` are the numbers of the trajectories
    in the dataset, for messages, and are passed on unchanged. Input arrays must not be written to: they may be in a
    memory map.
    """

    def schema(self, schema: Schema) -> Schema:
        """Return the schema of the result.

        Raises:
            TransformError: the schema does not suit the transform.
        """

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the transformed steps. The result does not depend on the blocks' boundaries.

        Args:
            blocks: whole trajectories, in order.
            schema: schema of the input.

        Raises:
            TransformError: a step does not suit the transform; names the trajectory.
        """


class PerBlock:
    """A transform that handles each block by itself."""

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the transformed block."""
        raise NotImplementedError

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the transformed blocks."""
        for block in blocks:
            yield self.apply(block, schema)


class Pointwise:
    """A transform of batches that handles each step by itself, and ignores keys that a batch lacks."""

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the transformed batch."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class BatchChance:
    """The random numbers of a batch: a function of a seed, the batch and the place of a step in it.

    So a resumed run, threads that read ahead, and any number of ranks draw the same.

    Args:
        number: of the batch.
        places: [n] where each step is in the whole batch, of which a rank has a part; in order by default.
    """

    number: int
    places: Rows | None = None

    def uniform(self, seed: int, steps: int, width: int) -> NDArray[np.float64]:
        """Return [steps, width] numbers of 0 to below 1.

        Example:
            >>> whole = BatchChance(7).uniform(0, 5, 2)
            >>> bool((BatchChance(7, np.array([4, 1])).uniform(0, 2, 2) == whole[[4, 1]]).all())
            True
        """
        counter = np.array([0, 0, self.number % 2**64, 0], np.uint64)
        rng = np.random.Generator(np.random.Philox(key=seed % 2**64, counter=counter))
        if self.places is None:
            return rng.random((steps, width))
        drawn: NDArray[np.float64] = rng.random((int(self.places.max(initial=-1)) + 1, width))[self.places]
        return drawn


@dataclass(frozen=True)
class Random:
    """Base of transforms of batches that draw random numbers: those of one batch, or of one call after the other."""

    _chance: BatchChance | None = field(default=None, init=False, repr=False)
    _calls: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def for_batch(self, chance: BatchChance) -> Self:
        """Return the transform with the random numbers of one batch."""
        drawn = copy(self)  # checked already
        object.__setattr__(drawn, "_chance", chance)
        return drawn

    def _next_chance(self) -> BatchChance:
        if self._chance is not None:
            return self._chance
        self._calls[0] += 1
        return BatchChance(self._calls[0])


def is_random(transform: Any) -> TypeGuard[Random]:
    """Return whether a transform draws random numbers."""
    return hasattr(transform, "for_batch")


class Neighbours(Protocol):
    """Which stored rows follow each other in time."""

    def remaining(self, rows: Rows) -> Rows:
        """Return [n] stored steps from each row to the end of its trajectory, itself included; at least 1."""

    def elapsed(self, rows: Rows) -> Rows:
        """Return [n] stored steps of the trajectory before each row."""

    def follow(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] each row and those that follow it in time; -1 after the end of the trajectory."""

    def after(self, rows: Rows, steps: Rows) -> Rows:
        """Return [n] the row ``steps`` after each row, 0 being itself; -1 after the end of the trajectory."""

    def precede(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] the preceding rows, oldest first, each row itself last; -1 before the first stored step."""


class Reader(Protocol):
    """Reader of stored steps, after some of the transforms of a buffer."""

    @property
    def index(self) -> Neighbours:
        """Which rows follow each other."""

    def read(self, rows: Rows, keys: Sequence[Key] | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows; with ``keys``, at least the stored ones among them."""

    def pick(self, rows: Rows, keys: Sequence[Key] | None = None) -> TensorDictBase:
        """Return the steps [n] at these rows, which may repeat: each row is read once."""


class NeighbourTransform(Protocol):
    """A transform of batches that reads other steps than those of the batch."""

    def around(self, rows: Rows, keys: Sequence[Key] | None, below: Reader) -> TensorDictBase:
        """Return the transformed steps [n] at these rows.

        Args:
            rows: [n] rows.
            keys: the TED keys that are needed, or None for all.
            below: reads any rows, with the earlier transforms applied.
        """


def needs_neighbours(transform: Any) -> TypeGuard[NeighbourTransform]:
    """Return whether a transform reads other steps than those of the batch."""
    return hasattr(transform, "around")  # isinstance takes 20 times as long, which every sample would pay


def as_keys(keys: Key | Sequence[Key]) -> tuple[Key, ...]:
    """Return keys as a tuple; a text is one key.

    Raises:
        TransformError: it is neither a text nor a sequence.
    """
    if not isinstance(keys, Iterable):
        raise TransformError(f"keys {keys!r}: expected a text, or a list of texts")
    return (keys,) if isinstance(keys, str) else tuple(keys)


def leaves_named(batch: TensorDictBase, keys: Sequence[Key]) -> list[tuple[str, ...]]:
    """Return the paths of a batch that have these keys, at the root and under ``next``.

    Raises:
        TransformError: the batch has no such key.
    """
    found = []
    for key in keys:
        paths = [path for path in (as_path(key), ("next", *as_path(key))) if batch.get(path, None) is not None]
        if not paths:
            names = ["/".join(as_path(leaf)) for leaf in batch.keys(True, True)]
            raise TransformError(f"unknown key {name_of(as_path(key))!r}: expected one of {', '.join(names)}")
        found += paths
    return found


def wanted(key: Key, keys: Sequence[Key] | None) -> bool:
    """Return whether this leaf is one of the keys or below one; True if ``keys`` is None."""
    if keys is None:
        return True
    path = as_path(key)
    return any(path[: len(other)] == other for other in map(as_path, keys))


@dataclass(frozen=True, slots=True)
class Seen:
    """The input of a transform, before the dataset is processed.

    Args:
        schema: schema of the input.
        blocks: returns an iterator over the first blocks; empty for a dataset without steps.
        statistics: the manifest's moments of the fields that no earlier transform has changed, by name.
        start: [N] the first step of every trajectory in the dataset.
    """

    schema: Schema
    blocks: Callable[[], Iterator[Block]]
    statistics: Mapping[str, Any]
    start: NDArray[np.int64]


@runtime_checkable
class Learner(Protocol):
    """A transform whose parameters come from the data, such as ``Normalize``."""

    def learned(self, seen: Seen) -> Transform:
        """Return the transform, fitted to the data.

        Raises:
            TransformError: the data do not suit it.
        """


@runtime_checkable
class Selection(Protocol):
    """A selection of trajectories; the others are never read.

    Selections come before all transforms, and see the trajectories of the dataset.
    """

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return [N] whether to keep each trajectory that earlier selections kept.

        Args:
            table: the trajectories.
            shard: [N] number of each trajectory's shard.

        Raises:
            TransformError: the table lacks a column.
        """


@dataclass(frozen=True, slots=True)
class Link:
    """One transform of a chain.

    Args:
        name: name under which its dropped steps are counted.
        transform: the transform.
        schema: schema of its input.
    """

    name: str
    transform: Transform
    schema: Schema


@dataclass(frozen=True, slots=True)
class Chain:
    """Transforms in order of application.

    Args:
        links: the transforms.
        schema: schema of the result.
    """

    links: Sequence[Link]
    schema: Schema

    def blocks(self, blocks: Iterator[Block], dropped: Counter[str]) -> Iterator[Block]:
        """Yield the transformed steps of whole trajectories.

        Args:
            blocks: the trajectories, in order; ``episodes`` are their numbers.
            dropped: receives the number of dropped steps by transform, at the end.
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
    """Return the chain of transforms, fitted to a dataset.

    Args:
        transforms: the transforms and their names.
        schema: schema of the dataset.
        read: returns an iterator over the first trajectories of the dataset.
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
    """Return the block with zeros for unrecorded final observations, which transforms may have changed."""
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
