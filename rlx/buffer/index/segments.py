"""Segments of trajectories in the lanes of a ring, chained in order of time.

A *segment* is a run of consecutive rows of one lane that belong to one trajectory. The segments of a trajectory are
chained, so that chunks of workers that alternate are joined again; overwritten rows are dropped. No array here is as
long as the storage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import Evidence, Flags
from rlx.buffer.index.ring import LaneLog, Records, Ring, distinct, sum_within
from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError

_SEGMENT = np.dtype(
    [(name, "i8") for name in ("lane", "time", "length", "trajectory", "before", "previous", "next", "serial")]
    + [("detached", "?"), ("sealed", "?")]
)
_TRAJECTORY = np.dtype(
    [(name, "i8") for name in ("head", "tail", "lane", "id", "length", "born")] + [("is_open", "?"), ("is_spread", "?")]
)
# Columns of a checkpoint; those of older ones have more, which are no longer needed.
_COLUMNS = {"segments": 6, "trajectories": 3, "waiting": 4}
# Open trajectories of which nothing is stored any more that are remembered, in case a step of them still comes.
MAX_WAITING = 1 << 16
_UNKNOWN = bytes(16)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs [m] of consecutive steps of one trajectory each, in the order of their writing.

    Attributes:
        length: [m] steps, at least 1.
        ids: [m] the id of each; None keeps every lane to itself.
        ends: [m] whether nothing follows the run in its trajectory.
        lost: [m] steps that the trajectory had before, if it is new with this run.
        detached: [m] whether the run is new whatever is open.
        sealed: [m] whether nothing may follow the run.
        writes: [m, 2] numbers of the writes that the first and the last step belong to.
        agrees: [m] whether the run starts where the step in the row before led to.
        wandering: ids known to move between lanes, though several lanes have them here.
    """

    lane: Rows
    length: Rows
    ids: Rows | None
    ends: Flags
    lost: Rows
    detached: Flags
    sealed: Flags
    writes: Rows
    agrees: Flags
    wandering: frozenset[int] = frozenset()

    @classmethod
    def of(cls, lane: Rows, length: Rows, ids: Rows | None, ends: Flags, **known: Any) -> "Runs":
        """Return runs of one write; flags that are not given are False."""
        none, zeros = np.zeros(len(lane), bool), np.zeros(len(lane), np.int64)
        blank = {"lost": zeros, "detached": none, "sealed": none, "agrees": none, "writes": np.stack([zeros, zeros], 1)}
        return cls(lane, length, ids, ends, **{**blank, **known})


