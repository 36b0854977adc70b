import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from rlx.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    FormatVersionError,
    IncompleteDatasetError,
    RlxError,
    SchemaMismatchError,
)
from rlx.manifest import FILE_NAME, FileRecord, Manifest, ShardRecord
from rlx.manifest_values import indented
from rlx.schema import Field, Role, Schema

SCHEMA = Schema.of(("uint8", (84, 84)), ("int64", ()), action_space={"type": "Discrete", "n": 6})
SHARD = ShardRecord(
    "00001", 5, 2, {"c/0": FileRecord(3, "0123abcd")}, {"length": {"count": 2}}, {"källa": "a"}, {"padding": 7}
)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    made = Manifest(
        "Pong/5",
        "zarr",
        {"name": "none", "level": 0, "chunk": 1},
        SCHEMA,
        [SHARD],
        ["00000", "00001"],
        {},
        [{"seed": 1}],
    )
    made.save(tmp_path)
    return made


def sign(path: Path, described: dict[str, Any]) -> None:
    """Writes a manifest with a right checksum, whatever else is wrong with it."""
    described.pop("crc32c", None)
    body = json.dumps(described, indent=1).encode()[:-2]
    (path / FILE_NAME).write_bytes(body + b',\n "crc32c": "%08x"\n}\n' % google_crc32c.value(body))


def test_round_trip(manifest: Manifest, tmp_path: Path) -> None:
    assert Manifest.load(tmp_path) == manifest
    assert (manifest.steps, manifest.trajectories, manifest.bytes, manifest.missing) == (5, 2, 3, ["00000"])


def test_it_is_json(manifest: Manifest, tmp_path: Path) -> None:
    described = json.loads((tmp_path / FILE_NAME).read_text())
    assert described["format"] == "rlx"
    assert described["id"] == manifest.id
    assert described["shards"][0]["files"] == {"c/0": {"bytes": 3, "crc32c": "0123abcd"}}


def test_saving_replaces_in_one_step(manifest: Manifest, tmp_path: Path) -> None:
    # Whoever has the old one open goes on reading the old one: it was replaced, not written over.
    with (tmp_path / FILE_NAME).open() as old:
        replace(manifest, id="Pong/4").save(tmp_path)
        assert json.load(old)["id"] == "Pong/5"
    assert Manifest.load(tmp_path).id == "Pong/4"
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_failed_save_leaves_the_old_one(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        replace(manifest, notes={"ratio": float("nan")}).save(tmp_path)
    assert Manifest.load(tmp_path) == manifest


@pytest.mark.usefixtures("manifest")
def test_a_flipped_bit_is_found_at_every_byte(tmp_path: Path) -> None:
    path, random_bit = tmp_path / FILE_NAME, random.Random(1)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << random_bit.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CorruptDatasetError, match="damaged"):
            Manifest.load(tmp_path)


@pytest.mark.usefixtures("manifest")
def test_a_missing_end_is_found_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptDatasetError, match="damaged"):
            Manifest.load(tmp_path)


@pytest.mark.usefixtures("manifest")
def test_a_later_format_version(tmp_path: Path) -> None:
    sign(tmp_path, {**json.loads((tmp_path / FILE_NAME).read_text()), "format_version": 2, "schema": "of another kind"})
    with pytest.raises(FormatVersionError, match="format version 2, expected 1"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "a\\b", "", ".", "..", "a\0b", "a//b", "a/"])
@pytest.mark.usefixtures("manifest")
def test_names_that_leave_the_directory(tmp_path: Path, name: str) -> None:
    whole = json.loads((tmp_path / FILE_NAME).read_text())
    as_file = {**whole["shards"][0], "files": {name: {"bytes": 1, "crc32c": "00000000"}}}
    as_shard = {**whole["shards"][0], "name": name}
    for changed in ({"shards": [as_file]}, {"shards": [as_shard]}, {"planned": [name]}):
        sign(tmp_path, {**whole, **changed})
        with pytest.raises(CorruptDatasetError, match="name"):
            Manifest.load(tmp_path)


WRONG: list[dict[str, Any]] = [
    {"shards": None},
    {"shards": [1]},
    {"shards": [{}]},
    {"schema": {}},
    {"schema": []},
    {"notes": []},
    {"lineage": {}},
    {"id": 5},
    {"store": None},
    {"codec": "zstd"},
    {"planned": [1]},
]


