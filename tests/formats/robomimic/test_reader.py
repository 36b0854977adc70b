from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.hdf5.episodes import Hdf5Episodes
from rlx.formats.finding import find_run
from rlx.formats.robomimic.reader import open_robomimic
from rlx.testing.source import FileContract, SmallShards, merge, read
from tests.hdf5_files import (
    Arrays,
    changed,
    declare,
    delete,
    external,
    group_instead,
    objects,
    replace,
    set_row,
    soft,
    virtual,
    write_robomimic,
)

FILE = "lift.hdf5"


class TestWithNextObservations(FileContract):
    file, write, open = FILE, staticmethod(write_robomimic), staticmethod(open_robomimic)


class TestWithout(TestWithNextObservations):
    options: ClassVar = {"lengths": [4, 5, 1, 1], "next_obs": False}


class TestShards(SmallShards, TestWithNextObservations):
    options: ClassVar = {"lengths": [3, 2, 9, 1]}

    def test_shards_are_whole_episodes(self, source: Hdf5Episodes) -> None:
        assert [[one.episode for one in read(source, shard)] for shard in source.shards()] == [[0, 1], [2], [3]]


def expected(demo: Arrays) -> Arrays:
    """What rlx makes of a demonstration whose next observations are there."""
    found = {
        f"observation/{key}": np.concatenate([demo[f"obs/{key}"], demo[f"next_obs/{key}"][-1:]])
        for key in ("agentview_image", "robot0_eef_pos")
    }
    done = demo["dones"] != 0
    return found | {
        "action": demo["actions"],
        "reward": demo["rewards"],
        "states": demo["states"],
        "terminated": done,
        "truncated": (np.arange(len(done)) == len(done) - 1) & ~done,
    }


def test_every_value(tmp_path: Path) -> None:
    demos = write_robomimic(tmp_path / FILE)
    source = find_run(tmp_path / FILE, None)
    trajectories = read(source, 0)
    assert [one.episode for one in trajectories] == [0, 1, 2]
    for trajectory, demo in zip(trajectories, demos.values(), strict=True):
        wanted = expected(demo)
        assert set(trajectory.parts) == set(wanted)
        for name, rows in wanted.items():
            assert trajectory[name].dtype == rows.dtype
            np.testing.assert_array_equal(trajectory[name], rows, err_msg=name)
    assert source.id == "lift"
    assert source.notes == {
        "format": "robomimic",
        "environment": "Lift",
        "truncation": "unrecorded: a demonstration that did not terminate just ends",
        "not_taken": {"data/demo_*: attribute model_file": "not part of any step", "mask": "not part of any step"},
    }


def test_without_next_observations_a_step_without_outcome_is_left_out(tmp_path: Path) -> None:
    write_robomimic(tmp_path / FILE, [4, 5, 1, 1], next_obs=False)
    source, dropped = open_robomimic(tmp_path / FILE), Counter[str]()
    found = merge(source.blocks(0, dropped), source.schema)
    assert [(one.episode, one.steps, one.final_recorded) for one in found] == [
        (0, 4, False),
        (1, 4, True),
        (2, 1, False),
    ]
    assert dropped == {"step_whose_outcome_is_not_recorded": 2}


def test_without_rewards_and_flags_there_are_zeros_and_a_note(tmp_path: Path) -> None:
    """As Isaac Lab and MimicGen write it."""
    demos = write_robomimic(tmp_path / FILE)
    with h5py.File(tmp_path / FILE, "r+") as file:
        for number in demos:
            for name in ("rewards", "dones"):
                del file[f"data/demo_{number}/{name}"]
    source = open_robomimic(tmp_path / FILE)
    found = read(source, 0)
    assert (source.notes["rewards"], source.notes["terminated"]) == ("unrecorded: zeros", "unrecorded")
    assert source.schema["reward"].dtype == "float32"
    for one, demo in zip(found, demos.values(), strict=True):
        np.testing.assert_array_equal(one["action"], demo["actions"])
        assert not one["reward"].any()
        assert not one["terminated"].any()
        assert one.cut


def test_demonstrations_go_by_number_and_may_have_gaps(tmp_path: Path) -> None:
    write_robomimic(tmp_path / FILE, [1] * 12)
    changed(tmp_path / FILE, delete("data/demo_3"))
    assert [one.episode for one in read(open_robomimic(tmp_path / FILE), 0)] == [0, 1, 2, *range(4, 12)]


def test_flags_before_the_end_are_kept_apart(tmp_path: Path) -> None:
    demos = write_robomimic(tmp_path / FILE)
    changed(tmp_path / FILE, set_row("data/demo_2/dones", 4, 1))
    first, _, third = read(open_robomimic(tmp_path / FILE), 0)
    assert third["dones"].tolist() == [0, 0, 0, 0, 1, 0, 1]
    assert third["terminated"].tolist() == [False] * 6 + [True]
    np.testing.assert_array_equal(first["dones"], demos[0]["dones"])


