"""Minari's Arrow and Parquet storages, written and read by Minari itself, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from gymnasium import spaces

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.source import Source
from rlx.formats.finding import find_run
from rlx.formats.minari import arrow
from rlx.formats.minari.reader import Minari, open_minari
from rlx.testing.source import SourceContract, fuzz, read
from tests.minari_files import DICT, GREY, IMAGE, TUPLE, VECTOR, read_dataset, write_dataset

STORAGES = ["arrow", "parquet"]
PART, PAIR = "1/part-0", pyarrow.list_(pyarrow.float32(), 2)


class ArrowContract(SourceContract):
    storage = "arrow"

    def needed_files(self, source: Source, shard: int) -> list[str]:
        return [name for name in source.files(shard) if "part-0" in name]

    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 8)
        monkeypatch.setattr(row_episodes, "block_steps", lambda _: 4)
        monkeypatch.setattr(arrow, "batch_rows", lambda _: 3)
        return write_dataset(tmp_path, "many-v0", lengths=[5, 3, 9, 1], data_format=self.storage) / "data"

    @pytest.fixture
    def source(self, root: Path) -> Minari:
        return open_minari(root)


class TestArrow(ArrowContract):
    pass


class TestParquet(ArrowContract):
    storage = "parquet"


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("observation", [VECTOR, DICT, TUPLE, GREY, spaces.MultiBinary(3), spaces.Text(5)])
def test_every_value_is_that_of_minaris_reader(storage: str, observation: gymnasium.Space[Any], tmp_path: Path) -> None:
    actions = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "grip": spaces.MultiDiscrete([2, 3])})
    path = write_dataset(
        tmp_path, "ns/a-v0", observation=observation, action=actions, data_format=storage, with_infos=False
    )
    source, wanted = find_run(path, None), read_dataset(tmp_path, "ns/a-v0")
    assert (source.id, source.notes["format"][:6]) == ("ns/a-v0", "Minari")
    found = read(source, 0)
    assert [one.steps for one in found] == [len(episode) for episode in wanted]
    for one, episode in zip(found, wanted, strict=True):
        columns = {"reward": episode.rewards, "terminated": episode.terminations}
        columns |= flat("observation", episode.observations) | flat("action", episode.actions)
        assert {*columns, "truncated"} == set(source.schema)
        for name, rows in columns.items():
            assert one[name].tolist() == np.asarray(rows).tolist(), name


def flat(name: str, rows: Any) -> dict[str, Any]:
    if isinstance(rows, dict):
        return {key: value for part, below in rows.items() for key, value in flat(f"{name}/{part}", below).items()}
    if isinstance(rows, tuple):
        return flat(name, {f"_index_{number}": below for number, below in enumerate(rows)})
    return {name: rows}


def test_the_same_as_from_hdf5_with_infos(tmp_path: Path) -> None:
    sources = [
        open_minari(write_dataset(tmp_path / storage, "a-v0", observation=TUPLE, data_format=storage))
        for storage in ["hdf5", *STORAGES]
    ]
    first, *others = sources
    for other in others:
        assert dict(other.schema.fields) == dict(first.schema.fields)
        for one, same in zip(read(first, 0), read(other, 0), strict=True):
            for name in first.schema:
                np.testing.assert_array_equal(one[name], same[name], err_msg=name)


@pytest.mark.parametrize("storage", STORAGES)
def test_pictures_are_jpeg(storage: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "a-v0", observation=IMAGE, jpeg=True, data_format=storage, with_infos=False)
    source = open_minari(path)
    assert source.notes["lossy_jpeg"] == ["observation"]
    for one, episode in zip(read(source, 0), read_dataset(tmp_path, "a-v0"), strict=True):
        # Minari decodes with Pillow's libjpeg, which may round otherwise.
        np.testing.assert_allclose(one["observation"].astype(int), episode.observations, atol=3)


def column(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Another column in the Parquet file of an episode; none where the change gives none."""

    def damage(path: Path) -> None:
        table = pyarrow.parquet.read_table(path / f"{PART}.parquet")
        place, values = table.schema.names.index(name), change(table[name])
        table = table.remove_column(place)
        table = table if values is None else table.add_column(place, name, values)
        pyarrow.parquet.write_table(table, path / f"{PART}.parquet")

    return damage


