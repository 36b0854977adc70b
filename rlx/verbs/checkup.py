"""Checkups: problems in a dataset, or in files of another project, that mislead a learner."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx import manifest
from rlx.block import Block
from rlx.checks.check import Finding, Severity
from rlx.checks.examination import digests, examine
from rlx.errors import CorruptDatasetError, CorruptShardError, DatasetError
from rlx.files.urls import is_url
from rlx.formats.common.source import Source
from rlx.progress import Progress
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.verbs.arguments import Options
from rlx.verbs.assembly import Assembly, assemble, kept_parts
from rlx.verbs.inputs import StoredDataset, open_source
from rlx.wording import without_secrets

# Checks cost little a step and something a block, so blocks of small rows are long.
_MAX_STEPS = 2**16
_MAX_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Fixed:
    """A copy of a dataset without the trajectories that have errors.

    Args:
        left_out: how many it lacks.
    """

    dataset: Path
    trajectories: int
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {"dataset": str(self.dataset), "trajectories": self.trajectories, "left_out": self.left_out}


@dataclass(frozen=True, slots=True)
class Checkup:
    """The findings in a dataset.

    Args:
        id: name of the dataset.
        path: its path or URL.
        steps: number of checked steps.
        trajectories: number of checked trajectories.
        of_trajectories: number of trajectories of the dataset; for files of another project, of checked trajectories.
        findings: the problems, errors first.
        dropped_rows: number of rows of other projects' files that are not steps, by reason.
        fixed: the copy without the trajectories that have errors, if one was written.
    """

    id: str
    path: str
    steps: int
    trajectories: int
    of_trajectories: int
    findings: Sequence[Finding]
    dropped_rows: Mapping[str, int]
    fixed: Fixed | None = None

    @property
    def ok(self) -> bool:
        """Whether no error was found."""
        return not self.errors

    @property
    def errors(self) -> int:
        """Number of findings that mislead a learner."""
        return self._count(Severity.ERROR)

    @property
    def warnings(self) -> int:
        """Number of findings that may mislead a learner."""
        return self._count(Severity.WARNING)

    @property
    def notes(self) -> int:
        """Number of findings to know about."""
        return self._count(Severity.NOTE)

    def _count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {
            "id": self.id,
            "path": self.path,
            "ok": self.ok,
            "steps": self.steps,
            "trajectories": self.trajectories,
            "of_trajectories": self.of_trajectories,
            "errors": self.errors,
            "warnings": self.warnings,
            "notes": self.notes,
            "findings": [finding.to_json() for finding in self.findings],
            "dropped_rows": dict(self.dropped_rows),
            **({} if self.fixed is None else {"fixed": self.fixed.to_json()}),
        }


def examined(
    path: str, *, source_format: str | None, against: Sequence[str], sample: int | None, progress: Progress
) -> Checkup:
    """Check the meaning of a dataset or of files of another project; see ``rlx.doctor``."""
    problems: list[Finding] = []
    others = {
        digest: without_secrets(other) for other in against for digest in _digests(other, source_format, problems)
    }
    dropped: Counter[str] = Counter()
    source = _opened(path, source_format)
    dataset = source.dataset if isinstance(source, StoredDataset) else None
    if dataset is not None:
        progress.expect("steps", len(dataset))
    blocks = _until_damage(_blocks(source, sample, dropped), problems)
    found = examine(blocks, source.schema, name=source.id, notes=source.notes, others=others, progress=progress)
    return Checkup(
        source.id,
        path if dataset is None else dataset.where,
        found.steps,
        found.trajectories,
        found.trajectories if dataset is None else len(dataset.trajectories),
        [*problems, *found.findings],
        dropped,
    )


def fix(path: str, checkup: Checkup, destination: Path, options: Options, progress: Progress) -> Fixed:
    """Write a copy of a dataset without the trajectories that the findings exclude.

    Args:
        checkup: the findings in the whole dataset.
    """
    dataset = Dataset(path)
    if checkup.trajectories != len(dataset.trajectories):
        raise DatasetError(f"expected a check of every trajectory, found {checkup.trajectories:,}")
    keeps = np.ones(len(dataset.trajectories), bool)
    for finding in checkup.findings:
        keeps[finding.trajectories] = False
    if not keeps.any():
        raise DatasetError(f"{path}: every trajectory has an error, so nothing would be left")
    whole = dataset.manifest
    dropped = {finding.check: len(finding.trajectories) for finding in checkup.findings}
    recipe = {"doctor": {check: count for check, count in dropped.items() if count}}
    assembly = Assembly(whole.id, whole.schema, whole.inherited_notes, kept_parts(dataset, keeps))
    options = replace(options, store=whole.store, codec=Codec.from_json(whole.codec))
    report = assemble(assembly, [dataset], destination, options, progress, recipe)
    return Fixed(destination, report.trajectories, left_out=int((~keeps).sum()))


def _opened(path: str, source_format: str | None) -> Source:
    """Return the dataset at a path, below ``$RLX_HOME`` or at a URL, or the files of another project."""
    if source_format in (None, "rlx") and (
        is_url(path) or (Path(path) / manifest.FILE_NAME).exists() or not Path(path).exists()
    ):
        return StoredDataset(Dataset(path))
    return open_source(Path(path), source_format)[0]


def _digests(path: str, source_format: str | None, problems: list[Finding]) -> Mapping[bytes, int]:
    """Return digests of the trajectories of another dataset; damage that ends it becomes a finding that names it."""
    other, damage = _opened(path, source_format), list[Finding]()
    found = digests(_until_damage(_blocks(other, None, Counter()), damage), other.schema)
    why = "its trajectories after this position could not be compared"
    problems += [replace(one, what=f"{without_secrets(path)}: {one.what}", why=why) for one in damage]
    return found


def _blocks(source: Source, sample: int | None, dropped: Counter[str]) -> Iterator[Block]:
    """Yield the steps, or those of a number of trajectories: of a dataset evenly spread, of other files the first."""
    if isinstance(source, StoredDataset):
        dataset, count = source.dataset, len(source.dataset.trajectories)
        max_steps = max(1, min(_MAX_STEPS, _MAX_BYTES // dataset.schema.row_bytes))
        chosen: NDArray[np.int64] | None = None
        if sample is not None and sample < count:
            chosen = np.arange(sample, dtype=np.int64) * count // sample
        yield from dataset.blocks(max_steps, trajectories=chosen)
        return
    seen = 0
    for shard in source.shards():
        for block in source.blocks(shard, dropped):
            yield block
            seen += block.closed
            if sample is not None and seen >= sample and not block.is_open:
                return


def _until_damage(blocks: Iterator[Block], problems: list[Finding]) -> Iterator[Block]:
    """Yield the blocks; damage that ends them becomes a finding, so that earlier steps are reported too."""
    try:
        yield from blocks
    except (CorruptDatasetError, CorruptShardError) as exc:
        problems.append(
            Finding(
                "damaged",
                Severity.ERROR,
                str(exc),
                count=1,
                why="nothing after this position could be read or checked",
                remedy=exc.hint or "download or restore the files",
            )
        )
