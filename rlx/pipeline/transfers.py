"""Concurrent transfers, and the report of a push or a pull."""

from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, TypeVar

from rlx.errors import DownloadError, SourceError
from rlx.files.retry import Cancel
from rlx.pipeline.report import Report
from rlx.wording import command

# Transfers wait for the network and not for a core: enough to hide how long a server takes to answer.
JOBS = 8
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport(Report):
    """A dataset at its destination, and what was transferred.

    Args:
        dataset, id, store, shards, steps, trajectories, bytes, seconds: see ``Report``.
        steps_written, skipped_shards, failures, not_taken: see ``Report``.
        url: the location at the other end.
        transferred_files: files transferred in this run.
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
            return super().remedy
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
