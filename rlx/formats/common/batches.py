"""Export of batches: the protocols of exporters, columns, and atomic writes."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlx.errors import DatasetExistsError, SchemaMismatchError
from rlx.files.atomic import whole
from rlx.schema import name_of

# Arrays of n rows by TED path, its parts joined by "/": "next/reward" [n, 1]. Texts are arrays of objects, each a str.
Columns = Mapping[str, NDArray[Any]]


class Exporter(Protocol):
    """Writer of batches into one file, which holds the rows of all of them.

    The same batches give the same bytes.
    """

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write batches.

        Args:
            batches: at least one; all have the same columns, dtypes and row shapes.
            file: empty; may be a pipe.

        Raises:
            MissingExtraError: the format needs a package that is not installed.
            SchemaMismatchError: the format cannot hold a column.
        """


@runtime_checkable
class DirectoryExporter(Protocol):
    """An exporter whose format is a directory, so it cannot write to a pipe."""

    def write_directory(self, batches: Iterable[Columns], directory: Path) -> None:
        """Write batches as ``Exporter.write`` does; the directory does not exist yet."""


def columns_of(batch: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a TensorDict [n], sorted by name.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> columns_of(TensorDict({"next": {"reward": torch.ones(2, 1)}}, [2]))["next/reward"].shape
        (2, 1)
    """
    from tensordict import is_leaf_nontensor  # torch takes seconds to import

    from rlx.store.ted import to_rows

    leaves = batch.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    named = {name_of(key): to_rows(leaf) for key, leaf in leaves}
    return {name: named[name] for name in sorted(named)}


def gathered(batches: Iterable[Columns]) -> dict[str, NDArray[Any]]:
    """Return the columns with the rows of all batches, for formats that write them at once."""
    parts = list(batches)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def with_values(name: str, rows: NDArray[Any], file: str) -> NDArray[Any]:
    """Return the rows [n, ...] of a column; raises SchemaMismatchError if they are empty, as with shape [0]."""
    if 0 in rows.shape[1:]:
        raise SchemaMismatchError(
            f"{name} is {rows.dtype}{list(rows.shape[1:])}, without a value, which {file} cannot hold",
            hint="use `format` npz, zarr or jsonl",
        )
    return rows


def without_nul(name: str, rows: NDArray[Any], file: str) -> NDArray[Any]:
    """Return the texts [n, ...] of a column; raises SchemaMismatchError if one contains NUL."""
    if any("\0" in text for text in rows.flat):
        raise SchemaMismatchError(
            f"{name} has a text with a NUL character, which {file} cannot hold", hint="use `format` jsonl or parquet"
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


def export(batches: Iterable[Columns], path: Path, exporter: Exporter | DirectoryExporter) -> None:
    """Write batches to a file or directory atomically; an existing one is replaced.

    Raises:
        DatasetExistsError: the path is a directory, and not a Zarr group that the exporter can replace.
    """
    if path.is_dir() and not (isinstance(exporter, DirectoryExporter) and (path / "zarr.json").is_file()):
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    with whole(path) as partial:
        if isinstance(exporter, DirectoryExporter):
            exporter.write_directory(batches, partial)
        else:
            with partial.open("w+b") as file:
                exporter.write(batches, file)