class Segments:
    """The stored part of every trajectory.

    Args:
        ring: the lanes, without steps; it is moved on from here.

    Attributes:
        table: the segments. ``time``: of the first step ever written. ``before``: steps of the trajectory before it.
            ``detached``: it follows nothing that is stored. ``sealed``: nothing may follow it.
        trajectories: ``head`` and ``tail``: the first and the last stored segment, -1 without. ``length``: steps up to
            the last one, overwritten ones included. ``lane``: where it is going on. ``born``: orders first writes.
        strays: how many writes began with the id of an open trajectory, but elsewhere than where one led to.
        is_interleaved: whether a trajectory went on elsewhere than in the row after its last step.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.log = LaneLog(ring.lanes)
        self.strays = 0
        self.is_interleaved = False
        self._records = Records(np.zeros(1, _SEGMENT))
        blank = np.zeros(1, _TRAJECTORY)
        blank["head"] = -1
        self._trajectories = Records(blank)
        self._open: dict[int, dict[int, list[int]]] = {}  # by id: the open trajectories, by the lane they are in
        self._waiting: dict[int, tuple[int, int]] = {}  # (id, lane) of those without stored steps, the oldest first
        self._led_to: dict[int, bytes] = {}  # where open trajectories led to, if anybody asked
        self._serial = 0

    @property
    def table(self) -> NDArray[np.void]:
        """The segments by number."""
        return self._records.table

    @property
    def trajectories(self) -> NDArray[np.void]:
        """The trajectories by number."""
        return self._trajectories.table

    def append(self, runs: Runs, evidence: Evidence | None = None) -> None:
        """Add runs [m], every one where its lane stands.

        Args:
            evidence: what decides where several sources may bring the same id, or no ids; without, the order decides.
        """
        spare = self._trajectories.take(len(runs.lane))
        trajectory, run, closed = self._assign(runs, evidence, spare)
        used = len(run)
        self._trajectories.give(spare[used:])
        new = np.zeros(used, _TRAJECTORY)
        new["head"] = new["tail"] = -1
        new["lane"], new["id"] = runs.lane[run], 0 if runs.ids is None else runs.ids[run]
        new["length"], new["born"] = runs.lost[run], self._serial + run
        new["is_open"] = True
        self.trajectories[spare[:used]] = new
        segments = np.zeros(len(runs.lane), _SEGMENT)
        segments["lane"], segments["length"], segments["trajectory"] = runs.lane, runs.length, trajectory
        segments["detached"], segments["sealed"] = runs.detached, runs.sealed
        self._chain(segments)
        self.trajectories["is_open"][closed] = False
        self._bury(closed)
        self._trim(distinct(runs.lane)[0])
        self._forget()

    def _assign(self, runs: Runs, evidence: Evidence | None, spare: Rows) -> tuple[Rows, Rows, Rows]:
        """Return [m] the trajectory of each run; [k] the run that each new one starts with, numbered by the first k
        spare numbers; and [n] those that nothing can follow now.

        Within a write, equal ids are one trajectory. Across writes, a run continues an open trajectory of its id that
        led to where it starts: that of the row before, else the only one that did. Where several did it continues none:
        that two sources become one is worse than that one becomes two.
        """
        first = self.ring.tail[runs.lane] + sum_within(runs.lane, runs.length)
        digests = _Digests(evidence, self.ring.row(runs.lane, first), self.ring.row(runs.lane, first + runs.length - 1))
        ids = np.zeros(len(runs.lane), np.int64) if runs.ids is None else runs.ids
        local = _in_several_lanes(runs.writes[:, 0], ids, runs.lane)
        lanes = distinct(runs.lane)[0]
        newest = self.log.last(lanes)
        row_before = dict(
            zip(lanes.tolist(), np.where(newest < 0, -1, self.table["trajectory"][newest]).tolist(), strict=True)
        )
        unused = iter(spare.tolist())
        trajectory: list[int] = []
        started_by: list[int] = []
        closed: list[int] = []
        written: dict[tuple[int, int], tuple[int, int]] = {}  # by id and lane: the trajectory, and its last write
        newest_run: dict[int, int] = {}  # the last run of each trajectory
        columns = (ids, runs.lane, runs.ends | runs.sealed, runs.detached, runs.agrees, *runs.writes.T)
        for run, (key, lane, ends, is_new, agrees, begins_in, ends_in) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            number, in_write = written.get((key, lane), (-1, -1))
            if in_write != begins_in or runs.ids is None:
                number = -1
            its_lane = lane
            if number < 0 and not (is_new and evidence):
                is_local = runs.ids is None or ((begins_in, key) in local and key not in runs.wandering)
                matches = self._open.get(key, {})
                if is_local:
                    matches = {lane: matches[lane]} if lane in matches else {}
                is_known = agrees and list(matches.values()) == [[row_before[lane]]]
                if evidence and matches and not is_known:
                    matches = self._that_led_to(matches, digests, run, newest_run)
                    self.strays += not matches and runs.ids is not None
                its_lane = lane if lane in matches or len(matches) != 1 else next(iter(matches))
                found = matches.get(its_lane, ())
                number = found[0] if len(found) == 1 else -1
            if number >= 0:
                self._take(number, key, its_lane)
                written.pop((key, its_lane), None)
                if is_new:
                    closed.append(number)
            if number < 0 or is_new:
                number = next(unused)
                started_by.append(run)
            trajectory.append(number)
            newest_run[number] = run
            row_before[lane] = number
            if ends:
                closed.append(number)
                written.pop((key, lane), None)
            else:
                written[key, lane] = number, ends_in
                self._open.setdefault(key, {}).setdefault(lane, []).append(number)
        return np.array(trajectory, np.int64), np.array(started_by, np.int64), np.array(closed, np.int64)

    def count_open(self, ids: Rows) -> Rows:
        """Return [n] how many trajectories of each id are open."""
        return np.array([sum(map(len, self._open.get(key, {}).values())) for key in ids.tolist()], np.int64)

    def _that_led_to(
        self, matches: Mapping[int, list[int]], digests: "_Digests", run: int, newest_run: Mapping[int, int]
    ) -> dict[int, list[int]]:
        """Return those of open trajectories that led to where a run starts, by lane.

        A trajectory whose last observation is overwritten matches if no other of its id is open.
        """
        only = sum(map(len, matches.values())) == 1
        found: dict[int, list[int]] = {}
        for lane, numbers in matches.items():
            for number in numbers:
                if number in newest_run:
                    self._led_to[number] = digests.end(newest_run[number])
                elif number not in self._led_to and (segment := self.trajectories["tail"][number]) >= 0:
                    lane_of, time, length = (self.table[name][segment] for name in ("lane", "time", "length"))
                    if time + length > self.ring.head[lane_of]:
                        self._led_to[number] = digests.end_at(self.ring.row(lane_of, time + length - 1))
                led_to = self._led_to.get(number)
                if led_to == digests.start(run) or (led_to is None and only):
                    found.setdefault(lane, []).append(number)
        return found

    def _take(self, number: int, key: int, lane: int) -> None:
        """Remove an open trajectory."""
        lanes = self._open[key]
        lanes[lane].remove(number)
        if not lanes[lane]:
            del lanes[lane]
        if not lanes:
            del self._open[key]
        self._waiting.pop(number, None)
        self._led_to.pop(number, None)

    def trim(self) -> None:
        """Drop what is older than the lanes' heads."""
        self._trim(np.flatnonzero(self.ring.head < self.ring.tail))

    def whole_from(self) -> Rows:
        """Return [lanes] the times from which each lane has no trajectory whose first steps were overwritten.

        In lanes without interleaved trajectories.
        """
        heads = self.ring.head.copy()
        lanes = np.flatnonzero(heads < self.ring.tail)
        oldest = self.table[self.log.at(lanes, heads[lanes])]
        heads[lanes] = np.where(oldest["time"] < heads[lanes], oldest["time"] + oldest["length"], heads[lanes])
        return heads

    def about_to_end(self, head: Rows) -> tuple[Rows, Rows]:
        """Return [n] open trajectories that lose their last stored step if lanes begin at times [lanes] ``head``.

        Also [n] the row of that step.
        """
        lanes = np.flatnonzero(head > self.ring.head)
        segment = self.log.until(lanes, head[lanes] - 1)
        owner = self.table["trajectory"][segment]
        end = self.table["time"][segment] + self.table["length"][segment]
        lost = (end <= head[self.table["lane"][segment]]) & (self.trajectories["tail"][owner] == segment)
        chosen = np.flatnonzero(lost & self.trajectories["is_open"][owner])
        return owner[chosen], self.ring.row(self.table["lane"][segment[chosen]], end[chosen] - 1)

    def led(self, numbers: Rows, digests: list[bytes]) -> None:
        """Remember where open trajectories [n] led to."""
        self._led_to.update(zip(numbers.tolist(), digests, strict=True))

    def led_to(self, numbers: Rows) -> NDArray[np.uint8]:
        """Return [n, 16] digests of where open trajectories led to; 0 where that is not known."""
        digests = [self._led_to.get(number, _UNKNOWN) for number in numbers.tolist()]
        return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, len(_UNKNOWN))

    def _forget(self) -> None:
        """Remove the oldest open trajectories without stored steps beyond the limit."""
        if len(self._waiting) > MAX_WAITING:
            oldest = list(islice(self._waiting.items(), len(self._waiting) - MAX_WAITING))
            for number, place in oldest:
                self._take(number, *place)
            self._trajectories.give(np.array([number for number, _ in oldest]))

    def _chain(self, run: NDArray[np.void]) -> None:
        """Append runs as segments, or extend the last segment of a lane, and link them to their predecessors."""
        lane, length, trajectory = run["lane"], run["length"], run["trajectory"]
        owners, inverse = distinct(trajectory)
        order = np.argsort(inverse, kind="stable")
        tail = np.cumsum(np.bincount(inverse)) - 1
        head = np.append(0, tail[:-1] + 1)
        first, last = order[head], order[tail]
        known = self.trajectories[owners]
        run["time"] = self.ring.tail[lane] + sum_within(lane, length)
        run["before"] = self.trajectories["length"][trajectory] + sum_within(trajectory, length)
        run["serial"] = self._serial + np.arange(len(lane))
        number = self._number(run, first, known)
        run["previous"][order[1:]] = number[order[:-1]]
        run["previous"][first] = known["tail"]
        run["next"][order[:-1]] = number[order[1:]]
        run["next"][last] = -1
        linked = first[(known["tail"] >= 0) & (known["tail"] != number[first])]
        self.table["next"][run["previous"][linked]] = number[linked]
        self._place(run, number)
        known["head"] = np.where(known["head"] < 0, number[first], known["head"])
        known["tail"], known["length"] = number[last], run["before"][last] + length[last]
        known["is_spread"] |= np.bincount(inverse, lane != known["lane"][inverse]) > 0
        known["lane"] = lane[last]
        self.trajectories[owners] = known
        self._serial += len(lane)

    def _number(self, run: NDArray[np.void], first: Rows, known: NDArray[np.void]) -> Rows:
        """Return [m] the segment of each run: a new one, or the newest of its lane if the run continues exactly
        there."""
        newest = self.log.last(run["lane"][first])
        joins = (newest >= 0) & (known["tail"] == newest) & (run["time"][first] == self.ring.tail[run["lane"][first]])
        number = np.full(len(run), -1)
        number[first[joins]] = newest[joins]
        number[number < 0] = self._records.take(int((number < 0).sum()))
        return number

    def _place(self, run: NDArray[np.void], number: Rows) -> None:
        lanes, inverse = distinct(run["lane"])
        newest = self.log.last(run["lane"])
        joins, new = number == newest, number != newest
        at = number[joins]
        self.table["length"][at] += run["length"][joins]
        for name in ("next", "sealed"):
            self.table[name][at] = run[name][joins]
        self.table[number[new]] = run[new]
        self.is_interleaved |= bool((run["previous"][new] >= 0).any())
        self.log.append(run["lane"][new], run["time"][new], number[new])
        self.ring.push(lanes, np.bincount(inverse, run["length"]).astype(np.int64))

    def _trim(self, lanes: Rows) -> None:
        heads = self.ring.head[lanes]
        if not heads.any():  # until a lane is full, nothing is overwritten
            return
        dead = self.log.drop(lanes, heads)
        owners = self.table["trajectory"][np.append(dead, self.log.at(lanes, heads))]
        for trajectory in np.unique(owners[self.trajectories["is_spread"][owners]]).tolist():
            self._split(trajectory, dead)
        if not len(dead):
            return
        owners = self.table["trajectory"][dead]
        plain = ~self.trajectories["is_spread"][owners]
        # In one lane segments come in order of time, and of equal owners the last assignment counts.
        self.trajectories["head"][owners[plain]] = self.table["next"][dead[plain]]
        self._bury(np.unique(owners[plain]))
        self._records.give(dead)

    def _bury(self, numbers: Rows) -> None:
        """Free the trajectories without stored steps; remember those that may continue."""
        if not len(numbers):
            return
        empty = numbers[self.trajectories["head"][numbers] < 0]
        self.trajectories["tail"][empty] = -1
        found = self.trajectories[empty]
        waiting = found["is_open"]
        places = zip(found["id"][waiting].tolist(), found["lane"][waiting].tolist(), strict=True)
        self._waiting.update(zip(empty[waiting].tolist(), places, strict=True))
        self._trajectories.give(empty[~waiting])

    def _split(self, trajectory: int, dead: Rows) -> None:
        """Cut a trajectory of several lanes where one of them has lost a part of it."""
        runs, number = self._runs_left(trajectory, set(dead.tolist()))
        head = int(self.trajectories["head"][trajectory])
        last = runs.pop() if number else []
        for run in runs:
            self._part(run, trajectory, is_first=run[0] == head)
        self.trajectories["head"][trajectory] = last[0] if last else -1
        if runs and last:
            self.table["detached"][last[0]] = True
            self.trajectories["born"][trajectory] = self.table["serial"][last[0]]
        self._bury(np.array([trajectory]))

    def _runs_left(self, trajectory: int, dead: set[int]) -> tuple[list[list[int]], bool]:
        """Return the contiguous segments of a trajectory, and whether the last of them is its end."""
        runs: list[list[int]] = []
        number, is_linked = int(self.trajectories["head"][trajectory]), False
        while number >= 0:
            segment = self.table[number]
            is_trimmed = segment["time"] < self.ring.head[segment["lane"]]
            if number not in dead:
                if is_trimmed or not is_linked:
                    runs.append([])
                runs[-1].append(number)
            is_linked = number not in dead
            number = int(segment["next"])
        return runs, is_linked

    def _part(self, run: list[int], origin: int, *, is_first: bool) -> None:
        """Make segments whose continuation is lost a trajectory of their own, which is over."""
        number = self._trajectories.take(1)
        end, record = self.table[run[-1]], self.trajectories[[origin]]
        record["head"], record["tail"], record["lane"] = run[0], run[-1], end["lane"]
        record["length"], record["is_open"] = end["before"] + end["length"], False
        if not is_first:
            record["born"] = self.table["serial"][run[0]]
            self.table["detached"][run[0]] = True
        self.table["next"][run[-1]] = -1
        self.table["sealed"][run[-1]] = True
        self.table["trajectory"][run] = number
        self.trajectories[number] = record

    def remember(self, other: "Segments") -> None:
        """Restore the open trajectories without stored steps."""
        for number, (key, lane) in other._waiting.items():
            (mine,) = self._trajectories.take(1).tolist()
            self.trajectories[mine] = other.trajectories[number]
            self._wait(mine, key, lane)
            if number in other._led_to:
                self._led_to[mine] = other._led_to[number]

    def _wait(self, number: int, key: int, lane: int) -> None:
        self._open.setdefault(key, {}).setdefault(lane, []).append(number)
        self._waiting[number] = key, lane

    @property
    def waiting(self) -> Rows:
        """[n] the open trajectories without stored steps, the oldest first."""
        return np.array(list(self._waiting), np.int64)

    @property
    def serial(self) -> int:
        """How many runs were added."""
        return self._serial

    def mark(self, detached: Flags, sealed: Flags) -> None:
        """Set these columns of all segments, in the order of their writing."""
        number = self.in_order()
        self.table["detached"][number], self.table["sealed"][number] = detached, sealed

    def in_order(self) -> Rows:
        """Return [n] all segments, in the order of their writing."""
        number = self.log.all()
        return number[np.argsort(self.table["serial"][number], kind="stable")]

    def rename(self, ids: Rows, born: Rows, waiting: NDArray[np.int64], led_to: NDArray[np.uint8], serial: int) -> None:
        """Give ids to trajectories [N] that were added as 0 to N, and add waiting ones.

        Args:
            ids: [N] the id of each.
            born: [N] what orders their first writes.
            waiting: [n, 4] id, lane, length and born of those that are open and of which nothing is stored.
            led_to: [n, 16] digests of where these led to.
        """
        found = np.flatnonzero(self.trajectories["head"] >= 0)
        number = np.empty(len(found), np.int64)
        number[self.trajectories["id"][found]] = found
        self.trajectories["id"][number], self.trajectories["born"][number] = ids, born
        self._open = {}
        for record in number[self.trajectories["is_open"][number]].tolist():
            key, lane = (int(self.trajectories[name][record]) for name in ("id", "lane"))
            self._open.setdefault(key, {}).setdefault(lane, []).append(record)
        for (key, lane, length, first), digest, record in zip(
            waiting.tolist(), map(bytes, led_to), self._trajectories.take(len(waiting)).tolist(), strict=True
        ):
            self.trajectories[record] = (-1, -1, lane, key, length, first, True, False)
            self._wait(record, key, lane)
            if digest != _UNKNOWN:
                self._led_to[record] = digest
        self._serial = serial


