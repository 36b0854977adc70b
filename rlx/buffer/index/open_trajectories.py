"""Which trajectories may still be continued: by id, lane, and the observation that must follow."""

from collections.abc import Set
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.index.continuity import UNKNOWN
from rlx.buffer.protocol import Rows

# Open trajectories of which nothing is stored any more that are remembered, in case a step of them still comes.
MAX_WAITING = 1 << 16


class OpenTrajectories:
    """Index of open trajectories, to find the one that a run continues: of its id, expecting the observation that the
    run begins with."""

    def __init__(self) -> None:
        # By (id, digest of what must follow): the trajectories that are open in each lane.
        self._open: dict[tuple[int, int], dict[int, list[int]]] = {}
        self._waiting: dict[int, tuple[int, int, int]] = {}

    def assign(
        self,
        lane: Rows,
        ids: Rows | None,
        ends: NDArray[np.bool_],
        detached: NDArray[np.bool_],
        begins: Rows,
        expects: Rows,
        spare: Rows,
        wandering: Set[int] = frozenset(),
    ) -> tuple[Rows, Rows, Rows]:
        """Return [m] the trajectory of each run, in the order in which they were written.

        Also [k] the run that each new trajectory starts with; the first k spare numbers are theirs. And [n] the
        trajectories that nothing can follow now.

        A run continues the trajectory of its lane that matches, else the only one of another lane. Where several match
        it continues none: that two sources become one is worse than that one becomes two.

        Args:
            ids: the id of each; None keeps every lane to itself.
            ends: whether nothing follows the run.
            detached: whether the run is new whatever is open.
            begins: digest of what each starts from; ``UNKNOWN`` without evidence, and then the id alone decides.
            spare: [m] numbers for those that are new.
        """
        keys = np.zeros(len(lane), np.int64) if ids is None else ids
        local = {0} if ids is None else _in_several_lanes(keys, lane) - wandering
        unused = iter(spare.tolist())
        trajectory, started_by, closed = [], [], []
        columns = (column.tolist() for column in (keys, lane, ends, detached, begins, expects))
        for run, (key, place, end, is_new, begin, expect) in enumerate(zip(*columns, strict=True)):
            number = -1
            if begin == UNKNOWN or not is_new:
                number = self._take(key, begin, place, is_local=key in local)
            if number >= 0 and is_new:
                closed.append(number)
            if number < 0 or is_new:
                number = next(unused)
                started_by.append(run)
            trajectory.append(number)
            if end:
                closed.append(number)
            else:
                self.hold(number, key, place, expect)
        return np.array(trajectory, np.int64), np.array(started_by, np.int64), np.array(closed, np.int64)

    def _take(self, key: int, digest: int, lane: int, *, is_local: bool) -> int:
        """Remove and return the trajectory that a run in a lane continues; -1 if none or several qualify."""
        lanes = self._open.get((key, digest))
        if lanes is None:
            return -1
        if lane not in lanes:
            if is_local or len(lanes) != 1:
                return -1
            (lane,) = lanes
        if len(lanes[lane]) != 1:
            return -1
        (number,) = lanes[lane]
        self._drop(number, key, lane, digest)
        self._waiting.pop(number, None)
        return number

    def _drop(self, number: int, key: int, lane: int, digest: int) -> None:
        lanes = self._open[key, digest]
        lanes[lane].remove(number)
        if not lanes[lane]:
            del lanes[lane]
        if not lanes:
            del self._open[key, digest]

    def wait(self, numbers: Rows, ids: Rows, lanes: Rows, expects: Rows) -> None:
        """Remember open trajectories without stored steps."""
        places = zip(ids.tolist(), lanes.tolist(), expects.tolist(), strict=True)
        self._waiting.update(zip(numbers.tolist(), places, strict=True))

    def put(self, number: int, key: int, lane: int, expect: int) -> None:
        """Add an open trajectory without stored steps."""
        self.hold(number, key, lane, expect)
        self._waiting[number] = (key, lane, expect)

    def hold(self, number: int, key: int, lane: int, expect: int) -> None:
        """Add an open trajectory."""
        self._open.setdefault((key, expect), {}).setdefault(lane, []).append(number)

    def forget(self) -> Rows:
        """Remove and return [n] the oldest waiting trajectories beyond the limit."""
        if len(self._waiting) <= MAX_WAITING:
            return np.empty(0, np.int64)
        forgotten = list(islice(self._waiting, len(self._waiting) - MAX_WAITING))
        for number in forgotten:
            self._drop(number, *self._waiting.pop(number))
        return np.array(forgotten, np.int64)

    @property
    def waiting(self) -> dict[int, tuple[int, int, int]]:
        """(id, lane, expects) of the open trajectories without stored steps, by number, the oldest first."""
        return dict(self._waiting)


def _in_several_lanes(keys: Rows, lane: Rows) -> set[int]:
    """Return the ids that come up in more than one lane: they cannot be one trajectory."""
    if len(lane) == 0 or lane.min() == lane.max():
        return set()
    pairs = np.unique(np.stack([keys, lane]), axis=1)[0]
    return set(pairs[1:][pairs[1:] == pairs[:-1]].tolist())
