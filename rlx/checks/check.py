"""Checks and their findings: the windows of steps that a check sees, and the problems that it reports."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.schema import Role, Schema

Rows = NDArray[Any]
Indices = NDArray[np.int64]
MAX_PLACES = 5


@dataclass(frozen=True)
class Window:
    """Some consecutive steps of a dataset.

    Args:
        first: number of the trajectory of the block's first segment.
        offset: steps of that trajectory in earlier windows.
    """

    block: Block
    schema: Schema
    first: int
    offset: int

    def __getitem__(self, name: str) -> Rows:
        rows: Rows = self.block.data[name]
        return rows

    def place(self, name: str, rows: Indices) -> tuple[Indices, Indices]:
        """Return trajectory [n] and step [n] of these rows of a field; an observation belongs to the step after it."""
        if self.schema[name].role == Role.OBSERVATION:
            return self.row_trajectory[rows], self.row_position[rows]
        return self.trajectory[rows], self.position[rows]

    @property
    def trajectory(self) -> Indices:
        """[S] number of the trajectory of each step."""
        return self._steps[0]

    @property
    def position(self) -> Indices:
        """[S] number of each step in its trajectory."""
        return self._steps[1]

    @property
    def row_trajectory(self) -> Indices:
        """[S + closed] number of the trajectory of each observation."""
        return self._rows[0]

    @property
    def row_position(self) -> Indices:
        """[S + closed] number of each observation in its trajectory: that of the step that it precedes."""
        return self._rows[1]

    @cached_property
    def _steps(self) -> tuple[Indices, Indices]:
        return self._numbered(self.block.lengths)

    @cached_property
    def _rows(self) -> tuple[Indices, Indices]:
        return self._numbered(self.block.lengths + self.closed)

    def _numbered(self, lengths: Indices) -> tuple[Indices, Indices]:
        """Return trajectory and position of each row of segments of these lengths [n]."""
        segment = np.repeat(np.arange(len(lengths)), lengths)
        begins = np.cumsum(lengths) - lengths
        return segment + self.first, np.arange(len(segment)) - begins[segment] + self.offset * (segment == 0)

    @cached_property
    def closed(self) -> NDArray[np.bool_]:
        """[n] whether each segment's trajectory ends in the window."""
        return np.arange(len(self.block.lengths)) < self.block.closed

    @cached_property
    def recorded(self) -> NDArray[np.bool_]:
        """[S + closed] whether the source recorded each observation."""
        known = np.ones(len(self.row_trajectory), bool)
        finals = np.cumsum(self.block.lengths + self.closed) - 1
        known[finals[self.closed]] = self.block.final_recorded[self.closed]
        return known

    @cached_property
    def last(self) -> Indices:
        """[k] the last step of each trajectory that ends in the window with a step."""
        return (np.cumsum(self.block.lengths) - 1)[self.closed & (self.block.lengths > 0)]

    def known(self, name: str) -> Indices:
        """Return [m] rows of a field that were recorded."""
        if self.schema[name].role == Role.OBSERVATION:
            return np.flatnonzero(self.recorded)
        return np.arange(self.block.steps)


def windows(blocks: Iterable[Block], schema: Schema) -> Iterator[Window]:
    """Yield a window for every block, in order."""
    first = offset = 0
    for block in blocks:
        yield Window(block, schema, first, offset)
        if len(block.lengths):
            offset = int(block.lengths[-1]) + (offset if len(block.lengths) == 1 else 0) if block.is_open else 0
            first += block.closed


class Severity(StrEnum):
    """Severity of a finding: an error spoils learning, a warning may, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a finding: a step, or a whole trajectory if ``step`` is None."""

    trajectory: int
    step: int | None = None

    def __str__(self) -> str:
        return f"trajectory {self.trajectory}" + ("" if self.step is None else f" step {self.step}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a check found.

    Args:
        check: name of the check: ``not-finite``, ``duplicate``.
        severity: ``error``, ``warning`` or ``note``.
        what: the problem, as a sentence without a full stop.
        count: number of affected steps, images or trajectories.
        why: what goes wrong in learning.
        remedy: what to do.
        field: name of the field, if it is about one.
        places: the first few places.
        trajectories: [n] numbers of the trajectories that ``--fix`` leaves out; empty if that does not fix the problem.
    """

    check: str
    severity: Severity
    what: str
    count: int
    why: str
    remedy: str
    field: str | None = None
    places: tuple[Place, ...] = ()
    trajectories: NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))

    def to_json(self) -> dict[str, Any]:
        """Return the finding for ``--json``."""
        described: dict[str, Any] = {name: getattr(self, name) for name in ("check", "field", "what", "count")}
        places = [{"trajectory": place.trajectory, "step": place.step} for place in self.places]
        return {
            **described,
            "severity": str(self.severity),
            "places": places,
            "why": self.why,
            "remedy": self.remedy,
            "fixable": len(self.trajectories) > 0,
        }


class Check(Protocol):
    """Looks at all steps of a dataset once, in order."""

    def see(self, window: Window) -> None:
        """Process the next steps."""

    def findings(self) -> Iterable[Finding]:
        """Return the problems, after all steps."""


@dataclass(slots=True)
class Tally:
    """Count of occurrences, with the first few places."""

    count: int = 0
    places: list[Place] = dataclasses.field(default_factory=list)
    trajectories: set[int] = dataclasses.field(default_factory=set)

    def add(self, trajectory: NDArray[np.int64], step: NDArray[np.int64]) -> None:
        """Count these steps [n] of trajectories [n]."""
        if not len(step):
            return
        self.count += len(step)
        for number, at in zip(trajectory.tolist(), step.tolist(), strict=True):
            if len(self.places) == MAX_PLACES:
                break
            self.places.append(Place(number, at))
        self.trajectories.update(trajectory.tolist())

    def of(self) -> Mapping[str, Any]:
        """Return ``count`` and ``places`` of a finding."""
        return {"count": self.count, "places": tuple(self.places)}

    def numbers(self) -> NDArray[np.int64]:
        """Return [n] numbers of the trajectories, ascending."""
        return np.array(sorted(self.trajectories), np.int64)
