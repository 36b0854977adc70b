"""Findings: one thing that is wrong with a dataset, where, how often, why it matters and how to mend it."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.checks.window import Window

MAX_PLACES = 5


class Severity(StrEnum):
    """How much a finding matters: an error spoils learning, a warning may, a note is good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was found: a step, or a whole trajectory if ``step`` is None.

    Args:
        trajectory: its number in the dataset.
        step: the step's number in the trajectory.
    """

    trajectory: int
    step: int | None = None

    def __str__(self) -> str:
        return f"trajectory {self.trajectory}" + ("" if self.step is None else f" step {self.step}")


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a check found.

    Args:
        check: name of the check: ``nan``, ``duplicate``.
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
        """Take in the next steps."""

    def findings(self) -> Iterable[Finding]:
        """Return the problems, once all steps were seen."""


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
