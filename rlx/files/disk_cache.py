"""A cache of pages on the local disk: one file of fixed size, which any number of processes read and write at once.

The file is a table of sets of slots; a page may be in any slot of the set that its key chooses. Neighbouring pages of a
file share a set, so that they come and go together, as they are fetched. No process waits for
another: an entry that was torn by two writers, by a crash or by the disk fails its checksum, which makes it absent.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import struct
import tempfile
import time
import weakref
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import google_crc32c

from rlx.files.beneath import no_follow
from rlx.files.disk import file_error

logger = logging.getLogger(__name__)

# Frames take 100 to 200 bytes and other fields a few, so a page for one random step holds many unwanted ones: small
# pages waste little, and neighbours that are wanted are fetched together anyway.
PAGE_BYTES = 1 << 14
KEY_BYTES = 16
FILE_NAME = "pages"
_MAGIC = b"rlx pages 1\n\0\0\0\0"
_HEAD = struct.Struct("<16sQ")
_HEAD_BYTES = 4096
# Key, checksum of key, version and page, the version, bytes of the page, and the last use in minutes.
_ENTRY = struct.Struct("<16sIIII")
_WAYS = 16
_NEIGHBOURS = 8
_SET_BYTES = _WAYS * _ENTRY.size
_USED = struct.Struct("<I")
_USED_OFFSET = _ENTRY.size - _USED.size
# An epoch over more data than fit would replace every page before it is wanted again, were each new one admitted.
_RECENT_MINUTES = 60
_ADMITTED = 1 / 16


def key_of(page: int, *file: object) -> bytes:
    """Return the key of a page: a digest of its file's identity and its number.

    Example:
        >>> len(key_of(7, "s3://bucket/file")), key_of(1, "a") == key_of(2, "a")
        (16, False)
    """
    group, place = divmod(page, _NEIGHBOURS)
    named = "\n".join(map(str, (group, *file)))
    return blake2b(named.encode(), digest_size=KEY_BYTES - 1).digest() + bytes([place])


class DiskCache:
    """Pages of at most ``PAGE_BYTES`` by key, in one file that outlives the process.

    Where the disk fails or is full, pages are absent and nothing is raised. A full cache mostly keeps what it has
    used within the hour: of pages that do not fit, one in 16 replaces another.

    Args:
        directory: where the file is; created if needed. A file of another size is replaced by an empty one.
        max_bytes: size of the file, at most.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory, self.max_bytes = directory, max_bytes
        self._sets = (max_bytes - _HEAD_BYTES) // (_SET_BYTES + _WAYS * PAGE_BYTES)
        if self._sets < 1:
            least = _HEAD_BYTES + _SET_BYTES + _WAYS * PAGE_BYTES
            raise ValueError(f"a disk cache of {max_bytes} bytes: expected at least {least}")
        self._pages_start = _HEAD_BYTES + self._sets * _SET_BYTES
        try:
            self._file = self._opened(directory)
        except OSError as exc:
            raise file_error(exc, directory) from exc
        weakref.finalize(self, os.close, self._file)
        self._is_writable = True

    def _opened(self, directory: Path) -> int:
        """Return the file, which is replaced if it is no cache of this size: processes keep the one they have open."""
        directory.mkdir(parents=True, exist_ok=True)
        head = _HEAD.pack(_MAGIC, self._sets)
        with open(directory / f"{FILE_NAME}.lock", "a", opener=no_follow) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = directory / FILE_NAME
            with suppress(FileNotFoundError):
                found = no_follow(str(path), os.O_RDWR)
                if os.pread(found, _HEAD.size, 0) == head and os.fstat(found).st_size == self._length:
                    return found
                os.close(found)
            created, name = tempfile.mkstemp(dir=directory)
            try:
                os.ftruncate(created, self._length)
                os.pwrite(created, head, 0)
                os.replace(name, path)
            except OSError:
                os.close(created)
                os.unlink(name)
                raise
            return created

    def __reduce__(self) -> tuple[object, ...]:
        return DiskCache, (self.directory, self.max_bytes)

    @property
    def _length(self) -> int:
        return self._pages_start + self._sets * _WAYS * PAGE_BYTES

    def get(self, key: bytes, version: str | None) -> bytes | None:
        """Return a page; None if it is absent, damaged, or known to be of another version.

        Args:
            version: the file's version, such as its ETag; None if not known yet.
        """
        try:
            number = self._set_of(key)
            for way, (found, checksum, stored, length, used) in enumerate(self._entries(number)):
                if found == key and length <= PAGE_BYTES and (version is None or stored == _number(version)):
                    page = os.pread(self._file, length, self._page_at(number, way))
                    if len(page) == length and _checksum(key, stored, page) == checksum:
                        self._touch(number, way, used)
                        return page
        except OSError:
            logger.debug("disk cache %s cannot be read", self.directory, exc_info=True)
        return None

    def put(self, key: bytes, page: bytes, version: str | None, *, chance: float | None = None) -> None:
        """Keep a page, perhaps instead of another.

        Args:
            chance: a random number below 1, the same for pages that should be kept or left out together.
        """
        if not self._is_writable:
            return
        number = self._set_of(key)
        try:
            way = self._slot_for(key, number, random.random() if chance is None else chance)
            if way is None:
                return
            entry = _HEAD_BYTES + number * _SET_BYTES + way * _ENTRY.size
            stored = _number(version)
            # The page first: until its entry follows, the slot has the checksum of another.
            os.pwrite(self._file, page, self._page_at(number, way))
            os.pwrite(self._file, _ENTRY.pack(key, _checksum(key, stored, page), stored, len(page), _now()), entry)
        except OSError as exc:
            self._is_writable = False
            logger.warning("disk cache %s cannot be written, and is only read from now on: %s", self.directory, exc)

    def _entries(self, number: int) -> list[tuple[bytes, int, int, int, int]]:
        return list(_ENTRY.iter_unpack(os.pread(self._file, _SET_BYTES, _HEAD_BYTES + number * _SET_BYTES)))

    def _slot_for(self, key: bytes, number: int, chance: float) -> int | None:
        """Return the slot for a page; None if it had better be left out."""
        entries = self._entries(number)
        for way, (found, *_) in enumerate(entries):
            if found == key:
                return way
        used, way = min((entry[-1], way) for way, entry in enumerate(entries))
        if used and _now() - used < _RECENT_MINUTES and chance > _ADMITTED:
            return None
        return way

    def _touch(self, number: int, way: int, used: int) -> None:
        if self._is_writable and used != _now():
            os.pwrite(
                self._file, _USED.pack(_now()), _HEAD_BYTES + number * _SET_BYTES + way * _ENTRY.size + _USED_OFFSET
            )

    def _set_of(self, key: bytes) -> int:
        return int.from_bytes(key[:8], "little") % self._sets

    def _page_at(self, number: int, way: int) -> int:
        return self._pages_start + (number * _WAYS + way) * PAGE_BYTES


def _now() -> int:
    return max(int(time.time()) // 60, 0)  # a clock before 1970 too


def _number(version: str | None) -> int:
    return int(google_crc32c.value((version or "").encode()))


def _checksum(key: bytes, version: int, page: bytes) -> int:
    return int(google_crc32c.extend(google_crc32c.value(key + version.to_bytes(4, "little")), page))
