"""Segments of trajectories in the lanes of a ring, chained in order of time.

A *segment* is a run of consecutive rows of one lane that belong to one trajectory. The segments of a trajectory are
chained, so that chunks of workers that alternate are joined again; overwritten rows are dropped. No array here is as
long as the storage.
"""

from collections.abc import Mapping, Set

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.index.continuity import UNKNOWN, Flags
from rlx.buffer.index.open_trajectories import OpenTrajectories
from rlx.buffer.index.ring import LaneLog, Records, Ring, distinct, sum_within
from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError

_SEGMENT = np.dtype(
    [
        (name, "i8")
        for name in (
            "lane",
            "time",
            "length",
            "trajectory",
            "before",
            "previous",
            "next",
            "serial",
            "begins",
            "expects",
        )
    ]
    + [("detached", "?"), ("sealed", "?")]
)
_TRAJECTORY = np.dtype(
    [(name, "i8") for name in ("head", "tail", "lane", "id", "length", "born", "expects")]
    + [("is_open", "?"), ("is_spread", "?")]
)
# Columns of a checkpoint.
_COLUMNS = {"segments": 8, "trajectories": 3, "waiting": 5}
# Columns that older checkpoints lack: evidence of the order of segments.
_DIGESTS = {"segments": 2, "trajectories": 0, "waiting": 1}


class Segments:
    """The stored part of every trajectory.

    Args:
        ring: the lanes, without steps; it is moved on from here.

    Attributes:
        table: the segments. ``time``: of the first step ever written. ``before``: steps of the trajectory before it.
            ``detached``: it follows nothing that is stored. ``sealed``: nothing may follow it. ``begins``, ``expects``:
            digests of what its first step starts from and of what must follow its last one.
        trajectories: ``head`` and ``tail``: the first and the last stored segment, -1 without. ``length``: steps up to
            the last one, overwritten ones included. ``lane``: where it is going on. ``born``: orders first writes.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.log = LaneLog(ring.lanes)
        self._records = Records(np.zeros(1, _SEGMENT))
        blank = np.zeros(1, _TRAJECTORY)
        blank["head"] = -1
        self._trajectories = Records(blank)
        self._open = OpenTrajectories()
        self._serial = 0

    @property
    def table(self) -> NDArray[np.void]:
        """The segments by number."""
        return self._records.table

    @property
    def trajectories(self) -> NDArray[np.void]:
        """The trajectories by number."""
        return self._trajectories.table

    def append(
        self,
        lane: Rows,
        length: Rows,
        ids: Rows | None,
        done: Flags,
        *,
        lost: Rows | None = None,
        detached: Flags | None = None,
        sealed: Flags | None = None,
        begins: Rows | None = None,
        expects: Rows | None = None,
        wandering: Set[int] = frozenset(),
    ) -> None:
        """Add runs [m] of consecutive steps of one trajectory each, every one where its lane stands.

        Args:
            length: the steps of each, at least 1.
            ids: the id of each, or None.
            lost: steps that the trajectory had before, if it is new with this run.
            detached: whether the run is new whatever is open.
            sealed: whether nothing may follow the run.
            begins: digest of what each starts from; without, the id alone decides what it continues.
            wandering: ids known to move between lanes, though several lanes have them here.
        """
        nothing = np.zeros(len(lane), bool)
        detached, sealed = nothing if detached is None else detached, nothing if sealed is None else sealed
        unknown = np.full(len(lane), UNKNOWN, np.int64)
        begins, expects = unknown if begins is None else begins, unknown if expects is None else expects
        spare = self._trajectories.take(len(lane))
        trajectory, run, closed = self._open.assign(
            lane, ids, done | sealed, detached, begins, expects, spare, wandering
        )
        used = len(run)
        self._trajectories.give(spare[used:])
        new = np.zeros(used, _TRAJECTORY)
        new["head"] = new["tail"] = -1
        new["lane"], new["id"] = lane[run], 0 if ids is None else ids[run]
        new["length"], new["born"] = 0 if lost is None else lost[run], self._serial + run
        new["is_open"] = True
        self.trajectories[spare[:used]] = new
        self._chain(_runs(lane, length, trajectory, detached, sealed, begins, expects))
        self.trajectories["is_open"][closed] = False
        self._bury(closed)
        self._trim(distinct(lane)[0])
        self._trajectories.give(self._open.forget())

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
        known["lane"], known["expects"] = lane[last], run["expects"][last]
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
        for name in ("next", "sealed", "expects"):
            self.table[name][at] = run[name][joins]
        self.table[number[new]] = run[new]
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
        self._open.wait(empty[waiting], *(found[name][waiting] for name in ("id", "lane", "expects")))
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
        for number, place in other._open.waiting.items():
            mine = self._trajectories.take(1)
            self.trajectories[mine] = other.trajectories[number]
            self._open.put(int(mine[0]), *place)

    @property
    def waiting(self) -> Rows:
        """[n] the open trajectories without stored steps, the oldest first."""
        return np.array(list(self._open.waiting), np.int64)

    @property
    def serial(self) -> int:
        """How many runs were added."""
        return self._serial

    def mark(self, detached: Flags, sealed: Flags, begins: Rows, expects: Rows) -> None:
        """Set these columns of all segments, in the order of their writing."""
        number = self.in_order()
        self.table["detached"][number], self.table["sealed"][number] = detached, sealed
        self.table["begins"][number], self.table["expects"][number] = begins, expects
        found = np.flatnonzero(self.trajectories["head"] >= 0)
        self.trajectories["expects"][found] = self.table["expects"][self.trajectories["tail"][found]]

    def in_order(self) -> Rows:
        """Return [n] all segments, in the order of their writing."""
        number = self.log.all()
        return number[np.argsort(self.table["serial"][number], kind="stable")]

    def rename(self, ids: Rows, born: Rows, waiting: NDArray[np.int64], serial: int) -> None:
        """Give ids to trajectories [N] that were added as 0 to N, and add waiting ones.

        Args:
            ids: [N] the id of each.
            born: [N] what orders their first writes.
            waiting: [n, 5] id, lane, length, born and expects of those that are open and of which nothing is stored.
        """
        found = np.flatnonzero(self.trajectories["head"] >= 0)
        number = np.empty(len(found), np.int64)
        number[self.trajectories["id"][found]] = found
        self.trajectories["id"][number], self.trajectories["born"][number] = ids, born
        self._open = OpenTrajectories()
        for record in number[self.trajectories["is_open"][number]].tolist():
            found_one = self.trajectories[record]
            self._open.hold(record, *(int(found_one[name]) for name in ("id", "lane", "expects")))
        for (key, lane, length, first, expect), record in zip(
            waiting.tolist(), self._trajectories.take(len(waiting)).tolist(), strict=True
        ):
            self.trajectories[record] = (-1, -1, lane, key, length, first, expect, True, False)
            self._open.put(record, key, lane, expect)
        self._serial = serial


def _runs(
    lane: Rows, length: Rows, trajectory: Rows, detached: Flags, sealed: Flags, begins: Rows, expects: Rows
) -> NDArray[np.void]:
    runs = np.zeros(len(lane), _SEGMENT)
    runs["lane"], runs["length"], runs["trajectory"] = lane, length, trajectory
    runs["detached"], runs["sealed"], runs["begins"], runs["expects"] = detached, sealed, begins, expects
    return runs


def empty_segments(size: int, head: Rows) -> Segments:
    """Return no segments; the lanes' next steps have the times [lanes] ``head``."""
    ring = Ring(size, len(head))
    ring.head, ring.tail = head.copy(), head.copy()
    return Segments(ring)


