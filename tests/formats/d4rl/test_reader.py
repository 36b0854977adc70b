import random
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.d4rl.reader import D4RL, open_d4rl
from rlx.formats.finding import find_run
from rlx.testing.source import FileContract, SmallShards, Trajectory, merge, read, steps_or_error
from tests.hdf5_files import (
    changed,
    declare,
    delete,
    external,
    external_storage,
    group_instead,
    objects,
    replace,
    set_row,
    soft,
    virtual,
    write_d4rl,
)

FILE = "hopper.hdf5"


class TestWithNextObservations(FileContract):
    file, write, open = FILE, staticmethod(write_d4rl), staticmethod(open_d4rl)


class TestWithout(TestWithNextObservations):
    options: ClassVar = {"next_observations": False}


class TestShards(SmallShards, TestWithNextObservations):
    def test_shards_are_whole_episodes(self, source: D4RL) -> None:
        assert [[one.episode for one in read(source, shard)] for shard in source.shards()] == [[0, 1], [2, 3]]


def told(trajectory: Trajectory) -> tuple[list[int], str, bool]:
    """Observations, how it ends, and whether the last of them was recorded."""
    ending = "t" if trajectory["terminated"][-1] else "." if trajectory.cut else "x"
    return trajectory["observation"][:, 0].astype(int).tolist(), ending, trajectory.final_recorded


@pytest.mark.parametrize(
    ("ends", "next_observations", "expected"),
    [
        ("..t", True, [([0, 1, 2, 3], "t", True)]),
        ("..x", True, [([0, 1, 2, 3], "x", True)]),
        ("...", True, [([0, 1, 2, 3], ".", True)]),
        ("..t", False, [([0, 1, 2, 0], "t", False)]),
        ("..x", False, [([0, 1, 2, 0], "x", False)]),
        ("...", False, [([0, 1, 2], ".", True)]),
        (".tx.", True, [([0, 1, 2], "t", True), ([1000, 1001], "x", True), ([2000, 2001], ".", True)]),
        (".tx.", False, [([0, 1, 0], "t", False), ([1000, 0], "x", False)]),
    ],
)
def test_how_episodes_end(
    ends: str, next_observations: bool, expected: list[tuple[list[int], str, bool]], tmp_path: Path
) -> None:
    write_d4rl(tmp_path / FILE, ends=ends, next_observations=next_observations)
    source, dropped = open_d4rl(tmp_path / FILE), Counter[str]()
    assert [told(one) for one in merge(source.blocks(0, dropped), source.schema)] == expected
    steps = sum(len(observations) - 1 for observations, _, _ in expected)
    assert sum(dropped.values()) == len(ends) - steps


def test_every_value(tmp_path: Path) -> None:
    arrays = write_d4rl(tmp_path / FILE)
    source = open_d4rl(tmp_path / FILE)
    trajectories = read(source, 0)
    for name, column in {"action": "actions", "reward": "rewards", "info/qpos": "infos/qpos"}.items():
        found = np.concatenate([one[name] for one in trajectories])
        assert found.dtype == arrays[column].dtype
        np.testing.assert_array_equal(found, arrays[column])
    assert (source.id, source.notes["format"]) == ("hopper", "D4RL")


def test_columns_of_one(tmp_path: Path) -> None:
    arrays = write_d4rl(tmp_path / FILE)
    columns: dict[str, Any] = {name: arrays[name][:, None] for name in ("rewards", "terminals", "timeouts")}
    write_d4rl(tmp_path / "columns.hdf5", **columns)
    one, other = open_d4rl(tmp_path / FILE), open_d4rl(tmp_path / "columns.hdf5")
    assert (one.schema, one.episodes) == (other.schema, other.episodes)
    assert [one["reward"].tolist() for one in read(one, 0)] == [one["reward"].tolist() for one in read(other, 0)]


def test_a_step_that_is_both_is_terminated(tmp_path: Path) -> None:
    write_d4rl(tmp_path / FILE, ends="..t", timeouts=np.array([False, False, True]))
    assert [told(one)[1] for one in read(open_d4rl(tmp_path / FILE), 0)] == ["t"]


