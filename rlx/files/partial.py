"""The part of a file that has arrived, kept so that a broken transfer or a killed process resumes.

``<name>.partial`` holds the bytes, ``<name>.partial.json`` the version of the file they belong to. The file
gets its name once all bytes are there and match the checksums. Of a file without one, ``.partial.json`` also has how
many bytes have been synced: after a power cut, others may be zeros.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Self

from rlx.errors import CorruptShardError
from rlx.files.beneath import no_follow, replace
from rlx.files.checksum import Digests, FetchedFile, FileStat, digests_of
from rlx.files.disk import opened_file, written_file
from rlx.files.durable import make_directories, sync, sync_file

_SIDECAR_MAX_BYTES = 1 << 16
_SYNC_BYTES = 64 << 20  # of a file without a checksum, what a killed process has to fetch again


class Partial:
    """The beginning of one file. At most one may be open for a path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data_path = path.with_name(f"{path.name}.partial")
        self._sidecar_path = path.with_name(f"{path.name}.partial.json")
        self._file: BinaryIO | None = None
        self._digests = Digests()
        self.expected: FileStat | None = None
        self.furthest = 0
        self._synced = 0
        self._resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def offset(self) -> int:
        """How many bytes are here."""
        return self._digests.bytes

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are known to be here; they may still be wrong."""
        return self.expected is not None and self.expected.bytes == self.offset

    @property
    def crc32c(self) -> str:
        """Checksum of the bytes that are here, eight hex digits."""
        return self._digests.crc32c

    def restart(self, expected: FileStat) -> None:
        """Start again with a version of the file."""
        self._close()
        make_directories(self._path.parent)
        # In this order, or a crash in between would leave bytes of one version and the sidecar of another.
        self._file = written_file(self._data_path, is_buffered=False, opener=no_follow)
        self._digests, self.expected, self._synced = Digests(expected), expected, 0
        self._describe()

    def append(self, data: bytes) -> int:
        """Append the next bytes; return how many are received for the first time."""
        assert self._file is not None
        while data:
            # Unbuffered, so that bytes refused by a full disk are not counted: the digests are of the file.
            written = self._file.write(data)
            self._digests.update(data[:written])
            data = data[written:]
        if self.offset - self._synced >= _SYNC_BYTES:
            self._sync()
        gained = max(0, self.offset - self.furthest)
        self.furthest += gained
        return gained

    def discard(self) -> None:
        """Delete the partial file."""
        self._close()
        self._data_path.unlink(missing_ok=True)
        self._sidecar_path.unlink(missing_ok=True)
        self._digests, self.expected = Digests(), None

    def finish(self) -> None:
        """Verify the bytes, and give the file its name."""
        assert self._file is not None
        assert self.expected is not None
        if problem := self._digests.differences(self.expected):
            url = self.expected.url
            self.discard()
            raise CorruptShardError(f"{url} arrived corrupt: {problem}")
        sync_file(self._file, self._data_path)
        self._close()
        replace(self._data_path, self._path)
        sync(self._path.parent)
        self._sidecar_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop writing; keep the partial file."""
        if self._file is not None:
            try:
                self._sync()
            finally:
                self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _sync(self) -> None:
        """Note how many bytes a power cut cannot take, unless a checksum will tell."""
        assert self._file is not None
        assert self.expected is not None
        if self.expected.has_checksum or self._synced == self.offset:
            return
        sync_file(self._file, self._data_path)
        self._synced = self.offset
        self._describe()

    def _describe(self) -> None:
        assert self.expected is not None
        with open(self._sidecar_path, "w", opener=no_follow) as sidecar:
            json.dump({**asdict(self.expected), "synced": self._synced}, sidecar)

    def _resume(self) -> None:
        described = _read_sidecar(self._sidecar_path)
        if described is None or not self._data_path.is_file():
            return
        expected, self._synced = described
        if not (expected.strong_etag or expected.has_checksum):
            return  # two versions could be mixed unnoticed
        if expected.bytes is not None and self._data_path.stat().st_size > expected.bytes:
            return
        self._file = written_file(self._data_path, "a", is_buffered=False, opener=no_follow)
        if not expected.has_checksum:
            self._file.truncate(min(self._synced, self._file.tell()))
        self._digests, self.expected = digests_of(self._data_path, expected), expected
        self.furthest = self.offset


def intact_file(path: Path, expected: FileStat) -> FetchedFile | None:
    """Return the file at a path if it is the expected one; None if it is absent or another.

    Without an expected checksum, the length decides: a file gets its name only when it is whole.
    """
    if not path.is_file() or expected.bytes not in (None, size := path.stat().st_size):
        return None
    if expected.has_checksum:
        digests = digests_of(path, expected)
        return None if digests.differences(expected) else FetchedFile(path, size, digests.crc32c, 0)
    return None if expected.bytes is None else FetchedFile(path, size, None, 0)


def _read_sidecar(path: Path) -> tuple[FileStat, int] | None:
    """Return the version of a file that is arriving, and how many bytes of it have been synced."""
    try:
        with opened_file(path) as file:
            described: dict[str, Any] = json.loads(file.read(_SIDECAR_MAX_BYTES))
        synced = max(0, int(described.pop("synced", 0)))
        return FileStat(**described), synced
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        return None  # the process was killed while writing it
