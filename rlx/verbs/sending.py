"""Copies of datasets to a location, except files that are already there."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rlx.errors import (
    CorruptDatasetError,
    DatasetError,
    DatasetExistsError,
    DatasetLockedError,
    PartialError,
    SourceError,
    SourceNotFoundError,
)
from rlx.files import lock
from rlx.files.checksum import Digests, FileStat, pieces_of
from rlx.files.directory import Directory
from rlx.files.disk import ABSENT, check_case, file_error
from rlx.files.location import Upload, WritableLocation
from rlx.files.opening import open_location
from rlx.files.retry import Cancel
from rlx.manifest import FILE_NAME, VERSION, FileRecord, Manifest
from rlx.progress import Progress, Silent
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed
from rlx.store.layout import (
    CITATION,
    SHARDS,
    check_claim,
    claimed_for,
    differing,
    listed_files,
    read_manifest,
    seen_manifest,
    small_copies,
)
from rlx.verbs.citation import given_citations
from rlx.verbs.report import Report, check_apart
from rlx.verbs.transfers import PlannedTransfer, TransferPlan, TransferReport, transfer
from rlx.wording import command

logger = logging.getLogger(__name__)
_WAS_THERE = -1
_MAX_CARD_BYTES = 2**30  # of the table of trajectories


def send(
    dataset: str | os.PathLike[str],
    url: str,
    *,
    jobs: int,
    overwrite: bool = False,
    private: bool | None = None,
    license: str | None = None,
    citation: str | None = None,
    version: str | None = None,
    progress: Progress,
) -> TransferReport:
    """Write a dataset to a location: its shards, then its manifest; then delete unlisted files.

    Until the manifest is written, the location holds the previous dataset, or none. Every file is checked
    against the manifest on its way. Files that are there with the same length and checksum are not sent again: the
    checksum is what the manifest there says, or what an interrupted push left beside the file in a bucket.

    Arguments and errors are those of ``rlx.push``.
    """
    local, location = Dataset(dataset), _writable(url)
    version, tagged = version or local.manifest.version, None
    if version is not None:
        tagged = location.tagged(version)
        if tagged is not None and local.manifest.version != version:
            raise _taken(location, version)
    location.create(private=private)
    if version is not None:
        local = _noted(local, version)
    with _held(local, location, overwrite=overwrite):
        return _push(
            local, location, jobs, progress, overwrite=overwrite, said=(license, citation), tag=(version, tagged)
        )


def plan(dataset: str | os.PathLike[str], url: str, *, overwrite: bool = False) -> TransferPlan:
    """Return the files that ``send`` would send; write nothing."""
    local, location = Dataset(dataset), _writable(url)
    known = None if overwrite or seen_manifest(location) is None else _same_dataset(local, location)
    plan = _PushPlan.of(local, location, known, overwrite=overwrite)
    sending = _Sending(local.path, location, plan, Silent())

    def state(name: str) -> str:
        if name not in plan.wanted:
            return "done"
        return "present" if sending.was_there(name) else "missing"

    files = [PlannedTransfer(name, record.bytes, state(name)) for name, record in listed_files(local.manifest).items()]
    return TransferPlan(location.url, files, plan.unwanted)


def _writable(url: str) -> WritableLocation:
    location = open_location(url)
    if location.is_read_only:
        raise DatasetError(f"{location.url} is read-only", hint="push to s3://, gs://, az://, hf:// or a directory")
    return location


def _noted(local: Dataset, version: str) -> Dataset:
    """Return the dataset with its version in the manifest: copies are equal, so it is noted here too."""
    if local.manifest.version == version:
        return local
    with claimed(local.path):
        # Read anew: whoever held the claim before may have added shards.
        manifest = Manifest.load(local.path)
        replace(manifest, notes={**manifest.notes, VERSION: version}).save(local.path)
    return Dataset(local.path)


def _taken(location: WritableLocation, version: str) -> DatasetExistsError:
    return DatasetExistsError(
        f"{location.url}: version {version} names another state of the dataset", hint="choose another `version`"
    )


@contextmanager
def _held(local: Dataset, location: WritableLocation, *, overwrite: bool) -> Iterator[None]:
    """Hold the right to write a location: a lock of a directory, a claim of a bucket, which has no locks."""
    if location.is_atomic:
        yield
        return
    if location.directory is None:
        with claimed_for(location, local.manifest, overwrite=overwrite):
            yield
        return
    check_apart(local.path, location.directory)
    with claimed(location.directory):
        check_case(local.schema, location.directory / lock.FILE_NAME)
        location.sweep(SHARDS)
        yield


def _push(
    local: Dataset,
    location: WritableLocation,
    jobs: int,
    progress: Progress,
    *,
    overwrite: bool,
    said: tuple[str | None, str | None],
    tag: tuple[str | None, str | None],
) -> TransferReport:
    started = time.perf_counter()
    seen = seen_manifest(location)
    known = None if overwrite or seen is None else _same_dataset(local, location)
    plan = _PushPlan.of(local, location, known, overwrite=overwrite)
    is_changed = known is None or known.encode() != local.manifest.encode()
    version, tagged = tag
    if version is not None and tagged is not None and (plan.wanted or is_changed):
        raise _taken(location, version)
    if overwrite and seen is not None:
        # The manifest before the rest: a dataset half removed must not look whole.
        location.delete([FILE_NAME])
        location.delete(plan.unwanted)
    sending = _Sending(local.path, location, plan, progress)
    sending.run(jobs)
    copies = {} if plan.copies is None else _read_copies(local.path, *plan.copies)
    card: dict[str, bytes] = {}
    if location.is_atomic:
        location.delete(plan.unwanted)
        card = _card(local, location, *said, is_changed=is_changed)
    sizes = {name: len(content) for name, content in card.items()}
    progress.expect("bytes", sum(sizes.values()))
    location.put_contents({**copies, **card})
    progress.advance("bytes", sum(sizes.values()))
    sending.count(sizes)
    is_changed |= bool(copies or card)
    if not location.is_atomic:
        check_claim(location, local.manifest)
    # Where all is one commit, what was sent or deleted is committed with the manifest, changed or not.
    if is_changed or (location.is_atomic and (plan.wanted or plan.unwanted)):
        _list(location, local.manifest, None if overwrite else seen)
    if not overwrite and seen is not None and not location.is_atomic:
        location.delete(plan.unwanted)
    if version is not None and tagged is None:
        location.tag(version)
    steps = sum(record.steps for record in local.manifest.shards if record.name in sending.shards)
    skipped = len(local.manifest.shards) - len(sending.shards)
    seconds = time.perf_counter() - started
    report = Report.of(local.path, local.manifest, seconds, steps, skipped_shards=skipped)
    return TransferReport.adding(report, url=location.url, files=sending.files, num_bytes=sending.bytes)


def _same_dataset(local: Dataset, location: WritableLocation) -> Manifest:
    """Return the manifest at the location; the local dataset continues it."""
    there, here = read_manifest(location), local.manifest
    different = differing(there, here)
    if different is None and (lost := [record.name for record in there.shards if record.name not in here.listed]):
        different = f"its shard {lost[0]} is not in {local.path}"
    if different is not None:
        raise DatasetExistsError(
            f"{location.url} holds another dataset: {different}",
            hint="`overwrite` replaces it; rlx pull brings it here",
        )
    return there


def _card(
    local: Dataset, location: WritableLocation, license: str | None, citation: str | None, *, is_changed: bool
) -> dict[str, bytes]:
    """Return the files of a new card of a dataset on the hub, except those that somebody else has written there."""
    if location.page is None or not (is_changed or license or citation):
        return {}
    from rlx.verbs import card  # most locations have none

    there = _contents(location, [card.NAME])
    foreign = card.foreign_files(there)
    if foreign:
        there |= _contents(location, [card.CROISSANT, card.TABLE, CITATION])
        foreign = card.foreign_files(there)
    for name in (card.NAME, card.CROISSANT):  # what was said of the dataset before still holds
        if name in there and name not in foreign:
            license = license or card.stated_license(there[name].decode(errors="replace"))
    if citation is None:
        copies = [Directory(local.path), *([] if CITATION in foreign else [location])]
        given = next(filter(None, (given_citations(local.manifest, copy) for copy in copies)), [])
        citation = "\n\n".join(given) or None
    version = local.manifest.version
    shown = location if version is None else location.at(version)
    files = card.Card(local, shown.url, location.page, shown.public_url(card.TABLE), license, citation).files()
    if not foreign:
        return files
    # Only the README.md of rlx shows the images.
    kept = sorted(name for name in files if name in foreign or name in card.PICTURES)
    kept.remove(card.NAME)
    said = [f"{location.url}/{card.NAME} is kept: it lacks the line {card.MARK} of rlx"]
    said += [f"the licence {license} is not written to it"] if license else []
    said += [f"not written: {', '.join(kept)}"] if kept else []
    logger.warning("%s", "; ".join(said))
    return {name: content for name, content in files.items() if name not in (card.NAME, *kept)}


def _contents(location: WritableLocation, names: Sequence[str]) -> dict[str, bytes]:
    """Return those of the files that the location has."""
    found = {}
    for name in names:
        with suppress(SourceNotFoundError):
            found[name], _ = location.get(name, max_bytes=_MAX_CARD_BYTES)
    return found


def _read_copies(dataset: Path, together: str, names: Sequence[str]) -> dict[str, bytes]:
    """Return the file with copies of the small files, which readers get by one request."""
    try:
        return {together: b"".join(piece for name in names for piece in pieces_of(dataset / name))}
    except OSError:  # one that was sent before is gone here
        return {}


def _list(location: WritableLocation, manifest: Manifest, seen: FileStat | None) -> None:
    if not location.replace(FILE_NAME, manifest.encode(), seen=seen):
        raise DatasetLockedError(
            f"{location.url} was changed by another push meanwhile", hint="run the same command again"
        )


@dataclass(frozen=True, slots=True)
class _PushPlan:
    """The work of a push.

    Args:
        wanted: record of every file to send, by its name at the location.
        doubtful: which of these may be there: of that length, and listed by no manifest.
        unwanted: files below the shards there that the manifest will not list.
        copies: name of the file with copies of small files, and their order; None if it is there, or in a directory,
            which does without.
    """

    wanted: Mapping[str, FileRecord]
    doubtful: frozenset[str]
    unwanted: list[str]
    copies: tuple[str, Sequence[str]] | None

    @classmethod
    def of(cls, local: Dataset, location: WritableLocation, known: Manifest | None, *, overwrite: bool) -> "_PushPlan":
        files, listed = listed_files(local.manifest), {} if known is None else listed_files(known)
        there = {stored.name: stored.bytes for stored in location.list(SHARDS)}
        small, names = small_copies(local.manifest)
        unwanted = sorted(set(there) - set(files) - {small})
        is_missing = bool(names) and location.directory is None and (overwrite or small not in there)
        copies = (small, names) if is_missing else None
        if overwrite:
            return cls(files, frozenset(), unwanted, copies)
        same_length = {name for name, record in files.items() if there.get(name) == record.bytes}
        wanted = {
            name: record for name, record in files.items() if name not in same_length or listed.get(name) != record
        }
        # The hub compares checksums of its own when files are put.
        doubtful = frozenset() if location.is_atomic else frozenset(same_length & set(wanted))
        return cls(wanted, doubtful, unwanted, copies)


class _Sending:
    """Transfer of the files of a plan."""

    def __init__(self, dataset: Path, location: WritableLocation, plan: _PushPlan, progress: Progress) -> None:
        self._dataset = dataset
        self._location = location
        self._plan = plan
        self._progress = progress
        self.files = 0
        self.bytes = 0
        self.shards: set[str] = set()

    def run(self, jobs: int) -> None:
        """Return when everything is there."""
        wanted = self._plan.wanted
        names, size = list(wanted), self._location.max_batch
        batches = [tuple(names[i : i + size]) for i in range(0, len(names), size)]
        self._progress.expect("bytes", sum(record.bytes for record in wanted.values()))
        failures: list[SourceError] = []
        failed = 0
        with closing(transfer(batches, self._send, jobs=jobs)) as transfers:
            for batch, sent in transfers:
                if isinstance(sent, SourceError):
                    failures.append(sent)
                    failed += len(batch)
                elif sent != _WAS_THERE:
                    new = self.count({name: wanted[name].bytes for name in batch})
                    self.shards.update(name.split("/")[1] for name in new)
        if not failures:
            return
        if failed == len(wanted):
            raise failures[0]
        raise PartialError(
            f"{failed} of {len(wanted)} files could not be sent to {self._location.url}: {failures[0]}",
            hint="run the same command again: it sends the rest",
        )

    def count(self, files: Mapping[str, int]) -> list[str]:
        """Count files that were put, given their bytes; return those that the location did not have already."""
        new = [name for name in files if not self._location.is_unchanged(name)]
        self.files += len(new)
        self.bytes += sum(files[name] for name in new)
        return new

    def _send(self, batch: tuple[str, ...], cancel: Cancel) -> int:
        cancel.check()
        uploads = [self._upload(name, cancel) for name in batch if not self.was_there(name)]
        if not uploads:
            return _WAS_THERE
        self._location.put_all(uploads)
        return sum(upload.bytes for upload in uploads)

    def was_there(self, name: str) -> bool:
        """Return whether an interrupted push has sent a file already."""
        record = self._plan.wanted[name]
        found = name in self._plan.doubtful and self._location.stat(name).crc32c == record.crc32c
        if found:
            self._progress.advance("bytes", record.bytes)
        return found

    def _upload(self, name: str, cancel: Cancel) -> Upload:
        record, path = self._plan.wanted[name], self._dataset / name
        sent = partial(self._progress.advance, "bytes")
        return Upload(name, path, lambda: self._checked(path, record, cancel), record.bytes, record.crc32c, sent)

    def _checked(self, path: Path, record: FileRecord, cancel: Cancel) -> Iterator[bytes]:
        """Yield the content of a file; raise an error at its end if it does not match the manifest."""
        digests = Digests()
        try:
            for piece in pieces_of(path):
                cancel.check()
                digests.update(piece)
                yield piece
        except OSError as exc:
            if exc.errno in ABSENT:
                raise CorruptDatasetError(f"{path} is missing", hint=_repair(self._dataset)) from exc
            raise file_error(exc, path) from exc
        if (digests.bytes, digests.crc32c) != (record.bytes, record.crc32c):
            raise CorruptDatasetError(
                f"{path} is damaged: {digests.bytes:,} bytes with crc32c {digests.crc32c}, "
                f"expected {record.bytes:,} with {record.crc32c}",
                hint=_repair(self._dataset),
            )


def _repair(dataset: Path) -> str:
    return command("rlx", "repair", dataset)
