"""Where the rows of a lane do not continue each other, whatever their ids say: for indices that are made later."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import UNKNOWN, Links, StoredLinks
from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError

_BREAK, _FRESH = np.uint8(1), np.uint8(2)
_NOWHERE = -2  # a row that no step was read from


class Seams:
    """A byte per row: whether its step continues the row before it in its lane, or (fresh) no step at all.

    Args:
        size: rows per lane.
        lanes: number of lanes.
    """

    def __init__(self, size: int, lanes: int) -> None:
        self._size = size
        self._lanes = lanes
        # The start that the next step of each lane needs to continue the last one.
        self._expects = np.full(lanes, UNKNOWN, np.int64)
        self._origin = np.full(lanes, -1, np.int64)

    @cached_property
    def _marks(self) -> NDArray[np.uint8]:
        # Pages that nothing was marked in take no memory; a storage that was never written to, none at all.
        return np.zeros(self._size * self._lanes, np.uint8)

    def note(self, rows: Rows, links: Links) -> None:
        """Mark new steps [n] at rows, lane after lane, each lane in order of time."""
        lane = links.lane
        first, last = links.first, links.last
        fresh, breaks = links.fresh | links.jumps, links.breaks.copy()
        breaks[first] |= links.begins(first) != self._expects[lane[first]]
        fresh[first] |= links.origin[first] != self._origin[lane[first]]
        self._marks[rows] = breaks * _BREAK | fresh * _FRESH
        self._expects[lane[last]] = links.expects(last)
        self._origin[lane[last]] = links.following[last]

    def replaced(self, rows: Rows, tail: Rows) -> None:
        """Mark steps that replace others: they continue nothing, and nothing continues them.

        Args:
            rows: [n] their rows.
            tail: [lanes] time of the next step of each lane.
        """
        lane, place = np.divmod(rows, self._size)
        after = (place + 1) % self._size
        self._marks[rows] = self._marks[lane * self._size + after] = _BREAK | _FRESH
        # The next step of a lane overwrites the mark after its last step.
        self._origin[lane[after == tail[lane] % self._size]] = _NOWHERE

    def links(self, rows: Rows, read: Callable[[Rows, bool], Sequence[torch.Tensor]]) -> StoredLinks:
        """Return how stored steps [n] continue those before and after them; ``read`` gives their observations."""
        marks = self._marks[rows]
        return StoredLinks(read, rows, (marks & _FRESH) > 0, marks > 0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the marked rows [n, 2] with their marks, and what each lane expects [lanes, 2]; int64."""
        rows = np.flatnonzero(self._marks)
        return {
            "marked": torch.from_numpy(np.stack([rows, self._marks[rows].astype(np.int64)], axis=1)),
            "lanes": torch.from_numpy(np.stack([self._expects, self._origin], axis=1)),
        }

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_marks"}
        return state | {"marked": self.state_dict()["marked"]} if "_marks" in self.__dict__ else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        marked = state.pop("marked", None)
        self.__dict__.update(state)
        if marked is not None:
            rows, marks = marked.numpy().T
            self._marks[rows] = marks

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what ``state_dict`` described.

        Raises:
            SchemaMismatchError: it has other rows or lanes.
        """
        marked, lanes = state["marked"].numpy(), state["lanes"].numpy()
        if lanes.shape != (len(self._expects), 2) or marked.ndim != 2 or marked.shape[1:] != (2,):
            raise SchemaMismatchError(f"checkpoint: seams of {len(lanes)} lanes, expected {len(self._expects)}")
        rows, marks = marked.T
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self._marks):
            raise SchemaMismatchError(f"checkpoint: seams at rows up to {rows.max()}, expected {len(self._marks):,}")
        self._marks[rows] = marks
        self._expects, self._origin = lanes.T.copy()
