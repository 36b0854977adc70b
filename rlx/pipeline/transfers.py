"""Many transfers at once, and what a verb that transfers a dataset tells when it is done."""

from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from rlx.errors import DownloadError, SourceError
from rlx.pipeline.report import Report
from rlx.source.cancel import Cancel

# Transfers wait for the network and not for a core: enough to hide how long a server takes to answer.
JOBS = 8
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A dataset at its destination, and the number of bytes transferred.

    Args:
        report: the dataset.
        url: the location at the other end.
        files: how many were transferred.
        bytes: of these.
    """

    report: Report
    url: str
    files: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        moved = {"url": self.url, "transferred_files": self.files, "transferred_bytes": self.bytes}
        return {**self.report.to_json(), **moved}


def transfer(
    items: Sequence[T],
    move: Callable[[T, Cancel], int],
    *,
    jobs: int,
    spared: tuple[type[SourceError], ...] = (DownloadError,),
) -> Generator[tuple[T, int | SourceError], None, None]:
    """Move every item, several at a time, and tells of each, when it is done, how many bytes it took.

    Ending it, by an error or by ``close``, cancels running transfers and waits for them.

    Args:
        items: what to move, begun in this order.
        move: moves one and returns the bytes that had to be moved; called from threads. It has to look at ``Cancel``
            now and then.
        jobs: how many at once.
        spared: errors that concern one item alone, so that the others are still moved; they are yielded in place of the
            bytes.
    """
    cancel = Cancel()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="transfer")
    try:
        running: dict[Future[int], T] = {pool.submit(move, item, cancel): item for item in items}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                item, error = running.pop(future), future.exception()
                if isinstance(error, spared):
                    yield item, error
                else:
                    yield item, future.result()
    finally:
        cancel.set()
        pool.shutdown(wait=True, cancel_futures=True)
