"""The index of a ring storage: which row follows which in time, also of interleaved trajectories."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import UNKNOWN, Flags, Links, StoredLinks
from rlx.buffer.index.ring import Ring
from rlx.buffer.index.segments import Segments, empty_segments, load_segments, save_segments
from rlx.buffer.protocol import Rows

# Ids (or None), done, and links between steps (or None), of the steps at rows.
Columns = Callable[[Rows], tuple[Rows | None, Flags, Links | StoredLinks | None]]
_GENERATIONS = count(step=1 << 40)


def first_generation() -> int:
    """Return a generation that no other index of this process has: an emptied storage has a new index."""
    return next(_GENERATIONS)


class RingTrajectoryIndex:
    """Trajectories by id, by flags that end them, or by both; a look-up is one binary search among segments.

    A chunk continues the open trajectory of its id in its lane, if it begins with the last next observation of that one
    (``rlx.buffer.index.continuity``); otherwise that in another lane, unless several lanes have the id: then each
    numbers its own. After the end of a trajectory, its id stands for a new one. Without ids the steps of a
    lane follow each other until a flag ends the trajectory.

    Args:
        head: [lanes] time of the next step of each lane, if earlier steps are lost.
        columns: returns ids (or None) and done of the steps at rows; required by ``changed``.

    Example:
        >>> index = RingTrajectoryIndex(size=8)
        >>> index.write(np.arange(5), np.array([7, 7, 9, 9, 7]), np.zeros(5, bool))
        >>> index.follow(np.array([0, 2]), steps=3)
        array([[ 0,  1,  4],
               [ 2,  3, -1]])
    """

    def __init__(self, size: int, lanes: int = 1, *, head: Rows | None = None, columns: Columns | None = None) -> None:
        self.generation = first_generation()
        self._columns = columns
        self._stale: Rows | None = None
        self._segments = empty_segments(size, np.zeros(lanes, np.int64) if head is None else head)

    @classmethod
    def of(cls, ring: Ring, columns: Columns) -> Self:
        """Return the index of the stored steps of a ring, as if lane after lane had been written."""
        index = cls(ring.size, ring.lanes, head=ring.head, columns=columns)
        if len(ring):
            rows = ring.row_at(np.arange(len(ring)))
            ids, done, links = columns(rows)
            start, last, run = _runs(rows // ring.size, ids, done, links)
            # As far as is known, steps lost in a lane belonged to the trajectory that it starts with now.
            is_first = np.diff(run[0], prepend=-1) != 0
            lost = (is_first & (ring.head[run[0]] > 0)).astype(np.int64)
            index._segments.append(*run, **_evidence(links, start, last) | {"lost": lost})
        return index

    @classmethod
    def restored(cls, ring: Ring, columns: Columns, state: Mapping[str, torch.Tensor]) -> Self:
        """Return the index of a ``state_dict``, over a ring with the same cursors."""
        index = cls(ring.size, ring.lanes, columns=columns)
        index._segments = load_segments(ring, state)
        return index

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the links between segments, as int64 tensors whose length is the number of segments."""
        self._settle()
        return save_segments(self._segments)

    def __len__(self) -> int:
        return len(self._segments.ring)

    def write(self, rows: Rows, ids: Rows | None, done: Flags, links: Links | None = None) -> None:
        """Index new steps, in time order within a lane, at the lanes' cursors.

        Args:
            rows: [n] rows of the steps; more than a lane has if the first are overwritten at once.
            ids: [n] trajectory ids, or None.
            done: [n] whether the step ends its trajectory.
            links: evidence of which steps follow each other; by default, ids and flags decide.
        """
        if not len(rows):
            return
        start, last, run = _runs(rows // self._segments.ring.size, ids, done, links)
        self.write_runs(*run, **_evidence(links, start, last))

    def write_runs(self, lane: Rows, length: Rows, ids: Rows | None, done: Flags, **evidence: Any) -> None:
        """Index runs [m] of steps of one trajectory each, as ``write`` does for rows.

        Args:
            length: [m] steps, at least 1.
            ids: [m] ids, or None.
            evidence: what ``Segments.append`` knows of what each run follows.
        """
        self._settle()
        self._segments.append(lane, length, ids, done, **evidence)
        self.generation += 1

    def changed(self, replaced: Rows) -> None:
        """Mark ids or flags of stored steps as changed; all trajectories are recomputed when next needed.

        Args:
            replaced: [n] rows that now hold other steps, which follow nothing; may be empty.
        """
        self._stale = replaced if self._stale is None else np.append(self._stale, replaced)
        self.generation += 1

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows that hold the 0th, 1st, ... stored step, lane by lane, oldest first."""
        return self._segments.ring.row_at(ordinals)

    def remaining(self, rows: Rows) -> Rows:
        """Return [n] steps from each row to the end of its trajectory as far as it is stored, itself included."""
        segment, _, offset = self._locate(rows)
        remaining: Rows = self._segments.trajectories["length"][segment["trajectory"]] - offset
        return remaining

    def elapsed(self, rows: Rows) -> Rows:
        """Return [n] stored steps of the trajectory before each row."""
        segment, _, offset = self._locate(rows)
        return self._elapsed(segment, offset)

    def _elapsed(self, segment: NDArray[np.void], offset: Rows) -> Rows:
        return offset - self._lost(self._segments.trajectories["head"][segment["trajectory"]])[1]

    def at_reset(self, rows: Rows) -> Flags:
        """Return [n] whether each row is the first step of its episode, not the oldest left of an overwritten one."""
        first: Flags = self._locate(rows)[2] == 0
        return first

    def trajectories(self) -> tuple[Rows, Rows]:
        """Return [N] the first row, and [N] the stored steps, of every trajectory, in the order of their first
        write."""
        self._settle()
        table = self._segments.trajectories
        # Column by column: copies of whole records are several times as slow.
        found = np.flatnonzero(table["head"] >= 0)
        found = found[np.argsort(table["born"][found], kind="stable")]
        head = table["head"][found]
        time, lost = self._lost(head)
        return self._segments.ring.row(self._segments.table["lane"][head], time), table["length"][found] - lost

    def follow(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] each row and those that follow it in time; -1 after the end of the trajectory."""
        segment, time, _ = self._locate(rows)
        result = np.full((len(rows), steps), -1, np.int64)
        column = np.arange(steps)
        active, filled = np.arange(len(rows)), np.zeros(len(rows), np.int64)
        while len(active):
            count = np.minimum(segment["time"] + segment["length"] - time, steps - filled)
            wanted = (column >= filled[:, None]) & (column < (filled + count)[:, None])
            found = self._segments.ring.row(segment["lane"][:, None], (time - filled)[:, None] + column)
            result[active] = np.where(wanted, found, result[active])
            filled = filled + count
            goes_on = (filled < steps) & (segment["next"] >= 0)
            active, filled = active[goes_on], filled[goes_on]
            segment = self._segments.table[segment["next"][goes_on]]
            time = segment["time"]
        return result

    def after(self, rows: Rows, steps: Rows) -> Rows:
        """Return [n] the row ``steps`` after each row, 0 being itself; -1 after the end of the trajectory."""
        segment, time, offset = self._locate(rows)
        is_there = steps < self._segments.trajectories["length"][segment["trajectory"]] - offset
        time, left = time.copy(), np.where(is_there, steps, 0)
        while (far := np.flatnonzero(time + left >= segment["time"] + segment["length"])).size:
            left[far] -= segment["time"][far] + segment["length"][far] - time[far]
            segment[far] = self._segments.table[segment["next"][far]]
            time[far] = segment["time"][far]
        return np.where(is_there, self._segments.ring.row(segment["lane"], time + left), -1)

    def precede(self, rows: Rows, steps: int) -> Rows:
        """Return [n, steps] the preceding rows, oldest first, and itself last; -1 before the first stored step."""
        segment, time, offset = self._locate(rows)
        count = np.minimum(self._elapsed(segment, offset), steps - 1)
        # From the row `count` steps earlier they follow each other, from the left; they belong to the right.
        following = self.follow(self._back(segment, time, count), steps)
        column = np.arange(steps) - (steps - 1 - count)[:, None]
        return np.where(column < 0, -1, np.take_along_axis(following, np.maximum(column, 0), axis=1))

    def _back(self, segment: NDArray[np.void], time: Rows, steps: Rows) -> Rows:
        """Return [n] the rows ``steps`` earlier, all of them stored."""
        segment, time, left = segment.copy(), time.copy(), steps.copy()
        while (far := np.flatnonzero(left > time - segment["time"])).size:
            left[far] -= time[far] - segment["time"][far] + 1
            segment[far] = self._segments.table[segment["previous"][far]]
            time[far] = segment["time"][far] + segment["length"][far] - 1
        return self._segments.ring.row(segment["lane"], time - left)

    def _locate(self, rows: Rows) -> tuple[NDArray[np.void], Rows, Rows]:
        """Return [n] the segment of each row, its time, and its place in the whole trajectory."""
        self._settle()
        lane, time = self._segments.ring.locate(rows)
        segment = self._segments.table[self._segments.log.at(lane, time)]
        return segment, time, segment["before"] + time - segment["time"]

    def _lost(self, head: Rows) -> tuple[Rows, Rows]:
        """Return [n] time of the first stored step of segments that start trajectories, and [n] the steps lost before
        it."""
        lane, begin, before = (self._segments.table[name][head] for name in ("lane", "time", "before"))
        time = np.maximum(begin, self._segments.ring.head[lane])
        return time, before + time - begin

    def _settle(self) -> None:
        if self._stale is None:
            return
        if self._columns is None:
            raise ValueError("an index without columns cannot learn what changed")
        # In this order: concurrent threads do the same work, and none takes a stale index for a settled one.
        self._segments = _recut(self._segments, self._columns, self._stale)
        self._stale = None


def _runs(
    lane: Rows, ids: Rows | None, done: Flags, links: Links | StoredLinks | None
) -> tuple[Rows, Rows, tuple[Rows, Rows, Rows | None, Flags]]:
    """Return first and last step, lane, length, id and done of the runs among steps in the order of writing."""
    starts = _run_starts(lane, ids, done, None if links is None else links.breaks | links.fresh)
    last = np.append(starts[1:], len(lane)) - 1
    return starts, last, (lane[starts], last + 1 - starts, None if ids is None else ids[starts], done[last])


def _evidence(links: Links | StoredLinks | None, start: Rows, last: Rows) -> dict[str, Any]:
    if links is None:
        return {}
    if isinstance(links, Links):
        links.settle(start, last)
    fresh = links.fresh[start]
    evidence = {"detached": fresh, "begins": links.begins(start), "expects": links.expects(last)}
    # A run that is new, but not where an episode starts, has lost an unknown number of steps.
    return evidence | {"lost": (~fresh).astype(np.int64)} if links.resets_known else evidence


def _run_starts(lane: Rows, ids: Rows | None, done: Flags, forced: Flags | None = None) -> Rows:
    """Return [m] where, among steps in the order of writing, another lane, id or trajectory starts, or it is forced."""
    starts = np.empty(len(lane), bool)
    starts[:1] = True
    np.not_equal(lane[1:], lane[:-1], out=starts[1:])
    starts[1:] |= done[:-1]
    if ids is not None:
        starts[1:] |= ids[1:] != ids[:-1]
    if forced is not None:
        starts |= forced
    return np.flatnonzero(starts)


def _recut(old: Segments, columns: Columns, replaced: Rows) -> Segments:
    """Return the same steps in the order of writing, cut by the present ids and flags."""
    numbers = old.in_order()
    segment = old.table[numbers]
    begin = np.maximum(segment["time"], old.ring.head[segment["lane"]])
    length = segment["time"] + segment["length"] - begin
    first = np.cumsum(length) - length
    lane = np.repeat(segment["lane"], length)
    rows = old.ring.row(lane, np.arange(len(lane)) + np.repeat(begin - first, length))
    ids, done, links = columns(rows)

    sealed = np.isin(rows, replaced)
    detached = sealed.copy()
    detached[1:] |= sealed[:-1]
    lost = np.zeros(len(rows), np.int64)
    starts_one = (old.trajectories["head"][segment["trajectory"]] == numbers) | segment["detached"]
    lost[first] = np.where(starts_one, segment["before"] + begin - segment["time"], 0)
    lost[detached] = np.maximum(lost[detached], 1)  # where its trajectory started is not known
    detached[first] |= segment["detached"]
    sealed[first + length - 1] |= segment["sealed"]
    forced = detached.copy()
    forced[first] = True

    start = _run_starts(lane, ids, done, forced)
    is_whole = begin == segment["time"]
    last = np.append(start[1:], len(rows)) - 1
    new = empty_segments(old.ring.size, old.ring.head)
    new.remember(old)
    new.append(
        lane[start],
        last + 1 - start,
        None if ids is None else ids[start],
        done[last],
        lost=lost[start],
        detached=detached[start],
        sealed=sealed[last],
        begins=_digests(first[is_whole], segment["begins"][is_whole], start, None if links is None else links.begins),
        expects=_digests(first + length - 1, segment["expects"], last, None if links is None else links.expects),
        wandering=set(
            old.trajectories["id"][segment["trajectory"]][old.trajectories["is_spread"][segment["trajectory"]]].tolist()
        ),
    )
    return new


def _digests(at: Rows, values: Rows, wanted: Rows, compute: Callable[[Rows], Rows] | None) -> Rows:
    """Return [m] the values [n] that are known of the places [n] ``at``, ascending;
    those of other wanted ones computed."""
    known = np.isin(wanted, at)
    found = np.full(len(wanted), UNKNOWN, np.int64)
    found[known] = values[np.searchsorted(at, wanted[known])]
    if compute is not None and not known.all():
        found[~known] = compute(wanted[~known])
    return found
