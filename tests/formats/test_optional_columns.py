"""A column that is not needed and cannot be read is left out and named; the rest is imported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlx.formats.common.fields import not_taken
from rlx.progress import Silent
from rlx.testing.dataset_exporter import SAMPLES, random_block
from rlx.testing.round_trip import DESTINATIONS
from rlx.testing.source import read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset

BAD = np.array([b"fine", b"\xff\xfe"])


def texts(count: int) -> Any:
    """Texts of which only the last is not UTF-8."""
    return BAD[[0] * (count - 1) + [1]]


def exported(format: str, directory: Path) -> Path:
    """An export of vectors in a format."""

    sample = SAMPLES["vectors"]
    dataset = write_dataset(directory / "data", [[random_block(sample, (4, 3))]], schema=sample)
    path = directory / DESTINATIONS.get(format, "out.npz" if format == "npz" else "out")
    export(dataset.path, path, format, progress=Silent())
    return path


def hdf5(name: str, *groups: str) -> Callable[[Path], None]:
    """Add texts to groups of the file, as many as the actions there."""

    def add(path: Path) -> None:
        with h5py.File(path / "data/main_data.hdf5" if path.is_dir() else path, "r+") as file:
            for number, group in enumerate(groups):
                count = next(
                    len(file[place]) for place in (f"{group}/actions", f"actions_{number}", "actions") if place in file
                )
                # Only those of the last group are damaged.
                rows = texts(count) if group == groups[-1] else BAD[[0] * count]
                file[f"{group}/{name}".format(number).strip("/")] = rows

    return add


def npz(path: Path) -> None:
    arrays = dict(np.load(path))
    np.savez(path, **arrays, digest=texts(7))


def parquet(path: Path) -> None:
    table = pq.read_table(path)
    ragged = pa.array([[1.0]] * 6 + [[1.0, 2.0]])
    decimals = pa.array([1] * 7, pa.decimal128(10, 2))
    pq.write_table(table.append_column("ragged", ragged).append_column("decimal", decimals), path)


CASES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "d4rl": (hdf5("infos/digest", ""), {"infos/digest"}),
    "robomimic": (hdf5("digest", "data/demo_0", "data/demo_1"), {"data/demo_*/digest"}),
    "d3rlpy": (hdf5("digest_{}", "", ""), {"digest"}),
    "minari": (hdf5("infos/digest", "episode_0", "episode_1"), {"infos/digest"}),
    "npz": (npz, {"digest"}),
    "parquet": (parquet, {"ragged", "decimal"}),
}


@pytest.mark.parametrize("format", CASES)
def test_what_cannot_be_read_is_left_out_and_named(format: str, tmp_path: Path) -> None:
    path = exported(format, tmp_path)
    before, _ = open_source(path, None)
    spoil, keys = CASES[format]
    spoil(path)
    after, _ = open_source(path, None)
    assert set(not_taken(after.notes)) - set(not_taken(before.notes)) == keys, json.dumps(not_taken(after.notes))
    assert set(after.schema) == set(before.schema)
    assert sum(one.steps for shard in after.shards() for one in read(after, shard)) == sum(
        one.steps for shard in before.shards() for one in read(before, shard)
    )
