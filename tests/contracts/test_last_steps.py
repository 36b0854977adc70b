"""A truncated last step keeps its reward and its flag in every format, although nothing was seen after it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import lance
import numpy as np
import pyarrow.parquet
import pytest

from rlx.progress import Silent
from rlx.testing.dataset_exporter import whole_dataset
from rlx.testing.source import read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.array_record_files import changed_records
from tests.bad_files import NAMES
from tests.damage import arrays, at, h5, remove
from tests.hdf5_files import delete

NEXT = "next/observation"


def _demos(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            del demo["next_obs"]


def _parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).drop_columns([NEXT]), path)


def _lance(path: Path) -> None:
    lance.write_dataset(lance.dataset(path).to_table().drop_columns([NEXT]), str(path), mode="overwrite")


def _records(path: Path) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        for record in found:
            del record["rlx"], record["final/observation"]

    changed_records(path / "data_000000.array_record", change)


# What makes the format forget what was seen last; some have no place for it.
FORGET: Mapping[str, Callable[[Path], object]] = {
    "d4rl": h5(delete("next_observations")),
    "robomimic": _demos,
    "d3rlpy": lambda path: path,
    "lerobot": at("meta/final_observations.parquet", remove),
    "npz": arrays("trajectories/final/observation", None),
    "parquet": _parquet,
    "lance": _lance,
    "array_record": _records,
}


@pytest.mark.parametrize("format", FORGET)
def test_the_last_reward_of_a_truncated_episode_is_kept(format: str, tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "vectors")
    path = tmp_path / "out" / NAMES.get(format, "a.h5")
    export(dataset.path, path, format, progress=Silent())
    FORGET[format](path)
    source, _ = open_source(path, format)
    found = [one for shard in source.shards() for one in read(source, shard)]
    table = dataset.trajectories
    assert [one.steps for one in found] == table.length.tolist()
    np.testing.assert_array_equal(
        np.concatenate([one["reward"] for one in found]), dataset[:]["next", "reward"].numpy()[:, 0]
    )
    assert [bool(one["terminated"][-1]) for one in found] == table.terminated.tolist()
    assert [bool(one["truncated"][-1]) for one in found] == table.truncated.tolist()
    assert not any(one.cut or one.final_recorded or one["observation"][-1].any() for one in found)
    assert source.notes["truncations_without_final_observation"] == table.truncated.sum()