class _Digests:
    """Digests of where runs start and end, made when the first of them is asked for.

    Args:
        first: [m] the row that each run starts at.
        last: [m] the row that it ends at.
    """

    def __init__(self, evidence: Evidence | None, first: Rows, last: Rows) -> None:
        self._evidence = evidence
        self._rows = first, last
        self._known: tuple[list[bytes], list[bytes]] | None = None

    def _both(self) -> tuple[list[bytes], list[bytes]]:
        if self._known is None:
            assert self._evidence is not None, "asked only where there is evidence"
            self._known = self._evidence.starts(self._rows[0]), self._evidence.ends(self._rows[1])
        return self._known

    def start(self, run: int) -> bytes:
        return self._both()[0][run]

    def end(self, run: int) -> bytes:
        return self._both()[1][run]

    def end_at(self, row: Rows) -> bytes:
        assert self._evidence is not None, "asked only where there is evidence"
        return self._evidence.ends(np.atleast_1d(row))[0]


def _in_several_lanes(writes: Rows, ids: Rows, lane: Rows) -> set[tuple[int, int]]:
    """Return the ids, each after its write, that come up in more than one lane of it: they cannot be one trajectory."""
    if len(lane) == 0 or lane.min() == lane.max():
        return set()
    pairs = np.unique(np.stack([writes, ids, lane]), axis=1)[:2]
    return {(int(write), int(key)) for write, key in pairs[:, 1:][:, (pairs[:, 1:] == pairs[:, :-1]).all(axis=0)].T}


