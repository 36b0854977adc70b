"""Lanes of a storage: where each ring of rows stands, which rows were written, and the tables of its segments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows


class Ring:
    """``lanes`` rings of ``size`` rows each; step t of lane b is at row ``b * size + t % size``.

    Attributes:
        head: [lanes] time of the oldest step that is stored.
        tail: [lanes] time of the next step to be written.
        pushes: how often steps were added.

    Example:
        >>> ring = Ring(size=4)
        >>> ring.push(np.array([0]), np.array([6]))
        >>> len(ring), ring.row_at(np.arange(4))
        (4, array([2, 3, 0, 1]))
    """

    def __init__(self, size: int, lanes: int = 1) -> None:
        self.size = size
        self.lanes = lanes
        self.head = np.zeros(lanes, np.int64)
        self.tail = np.zeros(lanes, np.int64)
        self.pushes = 0

    def __len__(self) -> int:
        if self.lanes == 1:
            return self.tail.item() - self.head.item()
        return int((self.tail - self.head).sum())

    def push(self, lanes: Rows | slice, steps: Rows | int) -> None:
        """Advance each of these lanes, all different, by a number of steps; the oldest steps are overwritten."""
        self.pushes += 1
        if self.lanes == 1 and isinstance(steps, int):
            tail = self.tail.item() + steps
            self.tail[0] = tail
            if self.head.item() < tail - self.size:
                self.head[0] = tail - self.size
            return
        self.tail[lanes] += steps
        np.maximum(self.head, self.tail - self.size, out=self.head)

    def drop(self, heads: Rows) -> Rows:
        """Remove what is older than these times [lanes], at most the tails; return [n] the rows, now empty."""
        counts = np.maximum(heads - self.head, 0)
        lane = np.repeat(np.arange(self.lanes), counts)
        rows = self.row(lane, np.arange(len(lane)) + np.repeat(self.head - np.cumsum(counts) + counts, counts))
        self.pushes += 1
        np.maximum(self.head, heads, out=self.head)
        return rows

    @property
    def has_gaps(self) -> bool:
        """Whether the stored rows of the lanes are other than the first ones, as many of each lane."""
        filled = self.tail - self.head
        return bool(((self.head > 0) & (filled < self.size)).any() or filled.min() != filled.max())

    def next_rows(self, steps: int) -> Rows:
        """Return [lanes, n] the rows of the next steps of every lane."""
        if self.lanes > 1:
            return np.arange(self.lanes)[:, None] * self.size + (self.tail[:, None] + np.arange(steps)) % self.size
        begin = int(self.tail[0]) % self.size
        rows = np.arange(begin, begin + steps)[None]
        return rows if begin + steps <= self.size else rows % self.size

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] rows of the 0th, 1st, ... stored step, lane by lane, oldest first."""
        if self.lanes == 1:
            return (ordinals + self.head.item() % self.size) % self.size
        behind = np.cumsum(self.tail - self.head)
        lane = np.searchsorted(behind, ordinals, side="right")
        ordinal = ordinals - behind[lane] + self.tail[lane]
        return self.row(lane, ordinal)

    def row(self, lane: Rows | np.int64, time: Rows) -> Rows:
        """Return [n] rows of steps, by lane and time."""
        return lane * self.size + time % self.size

    def locate(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return [n] lane and [n] time of the steps at these rows."""
        lane, place = np.divmod(rows, self.size)
        if len(rows) and not 0 <= int(lane.min()) <= int(lane.max()) < self.lanes:
            raise IndexError(
                f"row {self._first(rows, (lane < 0) | (lane >= self.lanes))} is out of range "
                f"for {self.size * self.lanes:,} rows"
            )
        head = self.head[lane]
        time = head + (place - head) % self.size
        empty = time >= self.tail[lane]
        if empty.any():
            raise IndexError(f"row {self._first(rows, empty)} is empty: {len(self):,} steps are stored")
        return lane, time

    def check(self, rows: Rows) -> None:
        """Raise IndexError unless a step is stored at each of these rows."""
        filled = len(self)
        is_one_piece = filled == self.size * self.lanes or (self.lanes == 1 and not self.head[0])
        # Of one dtype without a sign, rows below 0 are large numbers.
        if is_one_piece and len(rows) and rows.dtype == np.int64 and np.maximum.reduce(rows.view(np.uint64)) < filled:
            return
        self.locate(rows)

    def generation(self, rows: Rows) -> Rows:
        """Return [n] how many steps were at each row before the present one; -1 of rows that were never written."""
        if self.lanes == 1:
            turn, next_place = divmod(self.tail.item(), self.size)
            return turn - (rows >= next_place)
        lane, place = np.divmod(rows, self.size)
        turns, next_places = np.divmod(self.tail, self.size)
        return turns[lane] - (place >= next_places[lane])

    def holds(self, rows: Rows) -> NDArray[np.bool_]:
        """Return [n] whether a step is stored at each row."""
        lane, place = np.divmod(rows, self.size)
        inside = (lane >= 0) & (lane < self.lanes)
        lane = np.where(inside, lane, 0)
        head = self.head[lane]
        found: NDArray[np.bool_] = inside & (head + (place - head) % self.size < self.tail[lane])
        return found

    @staticmethod
    def _first(rows: Rows, chosen: NDArray[np.bool_]) -> int:
        return int(rows[chosen][0])

    def continues(self, rows: Rows) -> bool:
        """Return whether steps written at rows continue their lanes, lane after lane, in time order."""
        lane, place = np.divmod(rows, self.size)
        first = run_starts(lane)
        if len(np.unique(lane[first])) != len(first):
            return False
        if len(lane) and not 0 <= lane.min() <= lane.max() < self.lanes:
            return False
        rank = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
        return bool((place == (self.tail[lane] + rank) % self.size).all())


def run_starts(groups: Rows) -> Rows:
    """Return [m] the places where another value than the one before starts, 0 included.

    Example:
        >>> run_starts(np.array([5, 5, 3, 5]))
        array([0, 2, 3])
    """
    starts = np.empty(len(groups), bool)
    starts[:1] = True
    np.not_equal(groups[1:], groups[:-1], out=starts[1:])
    return np.flatnonzero(starts)


# Times in a lane stay below this, so that (lane, time) fits one sorted integer.
_LANE = np.int64(1 << 40)
_START = 16


class Records:
    """Numbered records whose numbers are used again; the table doubles when it is full.

    Args:
        blank: [1] what a record holds that was never used.
    """

    def __init__(self, blank: NDArray[np.void]) -> None:
        self.table = np.repeat(blank, _START)
        self._blank = blank
        self._free = np.arange(_START)[::-1].copy()

    def take(self, count: int) -> Rows:
        """Return [count] numbers of records that are free, and now are not."""
        while len(self._free) < count:
            old = len(self.table)
            self.table = np.concatenate([self.table, np.repeat(self._blank, old)])
            self._free = np.concatenate([np.arange(old, 2 * old)[::-1], self._free])
        taken = self._free[len(self._free) - count :][::-1]
        self._free = self._free[: len(self._free) - count]
        return taken

    def give(self, numbers: Rows) -> None:
        """Make records free again."""
        if len(numbers):
            self._free = np.concatenate([self._free, numbers])


class LaneLog:
    """The segments of every lane, oldest first: one sorted array over all lanes, so a look-up is one binary search.

    Lane b has its own region of the array; after its last segment the region is filled with a key above all its times,
    and dropped segments stay in front until the region is full and moves up.
    """

    def __init__(self, lanes: int) -> None:
        self._numbers = np.zeros((lanes, _START), np.int64)
        self._keys = np.repeat(_key(np.arange(1, lanes + 1), -1)[:, None], _START, axis=1)
        self._first = np.zeros(lanes, np.int64)
        self._behind = np.zeros(lanes, np.int64)

    def last(self, lanes: Rows) -> Rows:
        """Return [n] the newest segment of lanes; -1 for a lane without segments."""
        found = self._numbers[lanes, self._behind[lanes] - 1]
        return np.where(self._behind[lanes] > self._first[lanes], found, -1)

    def at(self, lanes: Rows, times: Rows) -> Rows:
        """Return [n] the segments that hold these stored steps."""
        return self._numbers.ravel()[self._slots(lanes, times)]

    def _slots(self, lanes: Rows, times: Rows) -> Rows:
        return np.searchsorted(self._keys.ravel(), _key(lanes, times), side="right") - 1

    def append(self, lanes: Rows, times: Rows, numbers: Rows) -> None:
        """Append segments [n] to their lanes; within a lane they come in order of time."""
        if not len(lanes):
            return
        rank = rank_within(lanes)
        if int((self._behind[lanes] + rank).max()) >= self._keys.shape[1]:
            self._make_room(int((self._behind[lanes] - self._first[lanes] + rank).max()) + 1)
        places = self._behind[lanes] + rank
        self._keys[lanes, places] = _key(lanes, times)
        self._numbers[lanes, places] = numbers
        np.maximum.at(self._behind, lanes, places + 1)

    def _make_room(self, segments: int) -> None:
        """Move live segments to the front of their regions, and give each region twice the space that it needs."""
        lanes = len(self._keys)
        live = self._behind - self._first
        grown = 2 * max(segments, int(live.max()))
        row = np.repeat(np.arange(lanes), live)
        place = np.arange(len(row)) - np.repeat(np.cumsum(live) - live, live)
        old = place + np.repeat(self._first, live)
        keys = np.repeat(_key(np.arange(1, lanes + 1), -1)[:, None], grown, axis=1)
        numbers = np.zeros((lanes, grown), np.int64)
        keys[row, place], numbers[row, place] = self._keys[row, old], self._numbers[row, old]
        self._keys, self._numbers = keys, numbers
        self._first, self._behind = np.zeros(lanes, np.int64), live

    def drop(self, lanes: Rows, heads: Rows) -> Rows:
        """Remove and return [n] the segments of lanes before these times, lane by lane.

        Args:
            lanes: [m] each named once.
            heads: [m] times of steps that are stored.
        """
        count = self._slots(lanes, heads) - lanes * self._keys.shape[1] - self._first[lanes]
        dropped = self._oldest(lanes, count)
        self._first[lanes] += count
        return dropped

    def until(self, lanes: Rows, times: Rows) -> Rows:
        """Return [n] the segments of lanes up to those that hold stored steps, lane by lane.

        Args:
            lanes: [m] each named once.
            times: [m] times of the steps.
        """
        return self._oldest(lanes, self._slots(lanes, times) - lanes * self._keys.shape[1] - self._first[lanes] + 1)

    def _oldest(self, lanes: Rows, count: Rows) -> Rows:
        """Return the first ``count`` [m] segments of each lane, lane by lane."""
        place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count - self._first[lanes], count)
        numbers: Rows = self._numbers[np.repeat(lanes, count), place]
        return numbers

    def all(self) -> Rows:
        """Return [n] every segment, lane by lane, oldest first."""
        live = self._behind - self._first
        place = np.arange(int(live.sum())) - np.repeat(np.cumsum(live) - live - self._first, live)
        numbers: Rows = self._numbers[np.repeat(np.arange(len(live)), live), place]
        return numbers


def distinct(groups: Rows) -> tuple[Rows, Rows]:
    """Return [k] the values, ascending, and [n] the place of each entry among them.

    Example:
        >>> distinct(np.array([5, 3, 5]))
        (array([3, 5]), array([1, 0, 1]))
    """
    if len(groups) < 2:  # as of every write of a single step
        return groups, np.zeros(len(groups), np.int64)
    return np.unique(groups, return_inverse=True)


def rank_within(groups: Rows) -> Rows:
    """Return [n] how many earlier entries have the same value.

    Example:
        >>> rank_within(np.array([5, 3, 5, 5, 3]))
        array([0, 0, 1, 2, 1])
    """
    return sum_within(groups, np.ones(len(groups), np.int64))


def sum_within(groups: Rows, amounts: Rows) -> Rows:
    """Return [n] the sum of the amounts at earlier entries of the same value."""
    if len(groups) < 2:  # as of every write of a single step
        return np.zeros(len(groups), np.int64)
    order = np.argsort(groups, kind="stable")
    total = np.cumsum(amounts[order]) - amounts[order]
    first = run_starts(groups[order])
    result = np.empty(len(groups), np.int64)
    result[order] = total - np.repeat(total[first], np.diff(first, append=len(groups)))
    return result


def _key(lanes: Rows, times: Rows | int) -> NDArray[np.int64]:
    return lanes * _LANE + times


class Changes:
    """Set of rows that were written.

    Attributes:
        is_reset: whether the storage was emptied since ``take``.
    """

    def __init__(self, max_size: int) -> None:
        self._is_changed = np.zeros(max_size, bool)
        self.is_reset = False

    def note(self, rows: Rows) -> None:
        """Take note of rows that are written."""
        self._is_changed[rows] = True

    def reset(self) -> None:
        """Take note that all rows are forgotten."""
        self._is_changed.fill(False)
        self.is_reset = True

    def take(self) -> Rows:
        """Return [n] the rows that were written, ascending, and forget them."""
        rows = np.flatnonzero(self._is_changed)
        self._is_changed[rows] = False
        self.is_reset = False
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Changes, (len(self._is_changed),)  # whoever asks is in the other process