@pytest.mark.parametrize("changed", WRONG, ids=str)
@pytest.mark.usefixtures("manifest")
def test_values_of_another_kind(tmp_path: Path, changed: dict[str, Any]) -> None:
    sign(tmp_path, {**json.loads((tmp_path / FILE_NAME).read_text()), **changed})
    with pytest.raises(CorruptDatasetError, match="damaged"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": -1},
        {"steps": 10**30},
        {"steps": "5"},
        {"trajectories": 6},
        {"files": {"c": {"bytes": -1, "crc32c": "00000000"}}},
        {"files": {"c": {"bytes": 1, "crc32c": "XY"}}},
        {"files": {"c": {"bytes": 1}}},
        {"later": 1},
    ],
    ids=str,
)
@pytest.mark.usefixtures("manifest")
def test_a_shard_that_cannot_be(tmp_path: Path, changed: dict[str, Any]) -> None:
    whole = json.loads((tmp_path / FILE_NAME).read_text())
    sign(tmp_path, {**whole, "shards": [{**whole["shards"][0], **changed}]})
    with pytest.raises(CorruptDatasetError, match="damaged"):
        Manifest.load(tmp_path)


@pytest.mark.usefixtures("manifest")
def test_a_shard_listed_twice(tmp_path: Path) -> None:
    whole = json.loads((tmp_path / FILE_NAME).read_text())
    sign(tmp_path, {**whole, "shards": whole["shards"] * 2})
    with pytest.raises(CorruptDatasetError, match="each once"):
        Manifest.load(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"expected rlx\.json"):
        Manifest.load(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetNotFoundError):
        Manifest.load(tmp_path / "file")


def test_shards_and_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    with pytest.raises(IncompleteDatasetError, match="interrupted"):
        Manifest.load(tmp_path)


def test_a_directory_for_a_manifest(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(CorruptDatasetError, match="expected a file, found a directory"):
        Manifest.load(tmp_path)


def test_shards_come_and_go() -> None:
    empty = Manifest("a", "zarr", {}, SCHEMA, planned=["00000", "00001"])
    both = empty.with_shards([SHARD]).with_shards([replace(SHARD, name="00000")])
    assert [shard.name for shard in both.shards] == ["00000", "00001"]
    assert both.with_shards([replace(SHARD, steps=9)]).steps == 14
    assert both.without_shards({"00001"}).missing == ["00001"]


NO_DTYPES = ["float128", "complex64", "object", "f4", ">i4", "datetime64", "nothing", "i,)", "|5"]
NO_SHAPES: list[tuple[float, ...]] = [(True,), (-1,), (1.5,), (2**40, 2**40), (0, 2**62), (1,) * 40]


@pytest.mark.parametrize(
    ("dtype", "shape"), [(dtype, ()) for dtype in NO_DTYPES] + [("uint8", shape) for shape in NO_SHAPES], ids=str
)
def test_fields_that_no_store_could_hold(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(RlxError, match=r"dtype|shape"):
        Field(dtype, shape, Role.STEP)


@pytest.mark.parametrize(
    "name", ["next", "done", "index/a", "collector", "a//b", "../a", "", "a b", "trajectories/length"]
)
def test_names_that_no_field_can_have(name: str) -> None:
    with pytest.raises(RlxError, match="field name"):
        Schema({**SCHEMA.fields, name: Field("int64", (), Role.STEP)})


def test_flags_are_booleans() -> None:
    with pytest.raises(RlxError, match="terminated is uint8, expected bool"):
        Schema({**SCHEMA.fields, "terminated": Field("uint8", (), Role.NEXT)})


def test_what_is_no_json() -> None:
    with pytest.raises(TypeError, match=r"keys of \{1: 2\}: expected texts"):
        indented({1: 2})
    with pytest.raises(TypeError, match="object is no type of JSON"):
        indented({"a": [object()]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        indented([float("nan")])


def test_a_field_that_is_a_group_too() -> None:
    field = Field("float32", (), Role.STEP)
    with pytest.raises(SchemaMismatchError, match="schema: action is both a field and a group of fields"):
        Schema({**SCHEMA.fields, "action/push": field})
