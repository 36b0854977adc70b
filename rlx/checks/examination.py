"""An examination: all checks over all steps of a dataset, in one pass."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.block import Block
from rlx.checks.check import Check, Finding, Severity, windows
from rlx.checks.episodes import Clocks, Duplicates, Flags, Joins, Lengths
from rlx.checks.rewards import ClippedRewards, FirstRewards, RewardLag
from rlx.checks.sequences import LastSteps, Repeats
from rlx.checks.values import Constant, NotFinite, OutsideSpace, Pictures
from rlx.progress import Progress, receiver
from rlx.schema import Schema

_ORDER = {severity: number for number, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of an examination."""

    steps: int
    trajectories: int
    findings: Sequence[Finding]


def digests(blocks: Iterable[Block], schema: Schema) -> Mapping[bytes, int]:
    """Return the digest and the number of each distinct trajectory, to compare other datasets with."""
    duplicates = Duplicates(schema)
    for window in windows(blocks, schema):
        duplicates.see(window)
    return duplicates.digests


def examine(
    blocks: Iterable[Block],
    schema: Schema,
    *,
    name: str,
    notes: Mapping[str, Any],
    others: Mapping[bytes, str] | None = None,
    progress: Progress | None = None,
) -> Examination:
    """Run all checks over the steps of a dataset.

    Args:
        name: id of the dataset.
        notes: notes of the dataset, for the environment's limit of steps and for clipped rewards.
        others: digests of other datasets' trajectories, and what to call each dataset.

    Example:
        >>> import numpy as np
        >>> from rlx.block import single
        >>> schema = Schema.of(observation=("float32", (2,)), action=("int64", ()))
        >>> flags = np.array([False, True])
        >>> data = {"observation": np.array([[0, 1], [2, 3], [4, np.nan]], "f4"), "action": np.arange(2),
        ...         "reward": np.ones(2, "f4"), "terminated": flags, "truncated": ~flags & flags}
        >>> found = examine([single(data, episode=0)], schema, name="Toy", notes={})
        >>> found.findings[0].what, str(found.findings[0].places[0])
        ('observation is NaN or infinite', 'trajectory 0 step 2')
    """
    progress = receiver(progress)
    checks: list[Check] = [
        Flags(),
        Clocks(schema),
        Duplicates(schema, others),
        Lengths(_max_episode_steps(notes)),
        Joins(schema),
        LastSteps(schema),
        Repeats(schema),
        FirstRewards(),
        RewardLag(schema),
        ClippedRewards(schema, notes, name),
        NotFinite(schema),
        OutsideSpace(schema),
        Constant(schema),
        Pictures(schema),
    ]
    steps = trajectories = 0
    for window in windows(blocks, schema):
        for check in checks:
            check.see(window)
        steps, trajectories = steps + window.block.steps, trajectories + window.block.closed
        progress.advance("steps", window.block.steps)
    found = [finding for check in checks for finding in check.findings()]
    return Examination(steps, trajectories, sorted(found, key=lambda one: _ORDER[one.severity]))


def _max_episode_steps(notes: Mapping[str, Any]) -> int | None:
    """Return the environment's time limit, if it is noted."""
    spec = notes.get("environment_spec")
    limit = spec.get("max_episode_steps") if isinstance(spec, Mapping) else None
    return limit if isinstance(limit, int) and limit > 0 else None
