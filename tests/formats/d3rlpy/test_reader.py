"""Files that d3rlpy's own ReplayBuffer dumped (scripts/make_d3rlpy.py), whole and damaged."""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.hdf5.episodes import Hdf5Episodes
from rlx.formats.d3rlpy.reader import open_d3rlpy
from rlx.formats.finding import find_run
from rlx.testing.source import FileContract, SmallShards, merge, read, steps_or_error
from tests.hdf5_files import changed, declare, delete, external, group_instead, objects, replace, set_row, soft

GOLDEN = Path(__file__).parents[2] / "golden/d3rlpy"
FILES = ("vectors", "pictures", "tuples")


def copy_golden(path: Path) -> None:
    shutil.copy(GOLDEN / path.name, path)


class TestVectors(FileContract):
    file, write, open = "vectors.h5", staticmethod(copy_golden), staticmethod(open_d3rlpy)


class TestTuples(TestVectors):
    file = "tuples.h5"


class TestPictures(SmallShards, TestVectors):
    file = "pictures.h5"
    steps_per_shard = 4

    def test_shards_are_whole_episodes(self, source: Hdf5Episodes) -> None:
        assert [[one.episode for one in read(source, shard)] for shard in source.shards()] == [[0], [1, 2]]


@pytest.mark.parametrize("name", FILES)
def test_every_value(name: str) -> None:
    source, dropped = find_run(GOLDEN / f"{name}.h5", None), Counter[str]()
    found = merge(source.blocks(0, dropped), source.schema)
    assert [(one.steps, one.final_recorded) for one in found] == [(4, False), (1, False), (6, False)]
    assert not dropped
    assert [bool(one["terminated"][-1]) for one in found] == [True, True, False]
    assert [bool(one["truncated"][-1]) for one in found] == [False, False, True]
    names = ["observation/_index_0", "observation/_index_1"] if name == "tuples" else ["observation"]
    with h5py.File(GOLDEN / f"{name}.h5") as file:
        for number, one in enumerate(found):
            np.testing.assert_array_equal(one["reward"], file[f"rewards_{number}"][: one.steps, 0])
            actions = file[f"actions_{number}"][: one.steps]
            np.testing.assert_array_equal(one["action"], actions[:, 0] if name == "pictures" else actions)
            for index, observation in enumerate(names):
                stored = file[f"observations_{number}" + (f"_{index}" if len(names) > 1 else "")][()]
                seen = one[observation] if one.final_recorded else one[observation][:-1]
                assert seen.dtype == stored.dtype
                np.testing.assert_array_equal(seen, stored)
    assert (source.id, source.notes) == (name, {"format": "d3rlpy 2.1", "truncations_without_final_observation": 1})


def test_columns_of_other_episodes_are_left_out(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN / "vectors.h5", tmp_path))
    columns = [b"observations", b"actions", b"rewards", b"terminated", b"mood"]
    changed(path, replace("columns", columns, dtype=h5py.string_dtype()))
    assert list(open_d3rlpy(path).notes["not_taken"]) == ["mood"]


