"""Writer of a dataset, shard by shard: shards listed in the manifest are complete, unlisted ones are removed."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlx import manifest
from rlx.errors import DatasetError, DatasetExistsError, DatasetNotFoundError, IncompleteDatasetError, OptionError
from rlx.files import lock
from rlx.files.beneath import check_entries, remove, try_remove
from rlx.files.disk import check_case, disk_errors, is_there
from rlx.files.durable import sync, sync_tree
from rlx.files.urls import check_no_url
from rlx.fork import released_here
from rlx.home import home
from rlx.manifest import Manifest, ShardRecord
from rlx.manifest_values import check_id
from rlx.store.codec import Codec
from rlx.store.journal import read_journal
from rlx.store.layout import (
    JOURNAL,
    NEW,
    SHARDS,
    abandon,
    discard,
    is_own,
    partial_directory,
    settle,
    shard_directory,
    shard_name,
    take_place,
)
from rlx.store.stores import read_dictionary
from rlx.store.writer import ShardFormat, train_dictionaries, write_shard

# Note of a dataset with the steps and trajectories that were dropped because newer ones came.
DROPPED = "dropped_oldest"
logger = logging.getLogger(__name__)
# Suffixes of files that rlx writes in other projects' formats.
_FILES = {".npz": "npz", ".parquet": "parquet", ".h5": "d4rl", ".hdf5": "d4rl"}
# Share of a core that may go to writing the manifest, which grows with every shard.
LISTING_SHARE = 0.1
# A shard is listed at once as long as this takes no longer: a manifest of some hundred shards.
CHEAP_LISTING_S = 0.002


class DatasetWriter:
    """The only writer of the list of shards: workers write them to ``partial(name)``, it moves and commits them.

    Attributes:
        manifest: as it stands on disk, or will with the first commit.
    """

    def __init__(self, path: Path, described: Manifest) -> None:
        self.path = path
        self.manifest = described
        self._waiting: list[ShardRecord] = []
        self._due = time.monotonic()

    def partial(self, name: str) -> Path:
        """Return the partial directory of a shard of this name.

        No other process writes there, not even a worker that outlives its killed writer for a moment.
        """
        return partial_directory(self.path, name, os.getpid())

    def format(self) -> ShardFormat:
        """Return the format of the shards, with the dictionaries of existing shards."""
        described = self.manifest
        shards = ShardFormat(described.schema, described.store, Codec.from_json(described.codec))
        # An empty shard was written before any frame was seen, so without a dictionary.
        first = next((shard for shard in described.shards if shard.steps), None)
        if first is None:
            return shards
        directory = shard_directory(self.path, first.name)
        return replace(shards, dictionaries={name: read_dictionary(directory, name) for name in shards.coded()})

    def commit(self, record: ShardRecord, *, origin: Mapping[str, Any], dropped: Mapping[str, int]) -> ShardRecord:
        """List the complete shard in ``partial(record.name)``; return its record."""
        record = replace(record, origin=dict(origin), dropped=dict(dropped))
        self.commit_all([record])
        return record

    def add(self, record: ShardRecord, *, origin: Mapping[str, Any], dropped: Mapping[str, int]) -> None:
        """Keep the complete shard in ``partial(record.name)`` for ``flush``, which lists many at once.

        A caller flushes whenever ``due_s`` is 0, so that writing manifests takes a tenth of a core at most and not time
        quadratic in the number of shards.
        """
        self._waiting.append(replace(record, origin=dict(origin), dropped=dict(dropped)))

    @property
    def due_s(self) -> float:
        """Seconds until the added shards should be listed."""
        return max(0.0, self._due - time.monotonic())

    @property
    def waiting(self) -> list[str]:
        """Names of the shards that were added and are not listed yet."""
        return [record.name for record in self._waiting]

    def flush(self) -> None:
        """List the shards that were added."""
        records, self._waiting = self._waiting, []
        if records:
            began = time.thread_time()  # without waiting for the disk, which takes no longer for many shards
            self.commit_all(records)
            cost = time.thread_time() - began
            self._due = time.monotonic() + (cost / LISTING_SHARE if cost > CHEAP_LISTING_S else 0.0)

    def commit_all(self, records: Sequence[ShardRecord]) -> None:
        """List the complete shards in ``partial(record.name)``, all by one replacement of the manifest.

        Their files are synced first: a power cut never leaves a listed shard with files that were not written.
        """
        with disk_errors(self.path):
            for record in records:
                sync_tree(self.partial(record.name))
                self.partial(record.name).replace(shard_directory(self.path, record.name))
            sync(self.path / SHARDS)
            self.manifest = self.manifest.with_shards(records)
            self.manifest.save(self.path)

    def drop(self, shards: Sequence[tuple[str, int, int]]) -> None:
        """Remove shards, listed or in a journal, with their steps and trajectories, which a note counts.

        Their files are removed once the manifest on disk does not name them: whoever reads it finds what it lists.
        """
        listed = self.manifest
        names = [name for name, *_ in shards]
        steps, trajectories = (sum(counts) for counts in list(zip(*shards, strict=True))[1:])
        match listed.notes.get(DROPPED):
            case {"steps": int(before), "trajectories": int(episodes)}:
                steps, trajectories = steps + before, trajectories + episodes
        note = {DROPPED: {"steps": steps, "trajectories": trajectories}}
        self.manifest = replace(listed.without_shards(set(names)), notes={**listed.notes, **note})
        with disk_errors(self.path):
            self.manifest.save(self.path)
            for name in names:
                try_remove(shard_directory(self.path, name))
                (self.path / JOURNAL / name).unlink(missing_ok=True)

    def save(self) -> None:
        """Write the manifest, also for a dataset without shards."""
        with disk_errors(self.path):
            self.manifest.save(self.path)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a dataset.

    Args:
        place: where to write: the same directory, or ``.new`` in it where the dataset that is there is to be replaced.
    """

    path: Path
    place: Path

    def finish(self) -> None:
        """Replace the old dataset by the new one, which is complete."""
        if self.place != self.path:
            take_place(self.path)


