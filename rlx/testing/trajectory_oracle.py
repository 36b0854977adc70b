"""Trajectories the slow way: a Python list of all that was ever written, looked through step by step."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, TrajectoryIndex


class Oracle:
    """What a ``RingTrajectoryIndex`` should say."""

    def __init__(self, size: int, lanes: int) -> None:
        self.size = size
        self.calls: list[list[list[int]]] = []  # of steps [row, id, done]
        self.time = [0] * lanes

    def rows(self, lanes: list[int], steps: int) -> Rows:
        """Where that many steps per lane go."""
        rows = [b * self.size + t % self.size for b in lanes for t in range(self.time[b], self.time[b] + steps)]
        for lane in lanes:
            self.time[lane] += steps
        return np.array(rows, np.int64)

    def write(self, rows: Rows, ids: Rows | None, done: NDArray[np.bool_]) -> None:
        ids = np.zeros(len(rows), np.int64) if ids is None else ids
        self.calls.append([list(step) for step in zip(rows.tolist(), ids.tolist(), done.tolist(), strict=True)])

    def update(self, row: int, key: int, done: bool) -> None:
        step = [step for call in self.calls for step in call if step[0] == row][-1]
        step[1:] = key, done

    def stored(self, *, has_ids: bool) -> dict[int, tuple[int, int]]:
        """(trajectory, place in it) of every stored row."""
        by_row: dict[int, tuple[int, int]] = {}
        holders: dict[int, dict[int, int]] = {}
        length: Counter[int] = Counter()
        for call in self.calls:
            lanes_of = {key: {row // self.size for row, k, _ in call if k == key} for _, key, _ in call}
            for row, key, done in call:
                lane, mine = row // self.size, holders.setdefault(key, {})
                is_local = not has_ids or len(lanes_of[key]) > 1
                if lane in mine:
                    number = mine.pop(lane)
                elif len(mine) == 1 and not is_local:
                    number = mine.popitem()[1]
                else:
                    number = len(length)
                by_row[row] = number, length[number]
                length[number] += 1
                if not done:
                    mine[lane] = number
        return by_row


def assert_same(
    index: TrajectoryIndex, oracle: Oracle, *, has_ids: bool, check_reset: bool = True, check_order: bool = True
) -> None:
    """Compares every answer for every stored row."""
    by_row = oracle.stored(has_ids=has_ids)
    row_of = {place: row for row, place in by_row.items()}
    live = [
        b * oracle.size + t % oracle.size
        for b, end in enumerate(oracle.time)
        for t in range(max(0, end - oracle.size), end)
    ]
    rows = np.array(live, np.int64)
    assert len(index) == len(live) == len(by_row)
    assert index.row_at(np.arange(len(live))).tolist() == live

    def chase(row: int, by: int) -> list[int]:
        number, place = by_row[row]
        found = []
        while (number, place) in row_of:
            found.append(row_of[number, place])
            place += by
        return found

    ahead, back = [chase(row, 1) for row in live], [chase(row, -1) for row in live]
    assert index.remaining(rows).tolist() == [len(found) for found in ahead]
    assert index.elapsed(rows).tolist() == [len(found) - 1 for found in back]
    for steps in (1, 3, 7):
        none = [-1] * steps
        assert index.follow(rows, steps).tolist() == [(found + none)[:steps] for found in ahead]
        after = [(found + none)[steps - 1] for found in ahead]
        assert index.after(rows, np.full(len(rows), steps - 1)).tolist() == after
        assert index.precede(rows, steps).tolist() == [(found + none)[:steps][::-1] for found in back]
    if check_reset:
        assert index.at_reset(rows).tolist() == [by_row[row][1] == 0 for row in live]
    starts = {row: len(ahead[i]) for i, row in enumerate(live) if len(back[i]) == 1}
    first, length = index.trajectories()
    assert dict(zip(first.tolist(), length.tolist(), strict=True)) == starts
    assert len(first) == len(starts)
    if check_order and len(oracle.time) == 1:
        assert [by_row[row][0] for row in first.tolist()] == sorted(by_row[row][0] for row in starts)
