"""The seam between batches of steps and the files that other programs read."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# Arrays of n rows by TED path, its parts joined by "/": "next/reward" [n, 1].
Columns = Mapping[str, NDArray[Any]]


class Exporter(Protocol):
    """Writes batches one behind the other into one file, so that reading it gives arrays of all their rows.

    The same batches give the same bytes.
    """

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Writes.

        Args:
            batches: at least one; all have the same columns, which differ in nothing but their rows.
            file: empty, and perhaps a pipe.

        Raises:
            MissingExtraError: the format needs a package that is not installed.
        """


@runtime_checkable
class DirectoryExporter(Protocol):
    """An exporter whose format is a directory, and so cannot go through a pipe."""

    def write_directory(self, batches: Iterable[Columns], directory: Path) -> None:
        """Writes; the directory is not there yet."""


def columns_of(batch: Any) -> dict[str, NDArray[Any]]:
    """The columns of a TensorDict [n]; entries that are no tensors are left out.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> columns_of(TensorDict({"next": {"reward": torch.ones(2, 1)}}, [2]))["next/reward"].shape
        (2, 1)
    """
    leaves = batch.detach().cpu().items(include_nested=True, leaves_only=True)
    named = {"/".join((key,) if isinstance(key, str) else key): leaf.numpy() for key, leaf in leaves}
    return {name: named[name] for name in sorted(named)}


def gathered(batches: Iterable[Columns]) -> dict[str, NDArray[Any]]:
    """All rows of all batches, for formats that need them at once."""
    parts = list(batches)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def tree(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns as nested dicts.

    Example:
        >>> tree({"next/reward": 1, "action": 2})
        {'next': {'reward': 1}, 'action': 2}
    """
    root: dict[str, Any] = {}
    for name, column in columns.items():
        *parents, leaf = name.split("/")
        place = root
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = column
    return root