def test_one_observation_is_called_just_that(tmp_path: Path) -> None:
    write_robomimic(tmp_path / FILE, [3])

    def rename(file: h5py.File) -> None:
        for group in ("obs", "next_obs"):
            del file[f"data/demo_0/{group}/agentview_image"]
            file.move(f"data/demo_0/{group}/robot0_eef_pos", f"data/demo_0/{group}/observation")

    changed(tmp_path / FILE, rename)
    assert open_robomimic(tmp_path / FILE).schema["observation"].shape == (3,)


DAMAGE: dict[str, tuple[Any, str]] = {
    "no data": (lambda f: f.move("data", "more"), "data is missing"),
    "no rewards": (delete("data/demo_2/rewards"), "data/demo_2/rewards is missing"),
    "no observations": (delete("data/demo_0/obs"), "data/demo_0/obs is missing"),
    "an observation less": (delete("data/demo_1/obs/robot0_eef_pos"), "demo_1/obs/robot0_eef_pos is missing"),
    "no next one": (delete("data/demo_1/next_obs/robot0_eef_pos"), "next_obs/robot0_eef_pos is missing"),
    "no flags": (delete("data/demo_1/dones"), "demo_1/dones is missing"),
    "few flags": (replace("data/demo_2/dones", np.zeros(3)), "demo_2/dones: expected 7 rows, found 3"),
    "few actions": (replace("data/demo_2/actions", np.zeros((6, 7))), "expected 7 samples, found 6 actions"),
    "few rewards": (replace("data/demo_2/rewards", np.zeros(6)), "demo_2/rewards: expected 7 rows, found 6"),
    "few observations": (
        replace("data/demo_2/obs/robot0_eef_pos", np.zeros((6, 3))),
        "obs/robot0_eef_pos: expected 7 rows, found 6",
    ),
    "another dtype": (
        replace("data/demo_2/rewards", np.zeros(7, "f4")),
        r"demo_2/rewards: expected float64\[\], found float32\[\]",
    ),
    "another shape": (
        replace("data/demo_2/next_obs/robot0_eef_pos", np.zeros((7, 4))),
        r"next_obs/robot0_eef_pos: expected float64\[3\], found float64\[4\]",
    ),
    "text": (objects("data/demo_0/rewards"), "demo_0/rewards: expected rows of numbers, found object"),
    "NaN": (set_row("data/demo_2/obs/robot0_eef_pos", 3, np.nan), "expected finite numbers, found NaN in row 3"),
    "a group for a dataset": (group_instead("data/demo_0/actions"), "demo_0/actions: expected a dataset"),
    "a dataset for a group": (replace("data", 3), "data: expected a group, found a dataset"),
    "nothing behind it": (declare("data/demo_1/actions", (10**15, 7)), "found none stored"),
    "another file": (external("data/demo_1/rewards"), "demo_1/rewards: leads to another file"),
    "a group of another file": (external("data/demo_1"), "data/demo_1: leads to another file"),
    "another file behind a link": (soft("data/demo_1/rewards", "/elsewhere"), "leads to another file"),
    "another file's values": (virtual("data/demo_1/rewards", Path("/etc/passwd")), "are in another file"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    change, message = DAMAGE[name]
    write_robomimic(tmp_path / FILE)
    changed(tmp_path / FILE, change)
    with pytest.raises(CorruptShardError, match=message + ".*; expected robomimic's layout: data/demo_<i>"):
        read(open_robomimic(tmp_path / FILE), 0)


@pytest.mark.parametrize("env_args", ["{", "[1]", '{"env_name": 3}', 7, None])
def test_environments_that_are_not_told(env_args: Any, tmp_path: Path) -> None:
    write_robomimic(tmp_path / FILE)
    with h5py.File(tmp_path / FILE, "a") as file:
        del file["data"].attrs["env_args"]
        if env_args is not None:
            file["data"].attrs["env_args"] = env_args
    assert "environment" not in open_robomimic(tmp_path / FILE).notes


def test_a_file_without_demonstrations(tmp_path: Path) -> None:
    write_robomimic(tmp_path / FILE, [])
    with pytest.raises(SourceError, match="has no demonstration"):
        open_robomimic(tmp_path / FILE)


def test_further_arrays_of_a_row_per_step_are_fields_and_others_are_named(tmp_path: Path) -> None:
    demos = write_robomimic(tmp_path / FILE)
    with h5py.File(tmp_path / FILE, "r+") as file:
        for number, demo in demos.items():
            group, rows = file[f"data/demo_{number}"], len(demo["actions"])
            group["datagen_info/gripper"] = np.full((rows, 1), number)
            group["subtask"] = [f"part {row}" for row in range(rows)]
            group["initial"] = np.zeros(99)
        file["data/demo_0/sometimes"] = np.zeros(len(demos[0]["actions"]))
    source = open_robomimic(tmp_path / FILE)
    assert {name: reason for name, reason in source.notes["not_taken"].items() if "demo_*/" in name} == {
        "data/demo_*/initial": "not one row per step",
        "data/demo_*/sometimes": "not one row per step",
    }
    for number, one in enumerate(read(source, 0)):
        assert one["datagen_info/gripper"].tolist() == [[number]] * one.steps
        assert one["subtask"].tolist() == [f"part {row}" for row in range(one.steps)]
