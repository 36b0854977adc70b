"""A file mapped into memory, and its length: touching a page past the end of a file would kill the process."""

import mmap
from pathlib import Path

from rlx.errors import CorruptDatasetError
from rlx.files.disk import reading


class MappedFile:
    """A file to be read through a memory map.

    Args:
        path: of the file, which must not be empty.

    Attributes:
        memory: all of it.

    Raises:
        ValueError: the file is empty.
        CorruptDatasetError: the file does not exist.
        FileAccessError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path), path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._length = len(self.memory)

    def check_length(self) -> None:
        """Raise CorruptDatasetError if the file has been cut since it was opened: one system call."""
        if (found := self.memory.size()) < self._length:
            raise CorruptDatasetError(
                f"{self._path} was cut while it was open: it has {found:,} bytes, expected {self._length:,}",
                hint="nothing may write to the files of a dataset; rlx verify says what is damaged",
            )

    def release(self) -> None:
        """Give back the pages that were read; they stay in the kernel's cache."""
        self.memory.madvise(mmap.MADV_DONTNEED)
