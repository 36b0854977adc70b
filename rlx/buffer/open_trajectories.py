"""Which trajectories may still go on, by id and lane."""

from collections.abc import Set
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows

# Open trajectories of which nothing is stored any more that are remembered, in case a step of them still comes.
MAX_WAITING = 1 << 16


@dataclass(frozen=True, slots=True)
class Assigned:
    """Which trajectories runs belong to.

    Attributes:
        trajectory: [m] number of each run's.
        started_by: [k] the run that each new one starts with; the first k spare numbers are theirs.
        closed: [n] those that nothing can follow now.
    """

    trajectory: Rows
    started_by: Rows
    closed: Rows


class OpenTrajectories:
    """Remembers, for every id, the open trajectory of every lane that has one."""

    def __init__(self) -> None:
        self._by_id: dict[int, dict[int, int]] = {}
        self._waiting: dict[int, tuple[int, int]] = {}

    def assign(
        self,
        lane: Rows,
        ids: Rows | None,
        ends: NDArray[np.bool_],
        detached: NDArray[np.bool_],
        spare: Rows,
        wandering: Set[int] = frozenset(),
    ) -> Assigned:
        """The trajectory of each run [m], in the order in which they were written.

        Args:
            lane: the lane of each.
            ids: the id of each; None keeps every lane to itself.
            ends: whether nothing follows the run.
            detached: whether the run is new whatever is open.
            spare: [m] numbers for those that are new.
            wandering: ids known to move between lanes.
        """
        keys = np.zeros(len(lane), np.int64) if ids is None else ids
        local = {0} if ids is None else _in_several_lanes(keys, lane) - wandering
        unused = iter(spare.tolist())
        trajectory, started_by, closed = [], [], []
        runs = zip(keys.tolist(), lane.tolist(), ends.tolist(), detached.tolist(), strict=True)
        for run, (key, place, end, is_new) in enumerate(runs):
            holders = self._by_id.setdefault(key, {})
            number = self._take(holders, place, is_local=key in local)
            if number >= 0 and is_new:
                closed.append(number)
            if number < 0 or is_new:
                number = next(unused)
                started_by.append(run)
            trajectory.append(number)
            if end:
                closed.append(number)
            else:
                holders[place] = number
            if not holders:
                del self._by_id[key]
        return Assigned(*(np.array(numbers, np.int64) for numbers in (trajectory, started_by, closed)))

    def _take(self, holders: dict[int, int], lane: int, *, is_local: bool) -> int:
        """Removes and returns the one that a chunk in a lane goes on with; -1 if there is none."""
        if lane not in holders:
            if is_local or len(holders) != 1:
                return -1
            lane = next(iter(holders))
        number = holders.pop(lane)
        self._waiting.pop(number, None)
        return number

    def wait(self, numbers: Rows, ids: Rows, lanes: Rows) -> None:
        """Remembers open trajectories of which nothing is stored any more."""
        places = zip(ids.tolist(), lanes.tolist(), strict=True)
        self._waiting.update(zip(numbers.tolist(), places, strict=True))

    def put(self, number: int, key: int, lane: int) -> None:
        """Adds an open trajectory of which nothing is stored."""
        self.hold(number, key, lane)
        self._waiting[number] = (key, lane)

    def hold(self, number: int, key: int, lane: int) -> None:
        """Adds an open trajectory."""
        self._by_id.setdefault(key, {})[lane] = number

    def forget(self) -> Rows:
        """[n] the waiting ones that were too many, the oldest; nothing goes on with them now."""
        forgotten = list(islice(self._waiting, max(0, len(self._waiting) - MAX_WAITING)))
        for number in forgotten:
            key, lane = self._waiting.pop(number)
            holders = self._by_id[key]
            del holders[lane]
            if not holders:
                del self._by_id[key]
        return np.array(forgotten, np.int64)

    @property
    def waiting(self) -> dict[int, tuple[int, int]]:
        """(id, lane) of the open trajectories of which nothing is stored, by number, the oldest first."""
        return dict(self._waiting)


def _in_several_lanes(keys: Rows, lane: Rows) -> set[int]:
    """The ids that come up in more than one lane: they cannot be one trajectory."""
    if len(lane) == 0 or lane.min() == lane.max():
        return set()
    pairs = np.unique(np.stack([keys, lane]), axis=1)[0]
    return set(pairs[1:][pairs[1:] == pairs[:-1]].tolist())