def save_segments(segments: Segments) -> dict[str, torch.Tensor]:
    """Return the stored part of every trajectory.

    Returns:
        ``segments`` [n, 8], in the order of their writing: lane, stored steps, trajectory, steps lost before,
        detached, sealed, begins, expects. ``trajectories`` [N, 3]: id, born, open. ``waiting`` [w, 5]: id, lane,
        length, born, expects of those that are open and of which nothing is stored. ``serial`` [1]. All int64.
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
        *(table[name] for name in ("detached", "sealed", "begins", "expects")),
    )
    waiting = segments.trajectories[segments.waiting]
    remembered = [waiting[name] for name in ("id", "lane", "length", "born", "expects")]
    return {
        "segments": torch.from_numpy(np.stack(columns, axis=1).astype(np.int64)),
        "trajectories": torch.from_numpy(np.stack([owners["id"], owners["born"], owners["is_open"]], axis=1)),
        "waiting": torch.from_numpy(np.stack(remembered, axis=1)),
        "serial": torch.tensor([segments.serial]),
    }


def load_segments(ring: Ring, state: Mapping[str, torch.Tensor]) -> Segments:
    """Restore the segments that ``save_segments`` wrote, over lanes in the same state."""
    table = {name: _table(state[name], name) for name in _COLUMNS}
    lane, length, trajectory, lost, detached, sealed, begins, expects = table["segments"].T
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
        segments.append(lane, length, trajectory, ends, lost=lost, wandering=set(trajectory.tolist()))
    segments.mark(detached.astype(bool), sealed.astype(bool), begins, expects)
    segments.rename(ids, born, waiting, int(state["serial"][0]))
    return segments


def _table(saved: torch.Tensor, name: str) -> Rows:
    columns, digests = _COLUMNS[name], _DIGESTS[name]
    if saved.dtype != torch.int64 or saved.ndim != 2 or saved.shape[1] not in (columns, columns - digests):
        raise SchemaMismatchError(f"checkpoint: index has {list(saved.shape)} {name}, expected [n, {columns}]")
    missing = columns - saved.shape[1]
    return np.pad(saved.numpy(), ((0, 0), (0, missing)), constant_values=UNKNOWN)