def test_without_timeouts_a_trajectory_ends_where_observations_do_not_go_on(tmp_path: Path) -> None:
    write_d4rl(tmp_path / FILE, ends="..x...t.", timeouts=None)
    source = open_d4rl(tmp_path / FILE)
    assert [told(one) for one in read(source, 0)] == [
        ([0, 1, 2, 3], ".", True),
        ([1000, 1001, 1002, 1003, 1004], "t", True),
        ([2000, 2001], ".", True),
    ]
    assert source.notes["truncation"] == "unrecorded: a trajectory ends where its next observations do not continue"


def test_without_either_it_is_said_that_episodes_run_on(tmp_path: Path) -> None:
    write_d4rl(tmp_path / FILE, ends="..x...t.", timeouts=None, next_observations=False)
    source = open_d4rl(tmp_path / FILE)
    assert [one.steps for one in read(source, 0)] == [7]
    assert source.notes["truncation"].startswith("unrecorded: where a limit cut an episode, the next one continues it")


def test_further_arrays_of_a_row_per_step_are_fields_and_others_are_named(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "infos/few": np.zeros(3),
        "infos/a b": np.zeros(12),
        "infos/names": np.array([b"x", b"yz"] * 6),
        "extra": np.arange(12.0),
        "next/lives": np.arange(12),
        "logs/loss": np.zeros(3),
    }
    write_d4rl(tmp_path / FILE, **more)
    source = open_d4rl(tmp_path / FILE)
    assert source.notes["not_taken"] == {
        "infos/a b": "field name 'infos/a b': expected words of letters, digits and _.- joined by /".replace(
            "infos", "info"
        ),
        "infos/few": "not one row per step",
        "logs/loss": "not one row per step",
        "metadata/algorithm": "not part of any step",
    }
    extra = ("extra", "info/names", "lives")
    assert [source.schema[name].role for name in extra] == ["step", "step", "next"]
    found = {name: np.concatenate([one[name] for one in read(source, 0)]).tolist() for name in extra}
    assert found == {"extra": [*range(12)], "info/names": ["x", "yz"] * 6, "lives": [*range(12)]}


def test_extra_keys_that_lead_elsewhere_are_named(tmp_path: Path) -> None:
    write_d4rl(tmp_path / FILE)
    with h5py.File(tmp_path / FILE, "r+") as file:
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/")
        file["again"] = h5py.SoftLink("/rewards")
    changed(tmp_path / FILE, virtual("infos/qpos", Path("/etc/passwd")))
    left = open_d4rl(tmp_path / FILE).notes["not_taken"]
    assert left["elsewhere"] == left["again"] == "leads to another file, or another place in this one"
    assert "its values are in another file" in left["infos/qpos"]


def test_next_observations_are_kept_whatever_the_timeouts_say(tmp_path: Path) -> None:
    """One time-out is flagged, another end is not."""
    write_d4rl(tmp_path / FILE, ends="..x...x.t", timeouts=np.arange(9) == 2)
    assert [(told(one), one.from_reset, one.cut) for one in read(open_d4rl(tmp_path / FILE), 0)] == [
        (([0, 1, 2, 3], "x", True), True, False),
        (([1000, 1001, 1002, 1003, 1004], ".", True), True, True),
        (([2000, 2001, 2002], "t", True), False, False),
    ]


def test_nan_in_an_info_breaks_no_episode(tmp_path: Path) -> None:
    more: dict[str, Any] = {"infos/qpos": np.full((12, 2), np.nan)}
    write_d4rl(tmp_path / FILE, **more)
    assert [one.steps for one in read(open_d4rl(tmp_path / FILE), 0)] == [4, 2, 4, 2]


