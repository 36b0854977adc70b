"""The index of a ring storage: which row follows which in time, also of interleaved trajectories."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import Evidence, Facts, Flags
from rlx.buffer.index.ring import Ring
from rlx.buffer.index.segments import Runs, Segments, empty_segments, load_segments, save_segments
from rlx.buffer.protocol import Rows
from rlx.errors import SamplingError

logger = logging.getLogger(__name__)
# What is declared of the steps at rows.
Columns = Callable[[Rows], Facts]
_GENERATIONS = count(step=1 << 40)


def first_generation() -> int:
    """Return a generation that no other index of this process has: an emptied storage has a new index."""
    return next(_GENERATIONS)


class RingTrajectoryIndex:
    """Trajectories by id, by flags that end them, or by both; a look-up is one binary search among segments.

    Within a write, steps of one id follow each other. What a write begins with continues the open trajectory of its id
    in its lane, or that in another lane, unless several lanes of the write have the id: then each numbers its own.
    Where several sources may bring the same id, observations decide (``rlx.buffer.index.continuity``). After the end of
    a trajectory, its id stands for a new one. Without ids the steps of a lane follow each other until a flag ends the
    trajectory.

    Args:
        ring: the lanes whose steps are indexed when somebody asks; without, those of ``write``.
        columns: returns what is declared of the steps at rows; required with a ring, and by ``changed``.

    Example:
        >>> index = RingTrajectoryIndex(size=8)
        >>> index.write(np.arange(5), np.array([7, 7, 9, 9, 7]), np.zeros(5, bool))
        >>> index.follow(np.array([0, 2]), steps=3)
        array([[ 0,  1,  4],
               [ 2,  3, -1]])
    """

    def __init__(self, size: int, lanes: int = 1, *, ring: Ring | None = None, columns: Columns | None = None) -> None:
        self._contradictions = 0  # within writes
        self._is_logged = False
        self._generation = first_generation()
        self._ring = ring
        self._columns = columns
        self._stale: Rows | None = None
        self._segments = empty_segments(size, np.zeros(lanes, np.int64))
        self._segments.ring.pushes = -1  # nothing of the ring is indexed

    @property
    def generation(self) -> int:
        """Changes with every write, and differs between indices."""
        return self._generation + (0 if self._ring is None else self._ring.pushes)

    @property
    def contradictions(self) -> int:
        """Number of steps whose observation is not the next one of the step that their id says they follow.

        Within a write, ids decide over observations. A write that begins so is taken for one of another source.
        """
        return self._contradictions + self._segments.strays

    def before_overwriting(self, head: Rows) -> None:
        """Index what is about to be overwritten, steps before the times [lanes] ``head``, while it is there."""
        if not (head > 0).any():
            return
        if (head > self._segments.ring.tail).any():
            self.catch_up()
        if self._segments.ring.pushes >= 0:
            head = np.minimum(np.maximum(head, self._segments.ring.head), self._segments.ring.tail)
            numbers, rows = self._segments.about_to_end(head)
            evidence = self._facts(rows).evidence if len(rows) else None
            if evidence is not None:
                self._segments.led(numbers, evidence.ends(rows))

    def catch_up(self) -> None:
        """Index the steps that were written to the ring since the last time, after any whose ids or flags changed.

        Of steps that were overwritten before anybody asked, nothing is known but that their lane had some.
        """
        ring, mine = self._ring, self._segments.ring
        if ring is None or ring.pushes == mine.pushes:
            self._settle()
            return
        is_new = bool((mine.tail < ring.head).any())
        if is_new:
            self._stale = None
            mine = (segments := empty_segments(ring.size, ring.head)).ring
            segments.strays = self._segments.strays
        else:
            np.maximum(mine.head, ring.head, out=mine.head)
            if self._stale is not None:
                self._segments.trim()
                self._settle()
            segments, mine = self._segments, self._segments.ring
        counts = ring.tail - mine.tail
        if not counts.any():  # as after steps were dropped
            segments.trim()
            mine.pushes = ring.pushes
            return
        lane = np.repeat(np.arange(ring.lanes), counts)
        first = np.cumsum(counts) - counts
        time = np.arange(len(lane)) + np.repeat(mine.tail - first, counts)
        facts = self._facts(ring.row(lane, time))
        # What an episode starts with has lost nothing; of the oldest step of a lane that is not known.
        unknown = (time == ring.head[lane]) & (time > 0) & ~(facts.fresh & ~facts.late)
        self._write(segments, facts, lost=unknown.astype(np.int64) if is_new else None)
        segments.ring.pushes = ring.pushes
        self._segments = segments

    def whole_from(self) -> Rows:
        """Return [lanes] the times from which each lane has whole trajectories alone.

        Raises:
            SamplingError: trajectories are interleaved in a lane, or one is longer than its lane.
        """
        self.catch_up()
        if self._segments.is_interleaved:
            raise SamplingError(
                "whole episodes: the steps of one are not in consecutive rows, because others came between them",
                hint="write the steps of several environments as [envs, steps], into a storage of ndim=2",
            )
        heads = self._segments.whole_from()
        if (heads >= self._segments.ring.tail)[self._segments.ring.tail > 0].any():
            raise SamplingError(
                f"whole episodes: one has more than {self._segments.ring.size:,} steps, the size of a lane",
                hint="give the storage a larger max_size",
            )
        return heads

    def _facts(self, rows: Rows) -> Facts:
        if self._columns is None:
            raise ValueError("an index without columns cannot learn what changed")
        return self._columns(rows)

    @classmethod
    def restored(cls, ring: Ring, columns: Columns, state: Mapping[str, torch.Tensor]) -> Self:
        """Return the index of a ``state_dict``, over a ring with the same cursors."""
        index = cls(ring.size, ring.lanes, ring=ring, columns=columns)
        index._segments = load_segments(ring, state)
        index._segments.ring.pushes = ring.pushes
        return index

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the links between segments, as int64 tensors whose length is the number of segments."""
        self.catch_up()
        return save_segments(self._segments)

    def __len__(self) -> int:
        return len(self._segments.ring if self._ring is None else self._ring)

    def write(
        self,
        rows: Rows,
        ids: Rows | None,
        done: Flags,
        evidence: Evidence | None = None,
        is_init: Flags | None = None,
    ) -> None:
        """Index the steps of one write, in time order within a lane, at the lanes' cursors.

        Args:
            rows: [n] rows of the steps; more than a lane has if the first are overwritten at once.
            ids: [n] trajectory ids, or None.
            done: [n] whether the step ends its trajectory.
            evidence: their observations; by default, ids and flags decide.
            is_init: [n] whether an episode starts with the step.
        """
        if not len(rows):
            return
        self._settle()
        no = np.zeros(len(rows), bool)
        fresh, late = (no, no) if is_init is None else (is_init, ~is_init)
        self._write(self._segments, Facts(rows, ids, done, fresh, late, no, evidence))
        self._generation += 1

    def _write(
        self,
        segments: Segments,
        facts: Facts,
        *,
        lost: Rows | None = None,
        forced: Flags | None = None,
        sealed: Flags | None = None,
        order: Rows | None = None,
        wandering: frozenset[int] = frozenset(),
    ) -> None:
        """Index steps, lane after lane in time order.

        Args:
            lost: [n] steps that are lost before each, if a trajectory starts with it.
            forced: [n] whether a run starts with it.
            sealed: [n] whether nothing may follow it.
            order: [n] the order of writing across lanes; by default, one write of all lanes after the other.
        """
        if not len(facts.rows):
            return
        lane, ids, evidence = facts.rows // segments.ring.size, facts.ids, facts.evidence
        starts = np.ones(len(lane), bool)
        np.not_equal(lane[1:], lane[:-1], out=starts[1:])
        first = np.flatnonzero(starts)
        lengths = np.diff(first, append=len(lane))
        write: Rows = np.cumsum(facts.begins, dtype=np.int64)
        write -= np.repeat(write[first], lengths)
        starts[1:] |= facts.ends[:-1]
        starts |= facts.fresh
        if ids is not None:
            starts[1:] |= ids[1:] != ids[:-1]
        if forced is not None:
            starts |= forced
        agrees, detached, late = np.zeros(len(lane), bool), facts.fresh, facts.late
        if evidence is not None:
            time = segments.ring.tail[lane] + np.arange(len(lane)) - np.repeat(first, lengths)
            asked = ~starts
            asked[first] = time[first] > segments.ring.head[lane[first]]
            at = np.flatnonzero(asked)
            across = facts.begins[at] | starts[at]
            before, rows = segments.ring.row(lane[at], time[at] - 1), facts.rows[at]
            alike, jumps = evidence.alike(before, rows), evidence.jumps(before, rows)
            # A slice of another buffer jumps where its ring begins anew; other jumps are those of pieces of a dataset.
            apart = jumps & (across | ~alike | ~(evidence.has_observations | evidence.wraps(before, rows)))
            agrees[at] = alike & ~apart
            # Within a write, ids decide.
            starts[at] |= ~agrees[at] if ids is None else apart | (across & ~alike)
            detached, late = detached.copy(), late.copy()
            detached[at] |= apart & ~across
            late[at] |= apart & ~across
            self._contradictions += 0 if ids is None else int((~across & ~apart & ~alike).sum())
        if segments.ring.lanes > 1:  # ids that several lanes of a write have are looked for write by write
            starts |= facts.begins
        elif evidence is not None:
            # Where several trajectories of an id may be open, each write is matched with all of them.
            known = agrees & (time == segments.ring.tail[lane])
            known[1:] |= facts.ends[:-1] & (True if ids is None else ids[1:] == ids[:-1])
            keys, key = np.unique(lane if ids is None else ids, return_inverse=True)
            opened = np.bincount(key[starts & ~known], minlength=len(keys)) + segments.count_open(keys)
            starts |= facts.begins & (opened > 1)[key]
        start = np.flatnonzero(starts)
        last = np.append(start[1:], len(lane)) - 1
        by_write = np.argsort(write[start] if order is None else order[start], kind="stable")
        start, last = start[by_write], last[by_write]
        runs = Runs.of(
            lane[start],
            last + 1 - start,
            None if ids is None else ids[start],
            facts.ends[last],
            lost=np.maximum(late[start], 0 if lost is None else lost[start]),
            detached=detached[start],
            writes=np.stack([write[start], write[last]], axis=1),
            agrees=agrees[start],
            wandering=wandering,
            **{} if sealed is None else {"sealed": sealed[last]},
        )
        segments.append(runs, evidence)
        if not self._is_logged and (found := self._contradictions + segments.strays):
            self._is_logged = True
            logger.warning(
                "%s: the observation is not the next one of the step before, though the trajectory id is the same; ids "
                "decide within a write, and a write that begins so is taken for one of another source; traj_key or "
                "trajectory_key says to go by ids alone",
                "1 step" if found == 1 else f"{found:,} steps",
            )

    def write_runs(self, lane: Rows, length: Rows, ids: Rows | None, done: Flags) -> None:
        """Index runs [m] of steps of one trajectory each, as ``write`` does for rows.

        Args:
            length: [m] steps, at least 1.
            ids: [m] ids, or None.
        """
        self._settle()
        self._segments.append(Runs.of(lane, length, ids, done))
        self._generation += 1

    def changed(self, replaced: Rows) -> None:
        """Mark ids or flags of stored steps as changed; all trajectories are recomputed when next needed.

        Args:
            replaced: [n] rows that now hold other steps, which follow nothing; may be empty.
        """
        self._stale = replaced if self._stale is None else np.append(self._stale, replaced)
        self._generation += 1

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows that hold the 0th, 1st, ... stored step, lane by lane, oldest first."""
        return (self._segments.ring if self._ring is None else self._ring).row_at(ordinals)

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
        self.catch_up()
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
        self.catch_up()
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
        """Cut the steps anew by their present ids and flags, in the order of writing, if these have changed."""
        if self._stale is None:
            return
        old, ring = self._segments, self._segments.ring
        rows = ring.row_at(np.arange(len(ring)))
        facts = self._facts(rows)
        lane, time = ring.locate(rows)
        number = old.log.at(lane, time)
        trajectory, begin, length = (old.table[name][number] for name in ("trajectory", "time", "length"))
        is_last = time + 1 == begin + length
        begin = np.maximum(begin, ring.head[lane])
        is_first = time == begin
        is_replaced = np.isin(rows, self._stale)
        cut = is_replaced.copy()
        cut[1:] |= is_replaced[:-1] & (lane[1:] == lane[:-1])
        starts_one = is_first & ((old.trajectories["head"][trajectory] == number) | old.table["detached"][number])
        is_spread = old.trajectories["is_spread"][trajectory]
        new = empty_segments(ring.size, ring.head)
        new.remember(old)
        self._contradictions = 0
        self._write(
            new,
            replace(
                facts,
                fresh=facts.fresh | cut | (is_first & old.table["detached"][number]),
                late=facts.late | (cut & ~facts.fresh),
            ),
            lost=np.where(starts_one, old.table["before"][number] + begin - old.table["time"][number], 0),
            forced=is_first,
            sealed=is_replaced | (is_last & old.table["sealed"][number]),
            order=old.table["serial"][number],
            wandering=frozenset(old.trajectories["id"][np.unique(trajectory[is_spread])].tolist()),
        )
        # In this order: concurrent threads do the same work, and none takes a stale index for a settled one.
        new.ring.pushes = ring.pushes
        self._segments = new
        self._stale = None
