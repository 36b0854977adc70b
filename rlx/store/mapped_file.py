"""A file mapped into memory without a descriptor that stays open, and its length.

``mmap.mmap`` keeps a descriptor for as long as the map lives, of which a process has 1,024 by default; a dataset has
thousands of files. So the map is made by the C library, and the descriptor is closed at once.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path

from rlx.errors import CorruptDatasetError
from rlx.files.disk import file_error, reading

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """A file to be read through a memory map, which lives as long as anything refers to ``memory``.

    Args:
        path: of the file, which must not be empty.

    Attributes:
        memory: all of it, read-only. Touching a page past the end of a file that was cut kills the process.

    Raises:
        ValueError: the file is empty.
        CorruptDatasetError: the file does not exist.
        FileAccessError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = os.fspath(path)
        with reading(path), path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not found.st_size:
                raise ValueError("cannot map an empty file")
            self._length = found.st_size
            self._file = (found.st_dev, found.st_ino)
            self._address = _map(file.fileno(), self._length)
        mapped = (ctypes.c_char * self._length).from_address(self._address)
        weakref.finalize(mapped, _libc.munmap, self._address, self._length).atexit = False
        self.memory = memoryview(mapped).cast("B").toreadonly()

    def check_length(self) -> None:
        """Raise CorruptDatasetError if the file has been cut since it was opened: one system call.

        A file that was deleted or replaced stays as it was for those that have it open.
        """
        try:
            found = os.stat(self._name)  # half of the time that Path.stat takes
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:
            raise file_error(exc, self._path) from exc
        if (found.st_dev, found.st_ino) == self._file and found.st_size < self._length:
            raise CorruptDatasetError(
                f"{self._path} was cut while it was open: it has {found.st_size:,} bytes, expected {self._length:,}",
                hint="nothing may write to the files of a dataset; rlx verify says what is damaged",
            )

    def read_at_random(self) -> None:
        """Tell the kernel that reading ahead is of no use."""
        self._advise(mmap.MADV_RANDOM, 0, self._length)

    def read_soon(self, start: int, stop: int) -> None:
        """Tell the kernel that these bytes are about to be read."""
        first = start - start % mmap.PAGESIZE
        self._advise(mmap.MADV_WILLNEED, first, stop - first)

    def release(self) -> None:
        """Give back the pages that were read; they stay in the kernel's cache."""
        self._advise(mmap.MADV_DONTNEED, 0, self._length)

    def _advise(self, advice: int, start: int, length: int) -> None:
        # Advice may be refused; reading works all the same.
        _libc.madvise(self._address + start, length, advice)


def _map(descriptor: int, length: int) -> int:
    """Return the address of a read-only map of a whole file.

    Raises:
        OSError: the process has as many maps as the system allows.
    """
    address: int = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address