def test_the_first_version_of_d3rlpy(tmp_path: Path) -> None:
    ends = np.array([letter != "." for letter in "...t.x...t.x"])
    more: dict[str, Any] = {
        "timeouts": None,
        "episode_terminals": ends,
        "discrete_action": np.array(0),
        "version": np.bytes_("1.0"),
    }
    write_d4rl(tmp_path / "v1.h5", ends="...t.x...t.x", next_observations=False, **more)
    source = find_run(tmp_path / "v1.h5", None)
    assert source == find_run(tmp_path / "v1.h5", None, "d3rlpy")
    assert [told(one)[1:] for one in read(source, 0)] == [("t", False), ("x", False)] * 2
    assert list(source.notes["not_taken"]) == ["metadata/algorithm"]


DAMAGE: dict[str, tuple[Any, str]] = {
    "no rewards": (delete("rewards"), "rewards is missing"),
    "a group for a dataset": (group_instead("actions"), "actions: expected a dataset, found a group"),
    "few actions": (replace("actions", np.zeros((11, 3), "f4")), "actions: expected 12 rows, found 11"),
    "many flags": (replace("terminals", np.zeros((12, 2))), r"terminals: expected one flag per step, found \[12, 2\]"),
    "few time-outs": (replace("timeouts", np.zeros(3)), "timeouts: expected 12 rows, found 3"),
    "many rewards": (replace("rewards", np.zeros((12, 2))), "reward: expected one number per step"),
    "many dimensions": (replace("actions", np.zeros((12, *[1] * 17))), "shape .*: expected at most 16 non-negative"),
    "text": (objects("rewards"), "rewards: expected rows of numbers, found object"),
    "complex numbers": (replace("actions", np.zeros((12, 3), "c8")), "actions: expected rows of numbers"),
    "a number": (replace("observations", 3.0), r"observations: expected rows of numbers, found float64\[\]"),
    "next ones of another shape": (
        replace("next_observations", np.zeros((12, 3), "f4")),
        r"next_observations: expected float32\[12, 2\] as observations, found float32\[12, 3\]",
    ),
    "NaN seen": (set_row("observations", 7, np.nan), "observations: expected finite numbers, found NaN in row 7"),
    "NaN seen next": (
        set_row("next_observations", 3, np.nan),
        "next_observations: expected finite numbers, found NaN in row 3",
    ),
    "NaN reward": (set_row("rewards", 11, np.nan), "rewards: expected finite numbers, found NaN in row 11"),
    "nothing behind it": (declare("rewards", (10**15,)), "found none stored"),
    "little behind it": (
        declare("observations", (10**12, 2), chunks_written=2),
        "expected 1,000,000,000 chunks, found 2 stored",
    ),
    "another file": (external("rewards"), "rewards: leads to another file"),
    "another file behind a link": (soft("rewards", "/elsewhere"), "rewards: leads to another file"),
    "another place": (soft("rewards", "/terminals"), "rewards: leads to another file, or another place in this one"),
    "another file's bytes": (external_storage("rewards", 48), "rewards: its values are in another file"),
    "another file's values": (virtual("rewards", Path("/etc/passwd")), "rewards: its values are in another file"),
    "a group that leads to itself": (
        lambda file: file["infos"].__setitem__("again", file["infos"]),
        "expected groups at most 16 deep",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    change, message = DAMAGE[name]
    write_d4rl(tmp_path / FILE)
    changed(tmp_path / FILE, change)
    with pytest.raises(CorruptShardError, match=message + r".*; expected D4RL's layout: observations \[N"):
        read(open_d4rl(tmp_path / FILE), 0)


def test_a_file_without_steps(tmp_path: Path) -> None:
    write_d4rl(tmp_path / FILE, ends="")
    with pytest.raises(SourceError, match="has no step; expected D4RL's layout"):
        open_d4rl(tmp_path / FILE)
    with pytest.raises(SourceNotFoundError, match="is missing"):
        open_d4rl(tmp_path / "nothing.hdf5")


def test_flipped_bytes_are_values_or_a_named_error(tmp_path: Path) -> None:
    write_d4rl(tmp_path / FILE)
    content = (tmp_path / FILE).read_bytes()
    chance, found = random.Random(0), Counter[bool]()
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / FILE).write_bytes(damaged)
        found[steps_or_error(open_d4rl, tmp_path / FILE) == 12] += 1
    assert min(found.values()) > 5, found
