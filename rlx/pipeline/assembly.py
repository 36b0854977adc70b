"""Datasets assembled from shards of others: complete shards are hard-linked, others are read and re-encoded."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx import manifest
from rlx.block import Block
from rlx.errors import CorruptDatasetError, DatasetExistsError, DatasetNotFoundError, IncompleteDatasetError
from rlx.files.atomic import sync_tree
from rlx.files.disk import disk_errors
from rlx.formats.common.source import block_steps
from rlx.manifest import FileRecord, Manifest, ShardRecord
from rlx.pipeline.ingest import AtHand, Ingest
from rlx.pipeline.options import Options
from rlx.pipeline.report import Report
from rlx.progress import Progress
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import DatasetWriter, claimed, open_writer
from rlx.store.layout import shard_directory, shard_name
from rlx.store.shard_link import link_shard
from rlx.suggestion import command

# Of the time of linking, what may go to writing the manifest.
COMMIT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The input of one new shard: a shard of a dataset, or some of its trajectories.

    Args:
        dataset: whose shard it is.
        place: of the shard among those that have steps.
        trajectories: [n] places of the trajectories in the shard, ascending; none for all of them.
    """

    dataset: Dataset
    place: int
    trajectories: NDArray[np.int64] | None = None

    @property
    def record(self) -> ShardRecord:
        """The manifest's record of the shard."""
        return self.dataset.shard_records[self.place]


@dataclass(frozen=True, slots=True)
class Assembly:
    """Parts of shards of datasets as a Source.

    Args:
        id: what the dataset is to be called.
        schema: of all of them.
        notes: notes of the data.
        parts: by the number of the shard that they become.
    """

    id: str
    schema: Schema
    notes: Mapping[str, Any]
    parts: Mapping[int, ShardPart]

    def shards(self) -> Sequence[int]:
        """Return numbers of the shards to be."""
        return sorted(self.parts)

    def files(self, shard: int) -> Sequence[str]:
        """Return files of the shard that a part is of, below its dataset's directory."""
        part = self.parts[shard]
        return part.dataset.shard_files(part.place)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:  # noqa: ARG002  (nothing is)
        """Yield the steps of a part of a shard, which is verified first."""
        part = self.parts[shard]
        return part.dataset.shard_blocks(part.place, block_steps(self.schema), trajectories=part.trajectories)


def assemble(
    assembly: Assembly,
    parents: Sequence[Dataset],
    destination: Path,
    options: Options,
    progress: Progress,
    recipe: Mapping[str, Any] | None = None,
) -> Report:
    """Write an assembly as a dataset, or its missing shards.

    Args:
        assembly: the assembly to write.
        parents: the datasets that it is of.
        destination: the dataset's directory.
        options: how to write it; a whole shard that is of this store and codec already is linked.
        progress: receives ``bytes`` of linked files, and ``shards`` and ``steps`` of re-encoded ones.
        recipe: what decides the data beside the parents.

    Raises:
        CorruptDatasetError: a shard is damaged.
        DatasetExistsError: the destination holds another dataset, or one made of others or otherwise.
        DatasetLockedError: another process is writing it.
        DiskFullError: no space is left; finished shards are kept.
        PartialError: a worker died.
    """
    started = time.monotonic()
    described = [
        {"id": one.manifest.id, "crc32c": FileRecord.of(one.path / manifest.FILE_NAME).crc32c} for one in parents
    ]
    root = parents[0].path if len(parents) == 1 else None
    lineage = _lineages(parents)
    ingest = Ingest(assembly, root, options, progress, parents=described, lineage=lineage, recipe=recipe or {})
    with claimed(destination):
        if not options.overwrite:
            _check_resumable(destination, ingest.described())
        writer = open_writer(destination, ingest.described(), overwrite=options.overwrite)
        there = len(writer.manifest.listed)
        linked = _link(writer, assembly, ingest.pending(writer.manifest), progress)
        report = replace(ingest, options=replace(options, overwrite=False)).run(destination, AtHand())
    seconds, written = time.monotonic() - started, report.steps_written + linked
    return replace(report, seconds=seconds, steps_written=written, skipped_shards=there)


def _lineages(parents: Sequence[Dataset]) -> list[Mapping[str, Any]]:
    """Return how the parents came about, what they have in common once."""
    steps: list[Mapping[str, Any]] = []
    for parent in parents:
        steps += [step for step in parent.manifest.lineage if step not in steps]
    return steps


def _link(writer: DatasetWriter, assembly: Assembly, pending: Sequence[int], progress: Progress) -> int:
    """Link the shards that can be; return their steps. All of them come before any shard is encoded.

    So the dictionary that those are encoded against is the same however often the work was interrupted. Many shards are
    listed at once: a manifest that were written anew for each would make the time quadratic in their number.
    """
    form = (writer.manifest.store, dict(writer.manifest.codec))
    whole = {number: assembly.parts[number] for number in pending if assembly.parts[number].trajectories is None}
    linked = {
        number: part
        for number, part in whole.items()
        if (part.dataset.manifest.store, dict(part.dataset.manifest.codec)) == form
    }
    progress.expect("bytes", sum(part.record.bytes for part in linked.values()))
    waiting: list[ShardRecord] = []
    due = time.monotonic()
    try:
        for number, part in linked.items():
            waiting.append(_linked(writer, part, shard_name(number), progress))
            if (began := time.monotonic()) >= due:
                _commit(writer, waiting)
                ended = time.monotonic()
                due = ended + (ended - began) / COMMIT_SHARE
    finally:
        _commit(writer, waiting)
    return sum(part.record.steps for part in linked.values())


def _linked(writer: DatasetWriter, part: ShardPart, name: str, progress: Progress) -> ShardRecord:
    """Link the shard of a part to where it is to be committed from; return its record."""
    record = part.record
    origin = {"source": part.dataset.manifest.id, "shard": record.name}
    try:
        shard = shard_directory(part.dataset.path, record.name)
        link_shard(shard, record.files, writer.partial(name), progress)
    except CorruptDatasetError as exc:
        raise CorruptDatasetError(str(exc), hint=command("rlx", "repair", part.dataset.path)) from exc
    return replace(record, name=name, origin=origin)


def _commit(writer: DatasetWriter, waiting: list[ShardRecord]) -> None:
    """List the shards that wait for it; none does afterwards."""
    records = waiting.copy()
    waiting.clear()
    if records:
        with disk_errors(writer.path):
            for record in records:
                sync_tree(writer.partial(record.name))
        writer.commit_all(records)


def _check_resumable(destination: Path, described: Manifest) -> None:
    """Raise DatasetExistsError where a dataset was made of other parents, or by another recipe."""
    try:
        lineage = Manifest.load(destination).lineage
    except (DatasetNotFoundError, IncompleteDatasetError):
        return
    found, wanted = dict(lineage[-1]) if lineage else {}, described.lineage[-1]
    for key in wanted.keys() - {"command", "rlx"}:
        if found.get(key) != wanted[key]:
            raise DatasetExistsError(
                f"{destination} was made otherwise: its {key} is {found.get(key)}, expected {wanted[key]}",
                hint="--overwrite starts afresh; -o chooses another directory",
            )
