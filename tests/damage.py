"""Damage to the files of other projects, whatever they are kept in: each function gives what does it to a path."""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from rlx.files.sealed import sealed
from rlx.formats.common.record_files import records
from rlx.formats.common.tf_example import parse_example
from scripts.rlu_writer import tf_example, tf_record
from tests.dopamine_files import save_npy
from tests.hdf5_files import Change, changed

Damage = Callable[[Path], object]
Values = Callable[[Any], Any]
_KINDS = {np.dtype("f4"): 2, np.dtype("i8"): 3}
_TEXTS = 1


def rewrite(file: Path, **changes: Any) -> None:
    """Change values of a JSON document that ends in its checksum, which stays right."""
    found = json.loads(file.read_bytes()) | changes
    file.write_bytes(sealed(json.dumps({key: found[key] for key in found.keys() - {"crc32c"}}, indent=1)))


def at(name: str, damage: Damage) -> Damage:
    """Damage to one file of a directory."""
    return lambda path: damage(path / name)


def remove(path: Path) -> None:
    """The file is gone."""
    path.unlink()


def cut(path: Path) -> None:
    """The second half of a file is gone."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def h5(*changes: Change) -> Damage:
    """Changes to an HDF5 file."""

    def damage(path: Path) -> None:
        for change in changes:
            changed(path, change)

    return damage


def members(change: Values) -> Damage:
    """Another object in a file of JSON: the change gives the members that differ."""

    def damage(path: Path) -> None:
        said = json.loads(path.read_text())
        path.write_text(json.dumps({**said, **change(said)}))

    return damage


def value(number: float, row: int) -> Values:
    """A row of numbers that are all this one, of arrays and of lists of Python."""

    def change(rows: Any) -> Any:
        made = list(rows)
        made[row] = np.full_like(rows[row], number) if isinstance(rows, np.ndarray) else _filled(rows[row], number)
        return np.array(made) if isinstance(rows, np.ndarray) else made

    return change


def _filled(row: Any, number: float) -> Any:
    return [number] * len(row) if isinstance(row, list) else number


def column(name: str, change: Values | None) -> Damage:
    """Another column of a Parquet file, or none: values come and go as objects of Python."""

    return lambda path: pyarrow.parquet.write_table(
        changed_column(pyarrow.parquet.read_table(path), name, change), path
    )


def changed_column(table: Any, name: str, change: Values | None) -> Any:
    """An Arrow table with another column, or without it."""
    place = table.schema.names.index(name)
    values = change(table[name].to_pylist()) if change else None
    if values is None:
        return table.remove_column(place)
    kind = table.schema.field(name).type
    is_text = any(isinstance(one, str) for one in values)
    return table.set_column(place, name, pyarrow.array(values, None if is_text else kind))


def arrays(name: str, change: Values | None) -> Damage:
    """Another array of an npz archive, or none."""

    def damage(path: Path) -> None:
        with np.load(path) as file:
            held = dict(file)
        values = held.pop(name)
        if change:
            held[name] = change(values)
        np.savez(path.with_suffix(".npz"), **held)

    return damage


def numbers(change: Values, dtype: str = "f4") -> Damage:
    """Other numbers in a file that holds nothing else."""
    return lambda path: path.write_bytes(change(np.fromfile(path, dtype)).tobytes())


def gz(change: Values) -> Damage:
    """Another array in a gzipped npy file."""

    def damage(path: Path) -> None:
        with gzip.open(path) as file:
            array = np.load(file)
        save_npy(path, change(array), allow_pickle=True)

    return damage


def feature(name: str, change: Values | None) -> Damage:
    """Another feature, or none, of the first example of a TFRecord file."""

    def damage(path: Path) -> None:
        first, *others = [dict(parse_example(record)) for record in records(path)]
        values = first.pop(name)
        if change:
            first[name] = change(values)
        path.write_bytes(b"".join(tf_record(tf_example(_features(one))) for one in (first, *others)))

    return damage


def _features(parsed: Mapping[str, NDArray[Any] | list[memoryview]]) -> dict[str, tuple[int, list[Any]]]:
    return {
        name: (_KINDS[values.dtype], values.tolist())
        if isinstance(values, np.ndarray)
        else (_TEXTS, [*map(bytes, values)])
        for name, values in parsed.items()
    }


def elsewhere(path: Path) -> None:
    """The file is a link to one outside of its directory."""
    target = path.parents[1] / f"{path.name}.elsewhere"
    path.rename(target)
    path.symlink_to(target)
