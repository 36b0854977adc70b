import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.errors import RlxError
from rlx.files.sealed import sealed
from rlx.manifest import FILE_NAME, FileRecord, Manifest, ShardRecord
from rlx.schema import Schema
from rlx.store.statistics import Moments
from rlx.store.summary import DatasetSummary
from tests.factories import make_block, write_dataset

_SCHEMA = Schema.of(("uint8", (2,)), ("int64", ()))
# What looks like the lines that the fast path looks for, as the texts of keys and values.
_TEXTS = st.sampled_from(
    ["plain", "version", '\n   "files": {\n', '\n "shards": [\n  {\n', "\n  },\n  {\n", "\n }", '\n   "statistics": {']
)
_NUMBERS = st.floats(-1e300, 1e300) | st.integers(-(2**60), 2**60)
_NAMES = ("return", "length", "whole_return", "whole_length", "reward", "observation")


@st.composite
def figures(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(0, 5))
    if not count:
        return {"count": 0}
    sums = {key: draw(_NUMBERS | st.none()) for key in ("sum", "sum_of_squares")}
    return {"count": count, **sums, "min": draw(_NUMBERS), "max": draw(_NUMBERS)}


@st.composite
def shards(draw: st.DrawFn, name: str) -> ShardRecord:
    steps = draw(st.integers(0, 2**40))
    text = draw(_TEXTS)
    return ShardRecord(
        name,
        steps,
        draw(st.integers(0, min(steps, 5))),
        dict.fromkeys(draw(st.sets(st.sampled_from(["c/0", "shards/files", "a.json"]))), FileRecord(3, "0123abcd")),
        {key: draw(figures()) for key in draw(st.permutations(_NAMES))[: draw(st.integers(0, 6))]},
        {text: {"files": text, "statistics": {"return": {"count": 7}}}},
        {text: 3},
    )


@given(st.data())
def test_a_summary_is_that_of_the_whole_manifest(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("set")
    text = data.draw(_TEXTS)
    noted: Mapping[str, Any] = data.draw(
        st.dictionaries(_TEXTS, st.one_of(_TEXTS, st.just('v\u00e4"2'), st.just({"version": "v3"}), st.just(2)))
    )
    made = Manifest(
        "Pong/5",
        "zarr",
        {"name": "none", "version": text},
        _SCHEMA,
        [data.draw(shards(f"{number:05d}")) for number in range(data.draw(st.integers(0, 3)))],
        [],
        noted,
        [{"version": "v1", "shards": [text], "notes": {"version": "v4"}}],
    )
    made.save(directory)
    assert repr(DatasetSummary.load(directory)) == repr(DatasetSummary.of(Manifest.load(directory)))


def test_of_a_real_dataset(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", [[make_block([3, 5])], [make_block([4])]])
    found = DatasetSummary.load(dataset.path)
    assert (found.shards, found.steps, found.episodes.lengths.total) == (2, 12, 12)
    assert found == DatasetSummary.of(dataset.manifest)


@pytest.mark.parametrize("indent", [None, 0, 1, 2, 4])
def test_of_another_programs_manifest(indent: int | None, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", [[make_block([3, 5])], [make_block([4])]])
    path = dataset.path / FILE_NAME
    described = json.loads(path.read_bytes())
    del described["crc32c"]
    path.write_bytes(sealed(json.dumps(described, indent=indent, sort_keys=True).removesuffix("}") + "\n}"))
    assert DatasetSummary.load(dataset.path) == DatasetSummary.of(dataset.manifest)


def test_damage_is_found_at_every_byte(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "set", [[make_block([3])]]).path
    whole = (path / FILE_NAME).read_bytes()
    for place in range(0, len(whole), 7):
        (path / FILE_NAME).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(RlxError, match=r"damaged|format version"):
            DatasetSummary.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("steps", -1), ("steps", 10**30), ("trajectories", "1"), ("statistics", {"return": {"count": -1}})],
)
def test_values_that_no_shard_has(key: str, value: object, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "set", [[make_block([3])]]).path
    described = json.loads((path / FILE_NAME).read_bytes())
    del described["crc32c"]
    described["shards"][0][key] = value
    (path / FILE_NAME).write_bytes(sealed(json.dumps(described, indent=1)))
    with pytest.raises(RlxError, match="damaged"):
        DatasetSummary.load(path)


def test_moments_of_one_part_are_its_own() -> None:
    part = Moments(2, 3.0, 5.0, 1.0, 2.0)
    assert Moments.merge([Moments(), part]) == part
    assert Moments.merge([part, replace(part, low=0.0)]) == Moments(4, 6.0, 10.0, 0.0, 2.0)
