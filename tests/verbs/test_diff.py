"""Two datasets that differ in one thing, and the difference that is told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.manifest import Manifest
from rlx.verbs.arguments import StoreName
from rlx.verbs.comparison import Difference
from tests.factories import LARGE, make_block, write_dataset
from tests.verbs.pushes import write


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "dataset", 3)


def named(found: list[Difference]) -> set[tuple[str, str]]:
    return {(each.part, each.name) for each in found}


def test_a_copy_is_equal_without_reading_it(dataset: Path, tmp_path: Path) -> None:
    rlx.push(dataset, str(tmp_path / "copy"))
    found = rlx.diff(dataset, tmp_path / "copy")
    assert found.equal
    assert found.read == 0
    assert found.to_json()["differences"] == []


@pytest.mark.parametrize("to", ["zarr", "memmap"])
def test_another_store_or_codec_holds_the_same_steps(dataset: Path, tmp_path: Path, to: StoreName) -> None:
    rlx.convert(dataset, tmp_path / "copy", to=to, codec="zstd:level=1" if to == "zarr" else None)
    found = rlx.diff(dataset, tmp_path / "copy")
    assert found.read == 24
    assert named(found.differences) <= {("manifest", "store"), ("manifest", "codec"), ("lineage", "command")}
    assert ("manifest", "codec") in named(found.differences)


def test_other_shards_hold_the_same_steps(dataset: Path, tmp_path: Path) -> None:
    parts = [write(tmp_path / f"part{n}", 1, planned=1, first_episode=2 * n) for n in range(3)]
    rlx.merge(parts, tmp_path / "merged")
    found = rlx.diff(dataset, tmp_path / "merged")
    assert not [each for each in found.differences if each.part in ("trajectories", "fields")]


@pytest.mark.parametrize("name", ["observation", "action", "reward"])
def test_changed_steps_are_counted_and_the_first_is_named(tmp_path: Path, name: str) -> None:
    def changed(rows: list[int]) -> Path:
        block = make_block((5, 7), schema=LARGE)
        data = {key: np.array(values) for key, values in block.data.items()}
        for row in rows:
            data[name][row] = data[name][row] + 1
        path = tmp_path / f"changed{len(rows)}"
        return write_dataset(path, [[replace(block, data=data)]], schema=LARGE, planned=1).path

    found = rlx.diff(changed([]), changed([2, 4]))
    assert found.read == 12
    (difference,) = [each for each in found.differences if (each.part, each.name) == ("fields", name)]
    assert (difference.count, difference.first) == (2, 2)
    others = {each.name for each in found.differences if each.part == "fields"} - {name}
    assert others <= ({"next/observation"} if name == "observation" else set())
    if name == "observation":
        assert str(difference.a).startswith("[0")


def test_a_shorter_dataset_with_one_more_field_is_told(dataset: Path, tmp_path: Path) -> None:
    rlx.preprocess(dataset, tmp_path / "short", transform=["filter:length>3", "return_to_go"])
    found = named(rlx.diff(dataset, tmp_path / "short").differences)
    assert ("fields", "return_to_go") in found
    assert ("manifest", "steps") in found
    assert ("trajectories", "number") in found


def test_notes_are_told(dataset: Path, tmp_path: Path) -> None:
    rlx.push(dataset, str(tmp_path / "copy"))
    manifest = Manifest.load(tmp_path / "copy")
    (tmp_path / "copy/rlx.json").write_bytes(replace(manifest, notes={"agent": "mine"}).encode())
    difference, *others = rlx.diff(dataset, tmp_path / "copy").differences[::-1]
    assert (difference.part, difference.name, difference.a, difference.b) == ("manifest", "notes/agent", None, "mine")
    assert {each.b for each in others} <= {None}


def test_a_dataset_without_steps(dataset: Path, tmp_path: Path) -> None:
    empty, other = (write_dataset(tmp_path / name, [], schema=rlx.open(dataset).schema).path for name in ("a", "b"))
    replace(Manifest.load(other), notes={"a": 1, "b": None}).save(other)
    assert named(rlx.diff(empty, other).differences) == {("manifest", "notes/a"), ("manifest", "notes/b")}
    assert not rlx.diff(dataset, empty).equal
    assert not rlx.diff(empty, dataset).equal