DAMAGE: dict[str, tuple[Any, str]] = {
    "no columns": (delete("columns"), r"columns is missing"),
    "no count": (delete("num_episodes"), "num_episodes is missing"),
    "no observations": (delete("observations_0"), "observations_0 is missing"),
    "no later observations": (delete("observations_2"), "observations_2 is missing"),
    "no rewards": (delete("rewards_1"), "rewards_1 is missing"),
    "no flag": (delete("terminated_1"), "terminated_1 is missing"),
    "many flags": (replace("terminated_1", [True, False]), r"terminated_1: expected one number, found bool\[2\]"),
    "an episode more": (replace("num_episodes", 4), "actions_3 is missing"),
    "more episodes than there are": (replace("num_episodes", 2**62), "actions_3 is missing"),
    "a count of nothing": (replace("num_episodes", "many"), "num_episodes: expected one number"),
    "few observations": (
        replace("observations_2", np.zeros((5, 3), "f4")),
        "observations_2: expected 6 rows, found 5",
    ),
    "many rewards": (replace("rewards_2", np.zeros((7, 1), "f4")), "rewards_2: expected 6 rows, found 7"),
    "another shape": (
        replace("observations_2", np.zeros((6, 4), "f4")),
        r"observations_2: expected float32\[3\], found float32\[4\]",
    ),
    "another dtype": (replace("actions_2", np.zeros((6, 2))), r"actions_2: expected float32\[2\], found float64\[2\]"),
    "rewards of several": (replace("rewards_0", np.zeros((4, 2), "f4")), "reward: expected one number per step"),
    "text": (objects("rewards_2"), "rewards_2: expected rows of numbers, found object"),
    "infinite rewards": (
        replace("rewards_1", np.array([[np.inf]], "f4")),
        "rewards_1: expected finite numbers, found inf in row 0",
    ),
    "NaN": (set_row("rewards_2", 3, np.nan), "rewards_2: expected finite numbers, found NaN in row 3"),
    "a group for a dataset": (group_instead("rewards_0"), "rewards_0: expected a dataset, found a group"),
    "nothing behind it": (declare("actions_1", (10**15, 2)), "found none stored"),
    "another file": (external("rewards_1"), "rewards_1: leads to another file"),
    "another file behind a link": (soft("rewards_1", "/elsewhere"), "rewards_1: leads to another file"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    change, message = DAMAGE[name]
    path = Path(shutil.copy(GOLDEN / "vectors.h5", tmp_path))
    changed(path, change)
    with pytest.raises(CorruptShardError, match=message + ".*; expected d3rlpy's layout: "):
        read(open_d3rlpy(path), 0)


VERSIONS: dict[str, tuple[Any, str]] = {
    "2.0": (replace("version", "2.0"), "is of d3rlpy's version 2.0, expected 2.1"),
    "3.0": (replace("version", "3.0"), "is of d3rlpy's version 3.0, expected 2.1"),
    "a number": (replace("version", 2.1), "version: expected text, found float64"),
    "of fixed length": (replace("version", np.bytes_("1.9")), "is of d3rlpy's version 1.9, expected 2.1"),
    "empty": (replace("version", ""), "is of d3rlpy's version , expected 2.1"),
    "no UTF-8": (replace("version", b"\xff\xfe"), "version is damaged: expected text, found b'.*', which is not UTF-8"),
    "in chunks": (
        replace("version", ["1.9"], dtype=h5py.string_dtype(), chunks=(1,)),
        "is of d3rlpy's version 1.9, expected 2.1",
    ),
    "no episode": (replace("num_episodes", 0), "has no episode"),
    "fewer than none": (replace("num_episodes", -1), "has no episode"),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_other_versions(name: str, tmp_path: Path) -> None:
    change, message = VERSIONS[name]
    path = Path(shutil.copy(GOLDEN / "vectors.h5", tmp_path))
    changed(path, change)
    with pytest.raises(SourceError, match=message + ".*; expected d3rlpy's layout: version 2.1"):
        open_d3rlpy(path)


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_values_or_a_named_error(seed: int, tmp_path: Path) -> None:
    """Above all those of the heap that text lies in, on which HDF5 itself would hang."""
    content = (GOLDEN / "vectors.h5").read_bytes()
    heap = content.index(b"GCOL")
    path, chance, found = tmp_path / "vectors.h5", random.Random(seed), Counter[bool]()
    for number in range(60):
        damaged = bytearray(content)
        for _ in range(1 + 10 * (number % 3)):
            place = heap + chance.randrange(200) if number % 2 else chance.randrange(len(content))
            damaged[place] = chance.choice([0, 1, 255, chance.randrange(256)])
        path.write_bytes(damaged)
        found[isinstance(steps_or_error(open_d3rlpy, path), int)] += 1
    assert min(found.values()) > 3, found
