"""A local directory as a base: its files are used where they are."""

from dataclasses import dataclass
from pathlib import Path

from rlx.errors import SourceNotFoundError
from rlx.files.base import FileStat, local_path
from rlx.files.cancel import Cancel
from rlx.progress import Progress


@dataclass(frozen=True, slots=True)
class DirectoryBase:
    """The files below a directory."""

    root: Path

    @property
    def is_local(self) -> bool:
        """True: files are used in place."""
        return True

    @property
    def origin(self) -> str:
        """Path of the directory."""
        return str(self.root)

    def stat(self, name: str, *, cancel: Cancel | None = None) -> FileStat:  # noqa: ARG002
        """Return length of a file; its checksum would cost as much as reading it."""
        path = self._find(name)
        return FileStat(name=name, url=str(path), bytes=path.stat().st_size)

    def fetch(
        self,
        name: str,
        directory: Path,  # noqa: ARG002
        progress: Progress,
        *,
        cancel: Cancel | None = None,  # noqa: ARG002
    ) -> Path:
        """Return path of the file, where it is."""
        path = self._find(name)
        progress.advance("bytes", path.stat().st_size)
        return path

    def _find(self, name: str) -> Path:
        path = local_path(self.root, name)
        if not path.is_file():
            raise SourceNotFoundError(f"{path}: no such file")
        return path
