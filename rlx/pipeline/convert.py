"""``rlx convert``: local files, of another layout or of a dataset, into a dataset."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlx import manifest
from rlx.block import Block
from rlx.errors import DatasetExistsError, DatasetNotFoundError, IncompleteDatasetError
from rlx.formats.common.source import Source, block_steps
from rlx.formats.finding import find_run
from rlx.formats.registry import readable
from rlx.manifest import FileRecord, Manifest, ShardRecord
from rlx.pipeline.destination import check_apart
from rlx.pipeline.ingest import AtHand, Ingest
from rlx.pipeline.options import Options
from rlx.pipeline.report import Report
from rlx.pipeline.source_warnings import warn
from rlx.progress import Progress
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed
from rlx.store.layout import SHARDS, shard_name
from rlx.store.trajectories import Trajectories

FORMATS = ("rlx", *readable())


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset as a Source, shard for shard."""

    dataset: Dataset

    @property
    def id(self) -> str:
        """Name of the dataset."""
        return self.dataset.manifest.id

    @property
    def schema(self) -> Schema:
        """Schema of a step."""
        return self.dataset.schema

    @property
    def notes(self) -> Mapping[str, Any]:
        """Notes of the data."""
        return self.dataset.manifest.notes

    def shards(self) -> Sequence[int]:
        """Return numbers of the shards that have steps; their places, where a name is no number."""
        return list(self._places)

    def files(self, shard: int) -> Sequence[str]:
        """Return the shard's files, below the dataset's directory."""
        return self.dataset.shard_files(self._places[shard])

    def record(self, shard: int) -> ShardRecord:
        """Return the manifest's record of a shard."""
        return self.dataset.shard_records[self._places[shard]]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:  # noqa: ARG002  (nothing is)
        """Yield the steps of a shard, verified first."""
        return self.dataset.shard_blocks(self._places[shard], block_steps(self.schema))

    def table(self, shards: Sequence[int]) -> Trajectories:
        """Return the table of the trajectories of some shards."""
        return Trajectories.concatenate([self.dataset.shard_table(self._places[shard]) for shard in shards])

    @property
    def _places(self) -> Mapping[int, int]:
        """Place of every shard by its number. A shard that is added later must not give another its number."""
        names = self.dataset.shard_names
        if all(name.isdecimal() and shard_name(int(name)) == name for name in names):
            return {int(name): place for place, name in enumerate(names)}
        return {place: place for place in range(len(names))}


def convert(
    source: Path, destination: Path, options: Options, *, source_format: str | None, progress: Progress
) -> Report:
    """Convert a Dopamine, RL Unplugged or Minari directory, or a dataset, into a dataset; resumes one half done.

    Args:
        source: where the files lie.
        destination: the dataset's directory.
        options: how to write it.
        source_format: one of ``FORMATS``, perhaps with options (``torchrl:time_dim=0``); auto-detected by default.
        progress: receives ``shards`` and ``steps``.

    Raises:
        SourceNotFoundError: the directory holds no run, or more than one.
        IncompleteDatasetError: the source is a dataset without a manifest yet.
        DatasetExistsError: the destination is the source, or contains it, or holds something else.
    """
    check_apart(source, destination)
    ingest = _ingest(source, options, source_format, progress)
    with claimed(destination):
        if not options.overwrite:
            _check_resumable(destination, ingest)
        return ingest.run(destination, AtHand())


def open_source(source: Path, source_format: str | None) -> tuple[Source, Path]:
    """Return the dataset, or the one run, that lies at a path, and what the names of its files are relative to.

    Raises:
        SourceNotFoundError: no run was found, or more than one.
        IncompleteDatasetError: it is a dataset without a manifest yet.
    """
    is_dataset = (source / manifest.FILE_NAME).exists() or (source / SHARDS).is_dir()
    if source_format == "rlx" or (source_format is None and is_dataset):
        return StoredDataset(Dataset(source)), source
    run = find_run(source, None, source_format)
    warn(run)
    return run, run.root


def _check_resumable(destination: Path, ingest: Ingest) -> None:
    """Raise DatasetExistsError if the destination was not converted from this source, whose id may be any other's.

    Of files, checksums are compared for the first shard, and sizes for the others.
    """
    try:
        there = Manifest.load(destination)
    except (DatasetNotFoundError, IncompleteDatasetError):
        return
    wanted = ingest.described()
    if there.difference(wanted):
        return  # which the writer names
    hint = "--overwrite starts afresh; or choose another DST"
    made = there.lineage[-1] if there.lineage else {}
    if made.keys() - wanted.lineage[-1].keys():
        raise DatasetExistsError(
            f"{destination} was made otherwise: by {made.get('command') or 'another function'}", hint=hint
        )
    numbers, is_first = set(ingest.source.shards()), True
    for shard in there.shards:
        number, found = shard.origin.get("shard"), shard.origin.get("files")
        if not isinstance(found, dict) or not isinstance(number, int) or number not in numbers:
            continue  # nothing to compare: only conversions record the files
        if found != _files_now(ingest, number, found, summed=is_first):
            raise DatasetExistsError(
                f"{destination} was made otherwise: its shard {shard.name} is of other files than those of "
                f"{ingest.source.id}",
                hint=hint,
            )
        is_first = False


def _files_now(ingest: Ingest, number: int, recorded: Mapping[str, Any], *, summed: bool) -> Mapping[str, Any]:
    """Return the files of a source's shard with their records; what was recorded of them where it is not disproved."""
    source, root = ingest.source, ingest.root
    if isinstance(source, StoredDataset):
        record = source.record(number)
        return {f"{SHARDS}/{record.name}/{name}": asdict(file) for name, file in record.files.items()}
    if root is None:
        return recorded
    found = dict[str, Any]()
    for name in source.files(number):
        path, before = root / name, recorded.get(name)
        if not path.exists():
            found[name] = before  # deleted since it was converted
        elif summed or not isinstance(before, dict) or path.stat().st_size != before.get("bytes"):
            found[name] = asdict(FileRecord.of(path))
        else:
            found[name] = before
    return found


def _ingest(source: Path, options: Options, source_format: str | None, progress: Progress) -> Ingest:
    opened, root = open_source(source, source_format)
    if not isinstance(opened, StoredDataset):
        return Ingest(opened, root, options, progress)
    parent = {"id": opened.id, "crc32c": FileRecord.of(source / manifest.FILE_NAME).crc32c}
    lineage = opened.dataset.manifest.lineage
    return Ingest(opened, root, options, progress, parents=[parent], lineage=lineage)
