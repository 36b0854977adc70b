"""The delivery of remote files: fetched in the order of the shards, a few ahead of the conversion, deleted after it."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from rlx.files.checksum import FetchedFile
from rlx.files.location import Location
from rlx.files.retry import Cancel
from rlx.formats.common.source import Source
from rlx.manifest import FileRecord
from rlx.pipeline.ingest import Arrived
from rlx.progress import Progress

# Enough to keep a fast link busy over files of a gigabyte; more only splits it.
TRANSFERS = 4


class Fetching:
    """Transfer of the files of shards below a directory; a file that several shards need is fetched once.

    Args:
        base: where they are fetched from.
        source: which files a shard needs.
        directory: where they are put.
        progress: is advanced in ``bytes``.
        present: files that were fetched already, and stay, by name.
        ahead: shards that may be here, or on their way, and not yet converted: what bounds the disk that is used.
        keep: whether files stay when no shard needs them any more.
    """

    def __init__(
        self,
        base: Location,
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
        """Fetch from threads of its own, in order, and never more than ``ahead`` shards at once."""
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
            self._transfers.submit(self._bring, shard, arrived)

    def _bring(self, shard: int, arrived: Arrived) -> None:
        try:
            for name in self._source.files(shard):
                self._fetch_once(name)
        except CancelledError:
            return
        except Exception as exc:  # raised, or reported, by the thread that waits for shards
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

    def finished(self, shard: int) -> None:
        """Delete the files that no other shard needs, and let the next shard come."""
        for name in self._source.files(shard):
            self._needed_by[name].discard(shard)
            if not self._needed_by[name] and not self._keep and name not in self._present:
                (self._directory / name).unlink(missing_ok=True)
        self._room.release()

    def stop(self) -> None:
        """Cancel running transfers; partial files are kept for the next time."""
        self._cancel.set()
        self._room.release()
        if self._feeder is not None:
            self._feeder.join()
        self._transfers.shutdown(wait=True, cancel_futures=True)
