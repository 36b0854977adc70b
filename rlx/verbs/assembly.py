"""Datasets assembled from shards of others.

Complete shards are hard-linked, others are read and re-encoded.
"""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptDatasetError, DatasetError, DatasetExistsError, OptionError, SchemaMismatchError
from rlx.formats.common.source import block_steps
from rlx.manifest import ShardRecord
from rlx.progress import Progress
from rlx.schema import Schema
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset, cast_hint
from rlx.store.dataset_writer import DatasetWriter, claimed, open_writer
from rlx.store.layout import shard_directory, shard_name
from rlx.store.writer import link_shard
from rlx.verbs.arguments import Options
from rlx.verbs.ingest import Ingest
from rlx.verbs.inputs import StoredDataset
from rlx.verbs.report import Report, check_apart, clash
from rlx.wording import command, number_ranges

_EXACT = 1e-9  # what a sum of fractions may miss 1 by


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The input of one new shard: a shard of a dataset, or some of its trajectories.

    Args:
        trajectories: [n] places of the trajectories in the shard, ascending; none for all of them.
    """

    dataset: Dataset
    place: int
    trajectories: NDArray[np.int64] | None = None

    @property
    def record(self) -> ShardRecord:
        """The manifest's record of the shard."""
        return self.dataset.shard_records[self.place]


def kept_parts(dataset: Dataset, keeps: NDArray[np.bool_]) -> dict[int, ShardPart]:
    """Return the parts of a dataset's shards that have some of its trajectories, by the shards' numbers.

    Args:
        keeps: [n] whether to keep each trajectory.
    """
    here = np.split(keeps, dataset.first_trajectories[1:-1])
    return {
        number: ShardPart(dataset, place, None if kept.all() else np.flatnonzero(kept))
        for place, (number, kept) in enumerate(zip(StoredDataset(dataset).shards(), here, strict=True))
        if kept.any()
    }