def said(name: str, **values: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        (path / name).write_text(json.dumps({**json.loads((path / name).read_text()), **values}))

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another data format": (
        said("metadata.json", data_format="zip"),
        "data format 'zip', expected hdf5, arrow, parquet",
    ),
    "no episode": (said("metadata.json", total_episodes=0), "has no episode"),
    "more episodes": (said("metadata.json", total_episodes=4), "3/metadata.json is missing"),
    "more steps": (said("metadata.json", total_steps=13), "expected 13 steps, found 12"),
    "steps of words": (said("1/metadata.json", total_steps="x"), "1/metadata.json: total_steps: expected steps"),
    "another length": (
        lambda path: (said("1/metadata.json", total_steps=2)(path), said("metadata.json", total_steps=13)(path)),
        "1/part-0.parquet: expected a row more than 2 steps, found 2",
    ),
    "no file": (lambda path: (path / f"{PART}.parquet").unlink(), "part-0.parquet is missing"),
    "no column": (column("rewards", lambda _: None), "1/part-0.parquet: rewards: expected the column, found none"),
    "another type": (
        column("rewards", lambda rows: rows.cast("float32")),
        "1/part-0.parquet: rewards: expected float64, found float32",
    ),
    "nulls": (
        column("rewards", lambda rows: pyarrow.nulls(len(rows), "float64")),
        "1/part-0.parquet: rewards: expected a value in every row, found 1 null",
    ),
    "another shape": (
        column(
            "observations", lambda rows: pyarrow.array([[1.0, 2.0]] * len(rows), pyarrow.list_(pyarrow.float32(), 2))
        ),
        "1/part-0.parquet: observations: expected lists of 3, found others",
    ),
    "NaN": (
        column("rewards", lambda rows: pyarrow.array([float("nan")] * len(rows))),
        "1/part-0.parquet: rewards: expected finite numbers, found NaN in row 0",
    ),
    "a huge space": (
        said(
            "metadata.json",
            observation_space=json.dumps({"type": "Box", "dtype": "float32", "shape": [2**31, 2**31]}),
        ),
        r"observations: expected \[2147483648, 2147483648\] as its space says, found \[3\]",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(kind: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[kind]
    path = write_dataset(tmp_path, "a-v0", data_format="parquet") / "data"
    damage(path)
    with pytest.raises(SourceError, match=f"{message}.*; expected Minari's layout"):
        read(open_minari(path), 0)


def test_a_column_that_minari_does_not_know(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "a-v0", lengths=(3,), data_format="parquet") / "data"
    table = pyarrow.parquet.read_table(path / "0/part-0.parquet")
    pyarrow.parquet.write_table(table.append_column("mood", pyarrow.array(range(4))), path / "0/part-0.parquet")
    assert "mood" in open_minari(path).notes["not_taken"]


def files(path: Path, storage: str) -> list[Path]:
    return [path / f"{PART}.{storage}", path / "1/metadata.json", path / f"0/part-0.{storage}"]


@pytest.mark.parametrize("storage", STORAGES)
def test_wrong_bytes_are_values_or_a_named_error(storage: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "a-v0", data_format=storage) / "data"
    found = fuzz(open_minari, path, files(path, storage), range(150))
    assert min(found.values()) > 5, found


@pytest.mark.soak
@pytest.mark.parametrize("storage", STORAGES)
def test_thousands_of_wrong_bytes(storage: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "a-v0", data_format=storage) / "data"
    fuzz(open_minari, path, files(path, storage), range(150, 2_150))


def test_shards_that_shrink_after_opening(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "a-v0", data_format="arrow") / "data"
    source = open_minari(path)
    (path / f"{PART}.arrow").write_bytes((path / "0/part-0.arrow").read_bytes())
    with pytest.raises(CorruptShardError, match="expected a row more than 1 steps, found 5"):
        read(source, 0)