def empty_segments(size: int, head: Rows) -> Segments:
    """Return no segments; the lanes' next steps have the times [lanes] ``head``."""
    ring = Ring(size, len(head))
    ring.head, ring.tail = head.copy(), head.copy()
    return Segments(ring)


def save_segments(segments: Segments) -> dict[str, torch.Tensor]:
    """Return the stored part of every trajectory.

    Returns:
        ``segments`` [n, 6], in the order of their writing: lane, stored steps, trajectory, steps lost before,
        detached, sealed. ``trajectories`` [N, 3]: id, born, open. ``waiting`` [w, 4]: id, lane, length, born of those
        that are open and of which nothing is stored. ``serial`` [1]. All int64. ``led_to`` [w, 16], uint8: digests of
        where the waiting ones led to.
    """
    number = segments.in_order()
    table = segments.table[number]
    begin = np.maximum(table["time"], segments.ring.head[table["lane"]])
    owner, trajectory = np.unique(table["trajectory"], return_inverse=True)
    owners = segments.trajectories[owner]
    is_head = owners["head"][trajectory] == number
    lost = np.where(is_head, table["before"] + begin - table["time"], 0)
    length = table["time"] + table["length"] - begin
    columns = (
        table["lane"],
        length,
        trajectory,
        lost,
        *(table[name] for name in ("detached", "sealed")),
    )
    waiting = segments.trajectories[segments.waiting]
    remembered = [waiting[name] for name in ("id", "lane", "length", "born")]
    return {
        "segments": torch.from_numpy(np.stack(columns, axis=1).astype(np.int64)),
        "trajectories": torch.from_numpy(np.stack([owners["id"], owners["born"], owners["is_open"]], axis=1)),
        "waiting": torch.from_numpy(np.stack(remembered, axis=1)),
        "led_to": torch.from_numpy(segments.led_to(segments.waiting).copy()),
        "serial": torch.tensor([segments.serial]),
    }


