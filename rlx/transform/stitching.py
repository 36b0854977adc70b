"""The steps that a function has left and changed, as blocks again: every observation stored once."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Role, Schema
from rlx.store.array import Rows
from rlx.transform.transitions import Transitions


class Stitching:
    """Trajectories joined from the kept steps of transitions.

    A trajectory ends where the following step is not kept, and where a step is flagged terminated or truncated; the
    next kept step starts another trajectory of the same episode.

    Args:
        schema: what a step holds.
    """

    def __init__(self, schema: Schema) -> None:
        self._observations = schema.names(Role.OBSERVATION)
        self._open: tuple[int, int] | None = None  # the trajectory that continues, and its next step
        self._behind: Mapping[str, Rows] = {}  # the observations [1, ...] that its last step led to

    def block(
        self, before: Transitions, places: NDArray[np.int64], data: Mapping[str, Rows], after: Mapping[str, Rows]
    ) -> Block:
        """Return the kept steps of the next transitions, and the end of the trajectory that it does not continue.

        Args:
            before: the transitions, some of which are kept.
            places: [m] which of them are left, ascending.
            data: [m, ...] of every field; of an observation, the one before the step.
            after: [m, ...] of every observation, the one after the step.

        Raises:
            TransformError: an observation differs from the next observation of the step before; names the trajectory.
        """
        trajectory, index = before.trajectory[places], before.index[places]
        goes_on = len(places) > 0 and self._open == (trajectory[0], index[0])
        ended = None if goes_on or self._open is None else self._open[0]
        ends = np.logical_or(data["terminated"], data["truncated"]) | before.is_last[places]
        if len(places):
            ends[:-1] |= np.diff(places) > 1
            ends[-1] |= places[-1] < before.steps - 1
        inside = np.flatnonzero(~ends[:-1])
        for name in self._observations:
            if goes_on:
                _check_same(name, self._behind[name], data[name][:1], trajectory[:1])
            _check_same(name, after[name][inside], data[name][inside + 1], trajectory[inside])
        block = self._joined(before, places, data, after, ends, ended)
        self._open = None
        if len(places) and not ends[-1]:
            self._open = (int(trajectory[-1]), int(index[-1]) + 1)
            self._behind = {name: after[name][-1:].copy() for name in self._observations}
        return block

    def _joined(
        self,
        before: Transitions,
        places: NDArray[np.int64],
        data: Mapping[str, Rows],
        after: Mapping[str, Rows],
        ends: NDArray[np.bool_],
        ended: int | None,
    ) -> Block:
        is_open = bool(len(ends)) and not ends[-1]
        last = np.flatnonzero(np.append(ends[:-1], True)) if len(ends) else np.arange(0)
        first = np.append(0, last[:-1] + 1)[: len(last)]
        closed = last[:-1] if is_open else last
        lengths, episodes = last - first + 1, before.trajectory[places[first]]
        from_reset, final_recorded = before.is_first[places[first]], before.final_recorded[places[last]]
        cut = before.cut[places[last]]
        rows = dict(data)
        for name in self._observations:
            rows[name] = np.insert(data[name], closed + 1, after[name][closed], axis=0) if len(closed) else data[name]
        if ended is not None:
            # A segment without a step, which ends the trajectory that was left open.
            lengths, episodes = np.append(0, lengths), np.append(ended, episodes)
            from_reset, final_recorded = np.append(False, from_reset), np.append(True, final_recorded)
            cut = np.append(False, cut)
            for name in self._observations:
                rows[name] = np.concatenate([self._behind[name], rows[name]])
        return Block(rows, lengths, episodes, from_reset, final_recorded, is_open, cut)


def _check_same(name: str, seen_after: Rows, seen_before: Rows, trajectory: NDArray[np.int64]) -> None:
    if seen_after.tobytes() == seen_before.tobytes():
        return
    differs = [number for number, a, b in zip(trajectory, seen_after, seen_before, strict=True) if _differ(a, b)]
    if differs:
        raise TransformError(
            f"trajectory {differs[0]}: next {name} of a step is not {name} of the following step; "
            "expected the same, for an observation is stored once"
        )


def _differ(one: Rows, other: Rows) -> bool:
    return not np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
