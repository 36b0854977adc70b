"""The seam between batches of steps and the files that other programs read."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlx.errors import SchemaMismatchError
from rlx.schema import name_of

# Arrays of n rows by TED path, its parts joined by "/": "next/reward" [n, 1]. Texts are arrays of objects, each a str.
Columns = Mapping[str, NDArray[Any]]


class Exporter(Protocol):
    """Writer of batches into one file, concatenated, so that reading it gives arrays of all their rows.

    The same batches give the same bytes.
    """

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write batches.

        Args:
            batches: at least one; all have the same columns, which differ in nothing but their rows.
            file: empty, and perhaps a pipe.

        Raises:
            MissingExtraError: the format needs a package that is not installed.
            SchemaMismatchError: the format cannot hold a text.
        """


@runtime_checkable
class DirectoryExporter(Protocol):
    """An exporter whose format is a directory, and so cannot go through a pipe."""

    def write_directory(self, batches: Iterable[Columns], directory: Path) -> None:
        """Write batches; the directory does not exist yet."""


def columns_of(batch: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a TensorDict [n].

    Raises:
        SchemaMismatchError: an entry is neither numbers nor text.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> columns_of(TensorDict({"next": {"reward": torch.ones(2, 1)}}, [2]))["next/reward"].shape
        (2, 1)
    """
    from tensordict import is_leaf_nontensor  # noqa: PLC0415  (torch takes seconds to import)

    from rlx.store.leaf import to_rows  # noqa: PLC0415

    leaves = batch.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    named = {name_of(key): to_rows(leaf) for key, leaf in leaves}
    return {name: named[name] for name in sorted(named)}


def gathered(batches: Iterable[Columns]) -> dict[str, NDArray[Any]]:
    """Return all rows of all batches, for formats that need them at once."""
    parts = list(batches)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def without_nul(name: str, rows: NDArray[Any], file: str) -> NDArray[Any]:
    """Return the texts [n, ...] of a column, for a format that marks the end of a text with NUL.

    Raises:
        SchemaMismatchError: a text has a NUL.
    """
    if any("\0" in text for text in rows.flat):
        raise SchemaMismatchError(
            f"{name} has a text with a NUL character, which {file} cannot hold", hint="use --format jsonl or parquet"
        )
    return rows


def tree(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns as nested dicts.

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