@contextmanager
def claimed(path: Path, *, overwrite: bool = False) -> Iterator[Claim]:
    """Lock the dataset at a path, which is created if needed, and removed again if nothing was written.

    Args:
        path: the dataset's directory.
        overwrite: whether to start afresh. The dataset that is there stays until ``Claim.finish``; without that, what
            was listed of the new one stays below ``.new`` until the next overwriting.
    """
    check_no_url(path)
    _refuse_file_name(path)
    _refuse_foreign(path)
    with disk_errors(path), lock.writing(path), released_here(partial(_remove_empty, path)):
        settle(path)
        check_entries(path / SHARDS)
        check_entries(path / JOURNAL)
        if not overwrite:
            write_journaled(path)
            yield Claim(path, path)
        elif is_there(path / manifest.FILE_NAME):
            discard(path)
            with _new(path) as place:
                yield Claim(path, place)
        else:
            discard(path)
            remove(path / SHARDS)
            remove(path / JOURNAL)
            yield Claim(path, path)


def _remove_empty(path: Path) -> None:
    if not (path / manifest.FILE_NAME).exists():
        with suppress(OSError):
            (path / SHARDS).rmdir()  # unless it has a partial shard, which the next writer may resume


@contextmanager
def _new(path: Path) -> Iterator[Path]:
    """Yield the directory of a dataset that is written while the one that it replaces stays."""
    place = path / NEW
    with released_here(partial(abandon, path)):
        place.mkdir()
        # Workers look for it, to see whether they are on a machine that sees the dataset, whose lock is held.
        (place / lock.FILE_NAME).touch()
        yield place


def open_writer(path: Path, described: Manifest) -> DatasetWriter:
    """Open a claimed dataset for writing, new or resumed.

    Leftovers of an interrupted writer are removed; listed shards are kept. Of the manifest of a
    resumed dataset, only the plan changes: it grows.

    Args:
        path: the dataset's directory.
        described: what the dataset is to be; without shards.
    """
    _check(path, described)
    writer = DatasetWriter(path, _resumed(path, described))
    with disk_errors(path):
        (path / SHARDS).mkdir(exist_ok=True)
        _sweep(writer)
    return writer


