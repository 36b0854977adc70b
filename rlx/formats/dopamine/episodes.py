"""The trajectories of a Dopamine shard: its plan's spans, with what only the observations can tell."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlx.formats.dopamine.plan import Plan, Span
from rlx.formats.dopamine.rows import Rows


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Rows [start, stop) of one episode, the zero rows after them, and whether the last one ended it.

    If it did not, be it that the episode was truncated, that a lap is lost or that the files end, then what the last
    row led to is unknown: the recording is cut there.
    """

    episode: int
    start: int
    stop: int
    padding: int
    from_reset: bool
    is_terminal: bool

    @property
    def steps(self) -> int:
        """Steps: a row each, but where the episode goes on without a next row, the last is its final
        observation."""
        return self.stop - self.start - (not self.is_terminal)


def trajectories(plan: Plan, position: int, rows: Rows, dropped: Counter[str]) -> list[Trajectory]:
    """Return the trajectories, of at least a step each, of the spans that start in a file.

    Args:
        plan: of the run.
        position: of the file in the plan.
        rows: of the run; read only after a gap, or where episodes may end without a terminal row.
        dropped: receives how many rows of these spans are padding, and how many have no next row.
    """
    found = []
    counts: Counter[str] = Counter()
    for span in plan.spans(position):
        for one in _episodes(plan, span, rows, counts):
            counts["padding"] += one.padding
            counts["cut"] += not one.is_terminal
            if one.steps:
                found.append(one)
    dropped.update(+counts)
    return found


def _episodes(plan: Plan, span: Span, rows: Rows, dropped: Counter[str]) -> Iterator[Trajectory]:
    lead = _leading_padding(plan, span, rows)
    dropped["padding"] += lead
    number, start, from_reset = span.number, span.start + lead, lead > 0 or not span.after_gap
    for stop in _truncations(plan, start, span.stop, rows):
        yield Trajectory(number, start, stop, plan.padding, from_reset, is_terminal=False)
        number, start, from_reset = number + 1, stop + plan.padding, True
    if start < span.stop:
        yield Trajectory(number, start, span.stop, span.end - span.stop, from_reset, span.is_terminal)


def _leading_padding(plan: Plan, span: Span, rows: Rows) -> int:
    """Return zero rows that a span starts with: all of them at the start of the run, the remaining ones after a gap."""
    limit = span.stop - span.is_terminal
    if span.start == 0:
        lead = min(plan.padding, limit)
        rows.check_blank(0, lead)
        return lead
    lead = 0
    while span.after_gap and lead < plan.padding and span.start + lead < limit and rows.is_blank(span.start + lead):
        lead += 1
    return lead


def _truncations(plan: Plan, start: int, stop: int, rows: Rows) -> Iterator[int]:
    """Yield first padding row after each episode that ended without a terminal row in [start, stop)."""
    if not plan.padding:
        return
    streak, earliest = 0, start + 1  # an episode has at least one row
    previous = -1
    for row in _candidates(plan, start, stop):
        is_next = row == previous + 1
        previous = row
        if row < earliest or not rows.is_blank(row):
            streak = 0
            continue
        streak = streak + 1 if is_next else 1
        if streak == plan.padding:
            yield row + 1 - plan.padding
            streak, earliest = 0, row + 2


def _candidates(plan: Plan, start: int, stop: int) -> list[int]:
    """Return rows in [start, stop) that the small arrays allow to be padding: runs of zeros that are long enough."""
    zeros = plan.zeros[slice(*np.searchsorted(plan.zeros, [start, stop]))]
    last = plan.padding - 1
    first = zeros[: len(zeros) - last]
    runs = first[zeros[last:] == first + last]
    candidates: list[int] = np.unique(runs[:, None] + np.arange(plan.padding)).tolist()
    return candidates
