"""Copies of datasets from a location, except files that are already here."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rlx.errors import (
    CorruptShardError,
    DatasetExistsError,
    DownloadError,
    FileAccessError,
    SourceError,
    SourceNotFoundError,
)
from rlx.files.atomic import PARTIAL
from rlx.files.beneath import try_remove
from rlx.files.checksum import FileStat
from rlx.files.disk import check_room, disk_errors
from rlx.files.location import Location, WritableLocation
from rlx.files.opening import open_location
from rlx.files.retry import Cancel
from rlx.files.urls import is_url
from rlx.home import below_home, locate
from rlx.manifest import Manifest, ShardRecord
from rlx.progress import Progress
from rlx.store.dataset_writer import DatasetWriter, claimed, open_writer
from rlx.store.layout import CITATION, SHARDS, SOURCE_FILES, listed_files, read_manifest, shard_files
from rlx.verbs.citation import given_citations, write_citations
from rlx.verbs.report import Report, bytes_at, check_apart, manifest_at
from rlx.verbs.transfers import PlannedTransfer, TransferPlan, TransferReport, transfer

logger = logging.getLogger(__name__)
_ELSEWHERE = "`overwrite` starts afresh; `output` chooses another directory"
# Below the directory of raw files, which a resumed pull leaves alone.
_ARRIVING = f"{SOURCE_FILES}/pull"


def receive(
    url: str, destination: Path | None = None, *, jobs: int, overwrite: bool = False, progress: Progress
) -> TransferReport:
    """Copy a dataset here, every file checked on its way. A shard is listed when all its files are here.

    Shards that are listed here already are not fetched again. The download of a partial file is resumed.

    Returns: The report of the local dataset; its ``failures`` are the shards that could not be fetched, or were
        damaged.

    Arguments and errors are those of ``rlx.pull``.
    """
    started = time.perf_counter()
    location = _opened(url)
    remote = read_manifest(location)
    path = below_home(remote.id) if destination is None else destination
    if location.directory is not None:
        check_apart(location.directory, path)
    with claimed(path, overwrite=overwrite) as claim:
        writer = open_writer(claim.place, replace(remote, shards=()))
        skipped = len(writer.manifest.shards)
        # Partial files of a pull that is run again, overwriting or not, are below the dataset's own directory.
        arriving = path / _ARRIVING
        pulling = _Pulling(
            location, writer, _pending(remote, writer.manifest, writer.path, location), arriving, progress
        )
        pulling.run(jobs)
        if writer.manifest.shards or not pulling.failures:  # a dataset of which nothing came is not there
            _take_over(remote, writer)
        if not pulling.failures:
            claim.finish()
            _bring_citations(remote, location, path, overwrite=overwrite)
    path = claim.place if pulling.failures else path
    seconds = time.perf_counter() - started
    report = Report.of(path, writer.manifest, seconds, pulling.steps, skipped_shards=skipped, failures=pulling.failures)
    return TransferReport.adding(report, url=location.url, files=pulling.files, num_bytes=pulling.bytes)


def _bring_citations(remote: Manifest, location: Location, path: Path, *, overwrite: bool) -> None:
    """Write the citations that were given with a dataset beside its manifest; only locations with a card have them."""
    if not (isinstance(location, WritableLocation) and location.page):
        return
    try:
        given = given_citations(remote, location)
    except SourceError as exc:  # the dataset is here, whole
        logger.warning("the citations were not fetched: %s", exc)
        return
    if overwrite:
        (path / CITATION).unlink(missing_ok=True)
    write_citations(path, given)


def plan(url: str, destination: Path | None = None, *, overwrite: bool = False) -> TransferPlan:
    """Return the files that ``receive`` would fetch; write nothing."""
    location = _opened(url)
    remote = read_manifest(location)
    path = below_home(remote.id) if destination is None else destination
    here = None if overwrite else manifest_at(path)
    if here is not None and (different := here.difference(remote)):
        raise DatasetExistsError(f"{path} holds another dataset: {different}", hint=_ELSEWHERE)
    pending = {shard.name for shard in _pending(remote, here, path, location)}

    def state(name: str) -> str:
        if name.split("/")[1] not in pending:
            return "done"
        arriving = path / _ARRIVING / name
        if arriving.is_file():
            return "present"
        return "partial" if arriving.with_name(f"{arriving.name}{PARTIAL}").is_file() else "missing"

    files = [PlannedTransfer(name, record.bytes, state(name)) for name, record in listed_files(remote).items()]
    return TransferPlan(location.url, files)


def _opened(url: str) -> WritableLocation:
    location = open_location(url)
    return location if is_url(url) else open_location(locate(url))


def _pending(remote: Manifest, here: Manifest | None, path: Path, location: Location) -> list[ShardRecord]:
    """Return the shards that are still to come; those that are here must be the same."""
    theirs = {record.name: record.files for record in remote.shards}
    for record in here.shards if here else ():
        if theirs.get(record.name, record.files) != record.files:
            raise DatasetExistsError(
                f"{path} holds another dataset: its shard {record.name} is not that of {location.url}",
                hint=_ELSEWHERE,
            )
    listed = here.listed if here else set()
    return [record for record in remote.shards if record.name not in listed]


def _take_over(remote: Manifest, writer: DatasetWriter) -> None:
    """Let the manifest say all that the remote one says, which may have grown since a part was pulled."""
    planned = sorted({*remote.planned, *writer.manifest.planned})
    writer.manifest = replace(remote, planned=planned, shards=writer.manifest.shards)
    writer.save()


class _Pulling:
    """Transfer of the files of shards that commits every complete shard.

    Attributes:
        files: how many arrived, less those that had arrived before.
        bytes: of these, less what had arrived before.
        steps: of the shards that were committed.
        failures: what went wrong, by name of the shard.
    """

    def __init__(
        self,
        location: Location,
        writer: DatasetWriter,
        shards: Sequence[ShardRecord],
        arriving: Path,
        progress: Progress,
    ) -> None:
        self._location = location
        self._writer = writer
        self._shards = {shard.name: shard for shard in shards}
        self._files = {name: record for shard in shards for name, record in shard_files(shard).items()}
        self._progress = progress
        self._arriving = arriving
        self._arrived: list[ShardRecord] = []  # complete, and not listed yet
        self.files = 0
        self.bytes = 0
        self.steps = 0
        self.failures: dict[str, SourceError] = {}

    def run(self, jobs: int) -> None:
        """Return when every shard is committed or has failed."""
        total = sum(record.bytes for record in self._files.values())
        self._progress.expect("bytes", total)
        self._progress.expect("shards", len(self._shards))
        check_room(self._writer.path, total - bytes_at(self._arriving))
        with disk_errors(self._writer.path):
            try:
                self._receive(jobs)
            finally:
                self._list()
        if not self.failures:
            try_remove(self._arriving)
            with suppress(OSError):
                self._arriving.parent.rmdir()  # unless it holds raw files of a download

    def _receive(self, jobs: int) -> None:
        left = {shard.name: set(shard_files(shard)) for shard in self._shards.values()}
        with closing(transfer(list(self._files), self._fetch, jobs=jobs, spared=_SPARED)) as transfers:
            for name, fetched in transfers:
                shard = name.split("/")[1]
                if isinstance(fetched, SourceError):
                    logger.warning("shard %s: %s", shard, fetched)
                    self.failures.setdefault(shard, fetched)
                    continue
                self.files += fetched > 0
                self.bytes += fetched
                left[shard].discard(name)
                if not left[shard]:
                    self._arrived.append(self._shards[shard])
                    if not self._writer.due_s:
                        self._list()

    def _fetch(self, name: str, cancel: Cancel) -> int:
        record = self._files[name]
        expected = FileStat(name, f"{self._location.url}/{name}", bytes=record.bytes, crc32c=record.crc32c)
        with _named_apart(expected.url):
            fetched = self._location.fetch(name, self._arriving, self._progress, expected=expected, cancel=cancel)
        return fetched.transferred

    def _list(self) -> None:
        """List the shards that have arrived; until then their files stay where the next pull finds them."""
        shards, self._arrived = self._arrived, []
        for shard in shards:
            partial, arrived = self._writer.partial(shard.name), self._arriving / SHARDS / shard.name
            for name in shard.files:
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (arrived / name).replace(partial / name)
            self._writer.add(shard, origin=shard.origin, dropped=shard.dropped)
        self._writer.flush()
        self.steps += sum(shard.steps for shard in shards)
        self._progress.advance("shards", len(shards))


@contextmanager
def _named_apart(url: str) -> Iterator[None]:
    """Translate the error of a file whose path is also a directory of another file in the manifest."""
    try:
        yield
    except FileAccessError as exc:
        if isinstance(exc.__cause__, FileExistsError | NotADirectoryError | IsADirectoryError):
            raise CorruptShardError(f"the manifest lists {url} both as a file and as a directory") from exc
        raise


# A failure of one file need not affect another.
_SPARED = (DownloadError, CorruptShardError, SourceNotFoundError)
