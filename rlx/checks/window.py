"""Windows: the steps of a block, with the trajectory and the position of each step and of each observation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role, Schema

Rows = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Some consecutive steps of a dataset.

    Args:
        block: the steps.
        schema: fields of a step.
        first: number of the trajectory of the block's first segment.
        offset: steps of that trajectory in earlier windows.
    """

    block: Block
    schema: Schema
    first: int
    offset: int

    def __getitem__(self, name: str) -> Rows:
        rows: Rows = self.block.data[name]
        return rows

    def place(self, name: str, rows: Indices) -> tuple[Indices, Indices]:
        """Return trajectory and step of these rows [n] of a field; an observation has the step that it precedes."""
        if self.schema[name].role == Role.OBSERVATION:
            return self.row_trajectory[rows], self.row_position[rows]
        return self.trajectory[rows], self.position[rows]

    @cached_property
    def _segment(self) -> Indices:
        return np.repeat(np.arange(len(self.block.lengths)), self.block.lengths)

    @cached_property
    def trajectory(self) -> Indices:
        """[S] number of the trajectory of each step."""
        return self._segment + self.first

    @cached_property
    def position(self) -> Indices:
        """[S] number of each step in its trajectory."""
        begins = np.cumsum(self.block.lengths) - self.block.lengths
        position: Indices = np.arange(self.block.steps) - begins[self._segment] + self.offset * (self._segment == 0)
        return position

    @cached_property
    def closed(self) -> NDArray[np.bool_]:
        """[n] whether each segment's trajectory ends in the window."""
        return np.arange(len(self.block.lengths)) < self.block.closed

    @cached_property
    def _row_segment(self) -> Indices:
        return np.repeat(np.arange(len(self.block.lengths)), self.block.lengths + self.closed)

    @cached_property
    def row_trajectory(self) -> Indices:
        """[S + closed] number of the trajectory of each observation."""
        return self._row_segment + self.first

    @cached_property
    def row_position(self) -> Indices:
        """[S + closed] number of each observation in its trajectory: that of the step that it precedes."""
        rows = self.block.lengths + self.closed
        begins = np.cumsum(rows) - rows
        segment = self._row_segment
        position: Indices = np.arange(int(rows.sum())) - begins[segment] + self.offset * (segment == 0)
        return position

    @cached_property
    def recorded(self) -> NDArray[np.bool_]:
        """[S + closed] whether the source recorded each observation."""
        known = np.ones(len(self._row_segment), bool)
        finals = np.cumsum(self.block.lengths + self.closed) - 1
        known[finals[self.closed]] = self.block.final_recorded[self.closed]
        return known

    @cached_property
    def last(self) -> Indices:
        """[k] the last step of each trajectory that ends in the window with a step."""
        return (np.cumsum(self.block.lengths) - 1)[self.closed & (self.block.lengths > 0)]

    def known(self, name: str) -> Indices:
        """Return [m] rows of a field that were recorded."""
        if self.schema[name].role == Role.OBSERVATION:
            return np.flatnonzero(self.recorded)
        return np.arange(self.block.steps)


def windows(blocks: Iterable[Block], schema: Schema) -> Iterator[Window]:
    """Yield a window for every block, in order.

    Example:
        >>> from rlx.block import single
        >>> schema = Schema.of(observation=("int8", ()), action=("int8", ()))
        >>> flags = np.array([False, True])
        >>> data = {"observation": np.array([5, 6, 7], "i1"), "action": np.zeros(2, "i1"),
        ...         "reward": np.ones(2, "f4"), "terminated": flags, "truncated": ~flags & flags}
        >>> [window.row_position.tolist() for window in windows([single(data, episode=0)] * 2, schema)]
        [[0, 1, 2], [0, 1, 2]]
    """
    first = offset = 0
    for block in blocks:
        yield Window(block, schema, first, offset)
        if len(block.lengths):
            offset = int(block.lengths[-1]) + (offset if len(block.lengths) == 1 else 0) if block.is_open else 0
            first += block.closed