def write_journaled(path: Path) -> None:
    """Write and list the shards of the journals in a claimed dataset, which a process left that has ended."""
    if not is_there(path / JOURNAL):
        return
    writer = DatasetWriter(path, Manifest.load(path))
    for journal in sorted((path / JOURNAL).iterdir()):
        logger.info("writing the episodes of %s, which an interrupted recording left", journal)
        write_shard_of(journal, writer)
    (path / JOURNAL).rmdir()


def write_shard_of(journal: Path, writer: DatasetWriter) -> None:
    """Write and list the shard of a journal that has ended, and remove the journal."""
    if journal.name not in writer.manifest.listed and (record := shard_of(journal, writer, writer.format())):
        writer.commit(record, origin={}, dropped={})
    journal.unlink()


def shard_of(journal: Path, writer: DatasetWriter, shards: ShardFormat) -> ShardRecord | None:
    """Write the shard of a journal, not listed yet; None if the journal is empty."""
    if not any(True for _ in read_journal(journal)):
        return None
    if not shards.dictionaries:
        shards = replace(shards, dictionaries=train_dictionaries(read_journal(journal), shards))
    return write_shard(writer.partial(journal.name), journal.name, shards, read_journal(journal))


def write_all(
    path: Path, described: Manifest, count: int, write: Callable[[DatasetWriter, Sequence[str]], Sequence[ShardRecord]]
) -> None:
    """Write all shards of a new dataset into a claimed place; they are listed together.

    Args:
        described: what the dataset is to be; without shards and plan.
        write: writes shards of these names to ``partial(name)``; returns their records.
    """
    names = [shard_name(number) for number in range(count)]
    writer = open_writer(path, replace(described, planned=names))
    try:
        writer.commit_all(write(writer, names))
    except BaseException:
        for name in names:
            try_remove(writer.partial(name))
        raise


def _check(path: Path, described: Manifest) -> None:
    try:
        check_id(described.id)
    except ValueError as exc:
        raise DatasetError(f"{exc}: a dataset cannot have this name", hint="rename the source") from exc
    check_case(described.schema, path / lock.FILE_NAME)


def _refuse_file_name(path: Path) -> None:
    """Raise OptionError for a new dataset with the name of a file, by which the user asks for another format.

    Below ``$RLX_HOME`` datasets have the names of what was downloaded, files of the hub among them.
    """
    written = _FILES.get(path.suffix.lower())
    if written is not None and not is_there(path) and not path.is_relative_to(home()):
        raise OptionError(
            f"{path} is the name of a file, and a dataset is a directory",
            hint=f"rlx convert DATASET {path.name} --to {written}",
        )


def _refuse_foreign(path: Path) -> None:
    """Raise DatasetExistsError for a directory that holds anything but a dataset: rlx removes only its own."""
    if not is_there(path):
        return
    foreign = sorted(entry.name for entry in path.iterdir() if not is_own(entry.name)) if path.is_dir() else ["a file"]
    if foreign:
        raise DatasetExistsError(
            f"{path} is not empty and holds {foreign[0]}, which is not part of a dataset",
            hint="choose another directory",
        )


def _resumed(path: Path, described: Manifest) -> Manifest:
    try:
        found = Manifest.load(path)
    except (DatasetNotFoundError, IncompleteDatasetError):
        return described
    if different := found.difference(described):
        raise DatasetExistsError(
            f"{path} holds another dataset: {different}",
            hint="`overwrite` starts afresh; or choose another directory",
        )
    planned = sorted({*found.planned, *described.planned})
    lineage: Sequence[Mapping[str, Any]] = found.lineage
    return replace(found, planned=planned, lineage=lineage or described.lineage)


def _sweep(writer: DatasetWriter) -> None:
    """Remove shards that no manifest lists: incomplete ones, and those whose commit was interrupted."""
    listed = writer.manifest.listed
    # Backwards, so that what an interrupted sweep left goes before anything takes its name.
    for entry in sorted((writer.path / SHARDS).iterdir(), reverse=True):
        if entry.is_dir() and entry.name not in listed:
            logger.info("removing %s, which an interrupted command left", entry)
            # Renamed first: a worker that outlives its killed writer for a moment could add a file meanwhile.
            remove(entry.rename(entry.with_suffix(".swept")))
