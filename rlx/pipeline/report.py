"""The report of a command that writes a dataset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rlx.errors import PartialError, RlxError, SourceError
from rlx.formats.common.extra_fields import not_taken
from rlx.manifest import Manifest
from rlx.quantities import plural
from rlx.suggestion import RESUME


@dataclass(frozen=True, slots=True)
class Report:
    """The dataset that a function has written.

    Args:
        dataset: directory of the dataset.
        id: name of the dataset.
        store: ``zarr`` or ``memmap``.
        shards: number of complete shards.
        steps: steps of all complete shards.
        trajectories: trajectories of all complete shards.
        bytes: bytes of all complete shards.
        seconds: duration of the call.
        steps_written: steps that this call has written.
        skipped_shards: number of shards that were complete before.
        failures: error of each shard that failed, by its name.
        not_taken: reason for each entry of the source's files that is not in the dataset.
    """

    dataset: Path
    id: str
    store: str
    shards: int
    steps: int
    trajectories: int
    bytes: int
    seconds: float
    steps_written: int
    skipped_shards: int = 0
    failures: Mapping[str, SourceError] = field(default_factory=dict)
    not_taken: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        dataset: Path,
        listed: Manifest,
        seconds: float,
        steps_written: int,
        *,
        skipped_shards: int = 0,
        failures: Mapping[str, SourceError] | None = None,
    ) -> Self:
        """Return the report of a dataset whose manifest is now ``listed``."""
        return cls(
            dataset,
            listed.id,
            listed.store,
            len(listed.shards),
            listed.steps,
            listed.trajectories,
            listed.bytes,
            seconds,
            steps_written,
            skipped_shards,
            failures or {},
            not_taken(listed.notes),
        )

    @property
    def failed_shards(self) -> list[str]:
        """Names of the shards that failed, in order."""
        return sorted(self.failures)

    @property
    def error(self) -> RlxError | None:
        """The error of the shards that failed; None if none did.

        A ``PartialError`` if some shards are complete, otherwise the error of the first shard.
        """
        if not self.failures:
            return None
        if not self.shards:
            return self.failures[self.failed_shards[0]]
        failed = f"{plural(len(self.failures), 'shard')} failed: {', '.join(self.failed_shards)}"
        return PartialError(f"{self.id}: {failed}", hint=self.remedy)

    @property
    def remedy(self) -> str:
        """The hint for shards that failed."""
        return RESUME

    def raise_for_failures(self) -> Self:
        """Return the report itself, or raise its ``error`` if shards failed."""
        if (error := self.error) is not None:
            raise error
        return self

    @property
    def steps_per_second(self) -> float:
        """Steps written in this run, per second."""
        return round(self.steps_written / self.seconds, 1) if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {
            "dataset": str(self.dataset),
            "id": self.id,
            "store": self.store,
            "shards": self.shards,
            "steps": self.steps,
            "trajectories": self.trajectories,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "steps_per_second": self.steps_per_second,
            "skipped_shards": self.skipped_shards,
            "failed_shards": self.failed_shards,
            "not_taken": dict(self.not_taken),
            **({} if self.error is None else {"error": self.error.to_json()}),
        }
