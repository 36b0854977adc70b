"""Concurrent transfers: of the files of a push, a pull or a download; and the report of a push or a pull."""

import threading
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from rlx.errors import DownloadError, SourceError
from rlx.files.beneath import beneath
from rlx.files.checksum import FetchedFile
from rlx.files.mirrors import Mirrors
from rlx.files.retry import Cancel
from rlx.formats.common.source import Source
from rlx.manifest import FileRecord
from rlx.progress import Progress
from rlx.verbs.report import Report
from rlx.wording import command

T = TypeVar("T", bound=Hashable)
Arrived = Callable[[int, BaseException | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport(Report):
    """A dataset at its destination, and what was transferred.

    Args:
        dataset, id, store, shards, steps, trajectories, bytes, seconds: see ``Report``.
        steps_written, skipped_shards, failures, not_taken, remarks, left_out: see ``Report``.
        url: the location at the other end.
        transferred_files: files transferred in this run, with those of the card on the hub, without the manifest.
        transferred_bytes: bytes of these files.
    """

    url: str
    transferred_files: int
    transferred_bytes: int

    @classmethod
    def adding(cls, report: Report, *, url: str, files: int, num_bytes: int) -> "TransferReport":
        """Return a report with what was transferred."""
        kept = {each.name: getattr(report, each.name) for each in fields(report)}
        return cls(**kept, url=url, transferred_files=files, transferred_bytes=num_bytes)

    @property
    def remedy(self) -> str:
        """The hint for failed shards: a retry does not fix files that are damaged or missing at the location."""
        if any(isinstance(failure, DownloadError) for failure in self.failures.values()):
            return super(TransferReport, self).remedy  # slots make another class, which a plain super() does not know
        return replacement(self.url)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        moved = {name: getattr(self, name) for name in ("url", "transferred_files", "transferred_bytes")}
        return {**Report.to_json(self), **moved}


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A file of a dataset that is to be at the destination.

    Args:
        file: its name below the dataset.
        bytes: its length.
        state: ``done`` (listed at the destination), ``present`` (there, not listed yet), ``partial`` or ``missing``.
    """

    file: str
    bytes: int
    state: str


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What a push or a pull would transfer.

    Args:
        url: the location at the other end.
        files: the files of the dataset.
        unwanted: files at the destination that would be removed.
    """

    url: str
    files: Sequence[PlannedTransfer]
    unwanted: Sequence[str] = ()

    @property
    def to_transfer(self) -> Sequence[PlannedTransfer]:
        """The files that are not at the destination, or only in part."""
        return [file for file in self.files if file.state in ("missing", "partial")]

    @property
    def bytes(self) -> int:
        """Bytes of the files to transfer."""
        return sum(file.bytes for file in self.to_transfer)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {
            "url": self.url,
            "files": [asdict(file) for file in self.files],
            "transferred_files": len(self.to_transfer),
            "transferred_bytes": self.bytes,
            "unwanted": list(self.unwanted),
        }


def replacement(location: str) -> str:
    """Return the hint for a dataset that is damaged at a location, and has to be pushed again.

    Args:
        location: a URL, or a shared directory.

    Example:
        >>> replacement("s3://bucket/pong")
        'rlx push --overwrite COPY s3://bucket/pong'
    """
    if location.startswith(("http://", "https://")):
        return "with write access, replace it with rlx push --overwrite"
    return command("rlx", "push", "--overwrite", "COPY", location)


def transfer(
    items: Sequence[T],
    move: Callable[[T, Cancel], int],
    *,
    jobs: int,
    spared: tuple[type[SourceError], ...] = (DownloadError,),
) -> Generator[tuple[T, int | SourceError], None, None]:
    """Move all items, several at a time; yield each item when it is done, with the bytes that it took.

    Ending it, by an error or by ``close``, cancels running transfers and waits for them.

    Args:
        items: what to move, begun in this order.
        move: moves one and returns the bytes that had to be moved; called from threads. It has to look at ``Cancel``
            now and then.
        spared: errors that concern one item alone, so that the others are still moved; they are yielded in place of the
            bytes.
    """
    cancel = Cancel()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="transfer")
    try:
        left = iter(items)
        # Only as many as keep all threads busy: waiting for thousands of futures takes time for each of them.
        running: dict[Future[int], T] = {pool.submit(move, item, cancel): item for item in islice(left, 2 * jobs)}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                running |= {pool.submit(move, item, cancel): item for item in islice(left, 1)}
                item, error = running.pop(future), future.exception()
                if isinstance(error, spared):
                    yield item, error
                else:
                    yield item, future.result()
    finally:
        cancel.set()
        pool.shutdown(wait=True, cancel_futures=True)


# Enough to keep a fast link busy over files of a gigabyte; more only splits it.
TRANSFERS = 4


class Delivery:
    """Delivery of the files of shards to the local disk. The base class delivers files that are already there."""

    def start(self, shards: Sequence[int], arrived: Arrived) -> None:
        """Start; call ``arrived(shard, None)``, from any thread, when a shard can be read, or with the error."""
        for shard in shards:
            arrived(shard, None)

    def fetched(self, shard: int) -> Mapping[str, FileRecord]:  # noqa: ARG002
        """Return length and checksum of the files of an arrived shard by name, as far as they are known."""
        return {}

    def origin(self, shard: int) -> list[str]:  # noqa: ARG002
        """Return the bases that the files of an arrived shard came from, as far as that may differ by shard."""
        return []

    def again(self, shard: int, arrived: Arrived) -> bool:  # noqa: ARG002
        """Bring the files of a damaged shard from elsewhere, if possible; return whether it will arrive again."""
        return False

    def finished(self, shard: int) -> None:
        """Release the files of a shard that is committed or has failed."""

    def stop(self) -> None:
        """Stop all transfers and wait for them; partial files are kept."""


class Fetching(Delivery):
    """Transfer of the files of shards below a directory; a file that several shards need is fetched once.

    Args:
        present: files that were fetched already, and stay, by name.
        ahead: shards that may be here, or on their way, and not yet converted: what bounds the disk that is used.
        keep: whether files stay when no shard needs them any more.
    """

    def __init__(
        self,
        base: Mirrors,
        source: Source,
        directory: Path,
        progress: Progress,
        *,
        present: Mapping[str, FetchedFile] = MappingProxyType({}),
        ahead: int,
        keep: bool,
    ) -> None:
        self._base = base
        self._source = source
        self._directory = directory
        self._progress = progress
        self._present = present
        self._keep = keep
        self._cancel = Cancel()
        self._room = threading.Semaphore(ahead)
        self._lock = threading.Lock()
        self._fetched: dict[str, Future[FetchedFile]] = {}
        self._needed_by: dict[str, set[int]] = {}
        self._transfers = ThreadPoolExecutor(TRANSFERS, thread_name_prefix="transfer")
        self._feeder: threading.Thread | None = None

    def start(self, shards: Sequence[int], arrived: Arrived) -> None:
        """Fetch in own threads, in order, at most ``ahead`` shards at once."""
        for shard in shards:
            for name in self._source.files(shard):
                self._needed_by.setdefault(name, set()).add(shard)
        self._feeder = threading.Thread(target=self._feed, args=(shards, arrived), name="transfers")
        self._feeder.start()

    def _feed(self, shards: Sequence[int], arrived: Arrived) -> None:
        for shard in shards:
            self._room.acquire()
            if self._cancel.is_set():
                return
            try:
                self._transfers.submit(self._bring, shard, arrived)
            except RuntimeError as exc:  # no thread can be started
                arrived(shard, exc)

    def _bring(self, shard: int, arrived: Arrived) -> None:
        try:
            for name in self._source.files(shard):
                self._fetch_once(name)
        except CancelledError:
            return
        except BaseException as exc:  # raised, or reported, by the thread that waits; rich exits if a pipe has closed
            arrived(shard, exc)
        else:
            arrived(shard, None)

    def _fetch_once(self, name: str) -> None:
        if name in self._present:
            return
        with self._lock:
            theirs = self._fetched.get(name)
            if theirs is None:
                mine = self._fetched[name] = Future()
        if theirs is not None:
            # The first thread is fetching it right now without waiting for others, so this cannot deadlock.
            theirs.result()
            return
        try:
            mine.set_result(self._base.fetch(name, self._directory, self._progress, cancel=self._cancel))
        except BaseException as exc:
            mine.set_exception(exc)
            raise

    def fetched(self, shard: int) -> Mapping[str, FileRecord]:
        """Return length and checksum of the files whose bytes were looked at when they arrived."""
        names = self._source.files(shard)
        files = {name: self._present.get(name) or self._fetched[name].result() for name in names}
        return {name: FileRecord(file.bytes, file.crc32c) for name, file in files.items() if file.crc32c is not None}

    def origin(self, shard: int) -> list[str]:
        """Return the bases that the files of an arrived shard came from."""
        return list(dict.fromkeys(self._base.served(name) for name in self._source.files(shard)))

    def again(self, shard: int, arrived: Arrived) -> bool:
        """Fetch the files of a damaged shard from the next base that has them, and return whether there is one.

        Files that another shard reads as well stay: which of them is damaged is unknown.
        """
        names = self._source.files(shard)
        with self._lock:
            if any(name in self._present or len(self._needed_by[name]) > 1 for name in names):
                return False
            others = [self._base.refuse(name) for name in names]
            if not any(others):
                return False
            for name in names:
                self._fetched.pop(name, None)
                beneath(self._directory, name).unlink(missing_ok=True)
        self._transfers.submit(self._bring, shard, arrived)
        return True

    def finished(self, shard: int) -> None:
        """Delete the files that no other shard needs, and let the next shard come."""
        for name in self._source.files(shard):
            self._needed_by[name].discard(shard)
            if not self._needed_by[name] and not self._keep and name not in self._present:
                beneath(self._directory, name).unlink(missing_ok=True)
        self._room.release()

    def stop(self) -> None:
        """Cancel running transfers; partial files are kept for the next time."""
        self._cancel.set()
        self._room.release()
        if self._feeder is not None:
            self._feeder.join()
        self._transfers.shutdown(wait=True, cancel_futures=True)
