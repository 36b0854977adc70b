"""Base of sources whose experience lies in one file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class OneFile:
    """One file.

    Args:
        root: its directory.
        file_name: its name there.
    """

    root: Path
    file_name: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.root / self.file_name

    @property
    def id(self) -> str:
        """Name of the file."""
        return id_of(self.path)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (all shards lie in one file)
        """Return the one file."""
        return [self.file_name]


def id_of(path: Path) -> str:
    """Return the id of a dataset that has no name but its file's."""
    return path.stem if _ID.fullmatch(path.stem) else "dataset"
