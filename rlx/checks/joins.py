"""A check for episodes that join: a jump, in the middle of a trajectory, to where episodes begin."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlx.checks.finding import Finding, Severity, Tally
from rlx.checks.window import Window
from rlx.schema import Role, Schema

_MIN_STARTS = 8
_ENOUGH_STARTS = 64
_MAX_HELD_STEPS = 50_000
_MAX_INSIDE = 0.2  # a region that holds more of all observations tells nothing
_MAX_CANDIDATES = 4096
_FACTOR = 1.5

Numbers = NDArray[np.float64]


@dataclass(slots=True)
class _Region:
    """Starts of the episodes of one field, and statistics of its steps.

    Args:
        held: observations [n, d], trajectories [n] and positions [n] of windows that wait for the region.
        starts: first observations.
        bounds: [2, d] least and greatest first observation, once the region is known.
        inside: observations in the region.
        seen: all observations.
        ordinary: [d] the largest change of a step that does not end in the region.
        candidates: change [d], trajectory and position of each step from outside into the region.
    """

    held: list[tuple[Numbers, NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    starts: list[Numbers] = field(default_factory=list)
    bounds: Numbers | None = None
    inside: int = 0
    seen: int = 0
    ordinary: Numbers | None = None
    candidates: list[tuple[Numbers, int, int]] = field(default_factory=list)

    def add(self, rows: Numbers, trajectory: NDArray[np.int64], position: NDArray[np.int64]) -> None:
        """Take in observations; judge them, and those that are held, once enough episodes have begun."""
        self.held.append((rows, trajectory, position))
        if self.bounds is None:
            self.starts += list(rows[position == 0])
            held = sum(len(rows) for rows, _, _ in self.held)
            if len(self.starts) < _ENOUGH_STARTS and held < _MAX_HELD_STEPS:
                return
        self.flush()

    def flush(self) -> None:
        """Judge all that is held."""
        if self.bounds is None and self.starts:
            begin = np.stack(self.starts)
            self.bounds = np.stack([begin.min(axis=0), begin.max(axis=0)])
        held, self.held = self.held, []
        if self.bounds is not None:
            for rows, trajectory, position in held:
                self._judge(self.bounds, rows, trajectory, position)

    def _judge(
        self, bounds: Numbers, rows: Numbers, trajectory: NDArray[np.int64], position: NDArray[np.int64]
    ) -> None:
        inside = ((rows >= bounds[0]) & (rows <= bounds[1])).all(axis=1)
        self.inside, self.seen = self.inside + int(inside.sum()), self.seen + len(rows)
        change = np.abs(np.diff(rows, axis=0))
        follows = (position[1:] > 0) & np.isfinite(change).all(axis=1)
        enters = follows & inside[1:] & ~inside[:-1]
        ordinary = change[follows & ~enters]
        if len(ordinary):
            largest = ordinary.max(axis=0)
            self.ordinary = largest if self.ordinary is None else np.maximum(self.ordinary, largest)
        for at in np.flatnonzero(enters)[: _MAX_CANDIDATES - len(self.candidates)].tolist():
            self.candidates.append((change[at], int(trajectory[at + 1]), int(position[at + 1])))


class Joins:
    """Jumps of a vector observation into the region where episodes begin.

    A reset shows as a step that changes some number by more than any other step does, and that ends where first
    observations lie. Regions that hold much of all observations, such as a pendulum's, tell nothing.
    """

    def __init__(self, schema: Schema) -> None:
        self._regions = {
            name: _Region()
            for name in schema.names(Role.OBSERVATION)
            if schema[name].dtype.startswith("float") and len(schema[name].shape) == 1 and schema[name].row_bytes
        }

    def see(self, window: Window) -> None:
        """Take in the next steps."""
        for name, region in self._regions.items():
            known = np.flatnonzero(window.recorded)
            trajectory, position = window.place(name, known)
            region.add(window[name][known].astype(np.float64), trajectory, position)

    def findings(self) -> Iterator[Finding]:
        """Yield trajectories with a jump to where episodes begin."""
        for name, region in self._regions.items():
            region.flush()
            if len(region.starts) < _MIN_STARTS or region.ordinary is None:
                continue
            if region.inside > _MAX_INSIDE * region.seen:
                continue
            tally = Tally()
            for change, trajectory, position in region.candidates:
                if (change > _FACTOR * region.ordinary).any():
                    tally.add(np.array([trajectory]), np.array([position]))
            if tally.count:
                yield Finding(
                    "joined",
                    Severity.ERROR,
                    f"{name} jumps to where episodes begin in the middle of a trajectory",
                    why="two episodes are joined, so that returns and slices cross from one into the other",
                    remedy="split the episodes where the data were recorded; --fix leaves these trajectories out",
                    field=name,
                    trajectories=tally.numbers(),
                    **tally.of(),
                )
