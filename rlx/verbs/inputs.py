"""Inputs of the verbs: files of this machine or of the hub, and datasets, opened as sources."""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlx import manifest
from rlx.block import Block
from rlx.files.disk import disk_errors
from rlx.files.urls import HUB
from rlx.formats.common.fields import not_taken
from rlx.formats.common.rows.episodes import COUNTED, EARLY_FLAGS
from rlx.formats.common.skipping import LeftOut
from rlx.formats.common.source import Source, block_steps
from rlx.formats.finding import find_run
from rlx.home import locate
from rlx.manifest import FileRecord
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.store.layout import SHARDS, shard_files, shard_name
from rlx.store.trajectories import Trajectories
from rlx.verbs.citation import card_citations
from rlx.wording import first_of, plural

if TYPE_CHECKING:
    from rlx.files.hub import Hub

logger = logging.getLogger(__name__)
_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """Files on this machine.

    Args:
        path: of the file or directory.
        origin: URL that they came from, with its commit; None if they were here.
        citations: BibTeX entries of the card there.
    """

    path: Path
    origin: str | None = None
    citations: Sequence[str] = ()


def fetched(source: str | os.PathLike[str], progress: Progress | None = None) -> Fetched:
    """Return the files of a source; those of the hub are fetched into the cache of huggingface_hub.

    ``progress`` receives their ``bytes``.
    """
    if not (isinstance(source, str) and source.startswith(HUB)):
        return Fetched(locate(source))
    # Reading a directory should not load the HTTP libraries.
    from rlx.files.hub import Hub

    return fetched_from(Hub(source), progress)


def fetched_from(location: "Hub", progress: Progress | None = None) -> Fetched:
    """Return the files of a location of the hub; see ``fetched``."""
    path, card = location.snapshot(progress)
    return Fetched(path, location.pinned, card_citations(card))


def open_source(source: Path, source_format: str | None) -> tuple[Source, Path]:
    """Return the dataset or the only run at a path, and the directory that its file names are relative to."""
    is_dataset = (source / manifest.FILE_NAME).exists() or (source / SHARDS).is_dir()
    if source_format == "rlx" or (source_format is None and is_dataset):
        return StoredDataset(opened_parent(source)), source
    with disk_errors(source, "read"):
        run = find_run(source, None, source_format)
        warn(run)
    return run, run.root


def opened_parent(path: Path) -> Dataset:
    """Return a dataset of which another one is made, which will look complete; log how many shards are missing."""
    dataset = Dataset(path)
    if missing := dataset.manifest.missing:
        planned = plural(len(dataset.manifest.planned), "shard")
        logger.warning("%s is not complete: %d of %s missing, and left out", path, len(missing), planned)
    return dataset


def warn_of(left: Mapping[str, str], source: Source) -> None:
    """Log which episodes could not be read when a source was opened, if there are any."""
    if left:
        logger.warning("%s: left out: %s", source.id, LeftOut.of(left))


def warn(source: Source) -> None:
    """Log which parts of a source are left out, and which images are lossy."""
    notes = source.notes
    if keys := [f"{key} ({reason})" for key, reason in not_taken(notes).items()]:
        named = first_of(keys, _MAX_NAMED)
        logger.warning("%s: %s left out: %s", source.id, plural(len(keys), "entry"), named)
    for note, (said, what) in COUNTED.items():
        if count := notes.get(note):
            logger.warning("%s: %s", source.id, said.format(plural(count, what)))
    early = notes.get(EARLY_FLAGS)
    for flag, count in early.items() if isinstance(early, dict) else ():
        logger.warning("%s: %s is set in %s before the last of an episode", source.id, flag, plural(count, "row"))
    for note, encoding in (("lossy_jpeg", "JPEG"), ("lossy_webp", "WebP"), ("lossy_video", "video")):
        lossy = notes.get(note)
        for name in lossy if isinstance(lossy, list) else []:  # notes of a file may have any type
            logger.warning("%s: %s was compressed as %s, which is lossy, by the source", source.id, name, encoding)


class StoredDataset:
    """A dataset as a Source, shard by shard."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.id, self.schema, self.notes = dataset.manifest.id, dataset.schema, dataset.manifest.inherited_notes
        names = dataset.shard_names
        # A shard keeps its number when others are added; its place may change.
        are_numbers = all(name.isdecimal() and shard_name(int(name)) == name for name in names)
        self._places = {int(name) if are_numbers else place: place for place, name in enumerate(names)}

    def shards(self) -> Sequence[int]:
        """Return the numbers of the shards that have steps; their places if a name is not a number."""
        return list(self._places)

    def files(self, shard: int) -> Sequence[str]:
        """Return the names of a shard's files, relative to the dataset's directory."""
        return self.dataset.shard_files(self._places[shard])

    def records(self, shard: int) -> Mapping[str, FileRecord]:
        """Return length and checksum of a shard's files from the manifest."""
        return shard_files(self.dataset.shard_records[self._places[shard]])

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:  # noqa: ARG002  (nothing is)
        """Verify a shard and yield its steps."""
        return self.dataset.shard_blocks(self._places[shard], block_steps(self.schema))

    def table(self, shards: Sequence[int]) -> Trajectories:
        """Return the trajectory table of some shards."""
        return Trajectories.concatenate([self.dataset.shard_table(self._places[shard]) for shard in shards])
