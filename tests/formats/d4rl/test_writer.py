"""What rlx writes for D4RL, by rlx's reader and by D4RL's own where that is installed.

As its environments need MuJoCo of old, and its reader only gym: pip install --no-deps d4rl gym gym-notices
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest

from rlx.formats.common.hdf5.episodes import extra_columns
from rlx.progress import Silent
from rlx.schema import Role
from rlx.testing.dataset_exporter import RICH, SAMPLES, Arrays, DatasetExporterContract, random_block, whole_dataset
from rlx.testing.source import read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset

REFUSED = {
    "dict observations": "one observation per step",
    "dict actions": "one action per step",
    "texts": "one observation per step",
}


class TestD4RL(DatasetExporterContract):
    format = "d4rl"
    name = "out.hdf5"
    rich = True
    refused: ClassVar = REFUSED
    lost: ClassVar = {"finals not recorded": []}


@pytest.mark.parametrize("ends", ["u", "xu", "txu"])
def test_trajectories_come_back_whatever_the_flags_say(tmp_path: Path, ends: str) -> None:
    """Ends without a flag, numbers in any order, pieces of episodes; and observations that are all the same."""
    chosen = SAMPLES["vectors"]
    block = random_block(chosen, (4, 1, 7, 3), ends=ends)
    block.data["observation"][:] = 0
    flags = np.array([True, False, True, False])
    ends_of = [ends[number % len(ends)] for number in range(4)]
    block = replace(block, episodes=np.array([7, 3, 3, 9]), from_reset=flags, cut=~flags & (np.array(ends_of) != "t"))
    dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
    report = export(dataset.path, tmp_path / "out.hdf5", "d4rl", progress=Silent())
    assert report.losses == []
    (source, _), table = open_source(tmp_path / "out.hdf5", None), dataset.trajectories
    found = read(source, 0)
    assert [one.steps for one in found] == table.length.tolist()
    assert [(one.episode, one.from_reset, one.cut) for one in found] == [
        *zip(table.episode.tolist(), table.from_reset.tolist(), table.cut.tolist(), strict=True)
    ]


def test_a_file_that_was_changed_is_read_by_its_flags(tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "vectors")
    export(dataset.path, tmp_path / "out.hdf5", "d4rl", progress=Silent())
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
            rows = file[name][4:]
            del file[name]
            file[name] = rows
    assert [one.steps for one in read(open_source(tmp_path / "out.hdf5", None)[0], 0)] == [1, 7, 2, 9]


@pytest.mark.parametrize("sample", [sample for sample in (*SAMPLES, *RICH) if sample not in REFUSED])
def test_d4rl_reads_every_value(sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_SUPPRESS_IMPORT_ERROR", "1")
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "d4rl"))
    with warnings.catch_warnings(action="ignore"):
        d4rl: Any = pytest.importorskip("d4rl", exc_type=ImportError)
        spaces: Any = pytest.importorskip("gym.spaces", exc_type=ImportError)
        environment = d4rl.offline_env.OfflineEnv()
    dataset = whole_dataset(tmp_path / "data", sample)
    export(dataset.path, tmp_path / "out.hdf5", "d4rl", progress=Silent())
    for name in ("observation", "action"):
        setattr(environment, f"{name}_space", spaces.Box(-1, 1, dataset.schema[name].shape))
    found = environment.get_dataset(str(tmp_path / "out.hdf5"))
    stored: Arrays = {name: np.concatenate([block.data[name] for block in dataset.blocks()]) for name in dataset.schema}
    finals = dataset.trajectories.start + dataset.trajectories.length + np.arange(len(dataset.trajectories))
    expected = {
        "observations": np.delete(stored["observation"], finals, axis=0),
        "actions": stored["action"],
        "rewards": stored["reward"],
        "terminals": stored["terminated"],
        "timeouts": stored["truncated"],
    }
    starts = dataset.trajectories.start + np.arange(len(dataset.trajectories))
    for column in extra_columns(dataset.schema):
        rows = stored[column.name]
        if dataset.schema[column.name].role == Role.OBSERVATION:
            rows = np.delete(rows, starts if column.is_after else finals, axis=0)
        expected[column.path] = rows
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], rows, err_msg=name)
    if sample == "vectors":
        transitions = d4rl.qlearning_dataset(environment, dataset=found)
        kept = ~stored["truncated"]
        kept[-1] = False  # D4RL looks one step ahead
        np.testing.assert_array_equal(transitions["rewards"], stored["reward"][kept])
