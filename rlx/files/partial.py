"""The part of a file that has arrived, kept so that a broken transfer or a killed process resumes.

``<name>.partial`` holds the bytes, ``<name>.partial.json`` the version of the file they belong to. The file
gets its name once all bytes are there and are what the checksums say.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import google_crc32c

from rlx.errors import CorruptShardError
from rlx.files.atomic import sync_directory
from rlx.files.base import FileStat

_READ_BYTES = 1 << 20
_SIDECAR_MAX_BYTES = 1 << 16


class Partial:
    """The beginning of one file. At most one may be open for a path.

    Args:
        path: of the file, when it will be whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data_path = path.with_name(f"{path.name}.partial")
        self._sidecar_path = path.with_name(f"{path.name}.partial.json")
        self._file: IO[bytes] | None = None
        self._digests = _Digests()
        self.expected: FileStat | None = None
        self.furthest = 0
        self._resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
    def range_headers(self) -> Mapping[str, str]:
        """The headers that ask an HTTP server for the rest of the same version; empty for a whole file."""
        if not self.offset or self.expected is None:
            return {}
        headers = {"Range": f"bytes={self.offset}-"}
        if self.expected.etag and _is_strong(self.expected.etag):
            headers["If-Match"] = self.expected.etag
        return headers

    def restart(self, expected: FileStat) -> None:
        """Start again with a version of the file."""
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # In this order, or a crash in between would leave bytes of one version and the name of another.
        self._file = open(self._data_path, "wb", buffering=0)  # noqa: SIM115 - lives as long as this object
        self._sidecar_path.write_text(json.dumps(asdict(expected)))
        self._digests, self.expected = _Digests(), expected

    def append(self, data: bytes) -> int:
        """Keep the next bytes; return how many of them were never here before."""
        assert self._file is not None
        while data:
            # Unbuffered, so that bytes refused by a full disk are not counted: the digests are of the file.
            written = self._file.write(data)
            self._digests.update(data[:written])
            data = data[written:]
        gained = max(0, self.offset - self.furthest)
        self.furthest += gained
        return gained

    def discard(self) -> None:
        """Delete the partial file."""
        self.close()
        self._data_path.unlink(missing_ok=True)
        self._sidecar_path.unlink(missing_ok=True)
        self._digests, self.expected = _Digests(), None

    def finish(self) -> None:
        """Give the file its name.

        Raises:
            CorruptShardError: its bytes are not those expected; they are discarded.
        """
        assert self._file is not None
        assert self.expected is not None
        if problem := self._digests.differences(self.expected):
            url = self.expected.url
            self.discard()
            raise CorruptShardError(f"{url} arrived corrupt: {problem}")
        os.fsync(self._file.fileno())
        self.close()
        os.replace(self._data_path, self._path)
        sync_directory(self._path.parent)
        self._sidecar_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop writing; keep the partial file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _resume(self) -> None:
        expected = _read_sidecar(self._sidecar_path)
        if expected is None or not self._data_path.is_file():
            return
        if not (_is_strong(expected.etag or "W/") or expected.crc32c or expected.md5):
            return  # two versions could be mixed and nothing would tell
        if expected.bytes is not None and self._data_path.stat().st_size > expected.bytes:
            return
        self._digests, self.expected = _digest(self._data_path), expected
        self._file = open(self._data_path, "ab", buffering=0)  # noqa: SIM115 - lives as long as this object
        self.furthest = self.offset


def is_intact(path: Path, expected: FileStat) -> bool:
    """Return whether a file is here and is what the base says it is.

    A base that gives no checksum is believed by the length alone: a file gets its name only when it is whole.
    """
    if not path.is_file() or expected.bytes not in (None, path.stat().st_size):
        return False
    if expected.crc32c or expected.md5:
        return not _digest(path).differences(expected)
    return expected.bytes is not None


class _Digests:
    """Length and checksums of the bytes so far."""

    def __init__(self) -> None:
        self.bytes = 0
        self._crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self.bytes += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._md5.update(data)

    def differences(self, expected: FileStat) -> str:
        """Return the differences to the expected values, in words; empty if all are equal."""
        found = {
            "bytes": (expected.bytes, self.bytes),
            "crc32c": (expected.crc32c, f"{self._crc32c:08x}"),
            "md5": (expected.md5, self._md5.hexdigest()),
        }
        return "; ".join(
            f"expected {what} {wanted}, found {got}"
            for what, (wanted, got) in found.items()
            if wanted is not None and wanted != got
        )


def _digest(path: Path) -> _Digests:
    digests = _Digests()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digests.update(data)
    return digests


def _is_strong(etag: str) -> bool:
    # A weak one promises no equal bytes, and If-Match with it never holds (RFC 9110, 13.1.1).
    return not etag.startswith("W/")


def _read_sidecar(path: Path) -> FileStat | None:
    try:
        with path.open("rb") as file:
            return FileStat(**json.loads(file.read(_SIDECAR_MAX_BYTES)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return None  # the process was killed while writing it