@dataclass(frozen=True, slots=True)
class Assembly:
    """Parts of shards of datasets as a Source."""

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
        options: how to write it; a whole shard that is of this store and codec already is linked.
        recipe: what decides the data beside the parents.
    """
    started = time.monotonic()
    root = parents[0].path if len(parents) == 1 else None
    ingest = Ingest(assembly, root, options, progress, parents=parents, recipe=recipe or {}, renumbers=True)
    with claimed(destination, overwrite=options.overwrite) as claim:
        ingest.check_resumable(claim.place)
        writer = open_writer(claim.place, ingest.described())
        there = len(writer.manifest.listed)
        linked = _link(writer, assembly, ingest.pending(writer.manifest), progress)
        report = ingest.run(claim)
    seconds, written = time.monotonic() - started, report.steps_written + linked
    return replace(report, seconds=seconds, steps_written=written, skipped_shards=there)


def _link(writer: DatasetWriter, assembly: Assembly, pending: Sequence[int], progress: Progress) -> int:
    """Link the shards that can be; return their steps. All of them come before any shard is encoded.

    So the dictionary that those are encoded against is the same however often the work was interrupted.
    """
    form = (writer.manifest.store, dict(writer.manifest.codec))
    whole = {number: assembly.parts[number] for number in pending if assembly.parts[number].trajectories is None}
    linked = {
        number: part
        for number, part in whole.items()
        if (part.dataset.manifest.store, dict(part.dataset.manifest.codec)) == form
    }
    progress.expect("bytes", sum(part.record.bytes for part in linked.values()))
    try:
        for number, part in linked.items():
            record = _linked(writer, part, shard_name(number), progress)
            writer.add(record, origin=record.origin, dropped=record.dropped)
            if not writer.due_s:
                writer.flush()
    finally:
        writer.flush()
    return sum(part.record.steps for part in linked.values())


def _linked(writer: DatasetWriter, part: ShardPart, name: str, progress: Progress) -> ShardRecord:
    record = part.record
    origin = {"source": part.dataset.manifest.id, "shard": record.name}
    try:
        shard = shard_directory(part.dataset.path, record.name)
        link_shard(shard, record.files, writer.partial(name), progress)
    except CorruptDatasetError as exc:
        raise CorruptDatasetError(str(exc), hint=command("rlx", "repair", part.dataset.path)) from exc
    return replace(record, name=name, origin=origin)


def check_distinct(datasets: Sequence[Dataset]) -> None:
    """Raise DatasetError if a dataset is given twice."""
    seen: set[Path] = set()
    for dataset in datasets:
        path = dataset.path.resolve()
        if path in seen:
            raise DatasetError(f"{dataset.path} is given twice: expected different datasets")
        seen.add(path)


def check_schemas(datasets: Sequence[Dataset]) -> None:
    """Raise SchemaMismatchError if the datasets have different fields."""
    first = datasets[0]
    for other in datasets[1:]:
        if different := other.schema.difference(first.schema):
            raise SchemaMismatchError(
                f"{other.path}: {different} as in {first.path}",
                hint=_alike(first, other),
            )


def _alike(first: Dataset, other: Dataset) -> str | None:
    """Return the command that casts fields of one, or leaves out fields that only one has; None if neither helps."""
    if (cast := cast_hint([first, other])) is not None:
        return cast
    if any(other.schema[name] != first.schema[name] for name in other.schema if name in first.schema):
        return None
    for one, rest in ((other, first), (first, other)):
        if extra := [name for name in one.schema if name not in rest.schema]:
            return command("rlx", "preprocess", one.path, "NEW", "--transform", f"exclude:keys={'+'.join(extra)}")
    return None


def check_forms(datasets: Sequence[Dataset]) -> None:
    """Raise DatasetError if the datasets differ in store or codec."""
    first = datasets[0]
    for other in datasets[1:]:
        forms = [(one.manifest.store, str(Codec.from_json(one.manifest.codec))) for one in (other, first)]
        for what, found, expected in zip(("store", "codec"), *forms, strict=True):
            if found != expected:
                hint = f"`to` {forms[1][0]}" + (f" `codec` {forms[1][1]}" if forms[1][0] == "zarr" else "")
                raise DatasetError(
                    f"{other.path}: {what} is {found}, expected {expected} as in {first.path}",
                    hint=f"{hint} re-encodes shards that use another store or codec",
                )


def merged_notes(datasets: Sequence[Dataset]) -> Mapping[str, Any]:
    """Return the notes of all datasets, each that differs with the shards for which it is true."""
    notes: dict[str, Any] = {}
    noted = [dataset.manifest.inherited_notes for dataset in datasets]
    for key in dict.fromkeys(key for notes_of_one in noted for key in notes_of_one):
        said = [notes_of_one.get(key) for notes_of_one in noted]
        if all(one == said[0] for one in said):
            notes[key] = said[0]
            continue
        start, parts = 0, {}
        for dataset, one in zip(datasets, said, strict=True):
            stop = start + len(dataset.shard_names)
            if one is not None and stop > start:
                parts[f"shards {number_ranges(range(start, stop))}"] = one
            start = stop
        notes[key] = parts
    return notes


class By(StrEnum):
    """The unit that is shared out: trajectories, or whole shards, which are linked."""

    TRAJECTORY = "trajectory"
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Division:
    """What determines which trajectory goes to which part.

    Args:
        fractions: of each part; if they sum to less than 1, the remaining fraction is dropped.
    """

    fractions: Sequence[float]
    by: By = By.TRAJECTORY
    seed: int = 0

    def __post_init__(self) -> None:
        text = ",".join(map(str, self.fractions)) or "none"
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise OptionError(f"fractions {text}: expected numbers above 0, at most 1")
        if math.fsum(self.fractions) > 1 + _EXACT:
            raise OptionError(f"fractions {text} add up to {math.fsum(self.fractions):g}, expected at most 1")
        if self.seed < 0:
            raise OptionError(f"seed {self.seed}: expected 0 or more")

    def parts(self, count: int) -> NDArray[np.int64]:
        """Return [count] the part of each of ``count`` trajectories or shards; -1 for those that are left out.

        Example:
            >>> Division([0.5, 0.25]).parts(8)
            array([ 1, -1,  0,  0,  0,  1,  0, -1])
        """
        sums = [math.fsum(self.fractions[: part + 1]) for part in range(len(self.fractions))]
        parts = np.full(count, -1, np.int64)
        order, start = np.random.default_rng(self.seed).permutation(count), 0
        for part, end in enumerate(min(round(sum * count), count) for sum in sums):
            if end == start:
                raise DatasetError(
                    f"part {part + 1} would be empty: {self.fractions[part]} of {count:,} {self._many}",
                    hint="a larger fraction" if self.by == By.TRAJECTORY else "`by` trajectory",
                )
            parts[order[start:end]] = part
            start = end
        return parts

    @property
    def _many(self) -> str:
        return "trajectories" if self.by == By.TRAJECTORY else "shards"


def divide(dataset: Dataset, division: Division) -> list[dict[int, ShardPart]]:
    """Return, for every part of the split, the parts of shards by their numbers."""
    sizes = np.diff(dataset.first_trajectories)
    parts = (
        np.repeat(division.parts(len(sizes)), sizes) if division.by == By.SHARD else division.parts(int(sizes.sum()))
    )
    return [kept_parts(dataset, parts == part) for part in range(len(division.fractions))]


def check_places(dataset: Dataset, destinations: Sequence[Path]) -> None:
    """Raise DatasetExistsError if writing the parts could change the dataset or another part."""
    for number, destination in enumerate(destinations):
        check_apart(dataset.path, destination)
        for other in destinations[:number]:
            if clash(other, destination):
                also = "" if other == destination else f", also as {other}"
                raise DatasetExistsError(f"{destination} is given twice{also}: expected a directory for each part")