def load_segments(ring: Ring, state: Mapping[str, torch.Tensor]) -> Segments:
    """Restore the segments that ``save_segments`` wrote, over lanes in the same state."""
    table = {name: _table(state[name], name) for name in _COLUMNS}
    lane, length, trajectory, lost, detached, sealed = table["segments"].T
    ids, born, is_open = table["trajectories"].T
    inside = ((lane >= 0) & (lane < ring.lanes) & (length > 0) & (length <= ring.size) & (lost >= 0)).all()
    if not inside or (ring.tail - ring.head != np.bincount(lane, length, ring.lanes)).any():
        raise SchemaMismatchError(f"checkpoint: index of {int(length.sum()):,} steps, expected {len(ring):,}")
    if not np.array_equal(np.unique(trajectory), np.arange(len(ids))):
        raise SchemaMismatchError(f"checkpoint: index names other trajectories than the {len(ids):,} it has")
    waiting = table["waiting"]
    if ((waiting[:, 1] < 0) | (waiting[:, 1] >= ring.lanes) | (waiting[:, 2] < 0)).any():
        raise SchemaMismatchError("checkpoint: index has open trajectories in unknown lanes")
    ends = np.zeros(len(lane), bool)
    last = np.zeros(len(ids), np.int64)
    last[trajectory] = np.arange(len(lane))
    ends[last] = is_open == 0
    segments = empty_segments(ring.size, ring.head)
    if len(lane):
        segments.append(Runs.of(lane, length, trajectory, ends, lost=lost, wandering=frozenset(trajectory.tolist())))
    segments.mark(detached.astype(bool), sealed.astype(bool))
    led_to = state.get("led_to", torch.zeros(len(waiting), len(_UNKNOWN), dtype=torch.uint8)).numpy()
    if led_to.dtype != np.uint8 or led_to.shape != (len(waiting), len(_UNKNOWN)):
        raise SchemaMismatchError(f"checkpoint: index has led_to of shape {list(led_to.shape)}")
    segments.rename(ids, born, waiting, led_to, int(state["serial"][0]))
    return segments


def _table(saved: torch.Tensor, name: str) -> Rows:
    if saved.dtype != torch.int64 or saved.ndim != 2 or saved.shape[1] < _COLUMNS[name]:
        raise SchemaMismatchError(f"checkpoint: index has {list(saved.shape)} {name}, expected [n, {_COLUMNS[name]}]")
    columns: Rows = saved.numpy()[:, : _COLUMNS[name]]
    return columns
