"""What rlx writes for D4RL, by rlx's reader and by D4RL's own where that is installed.

As its environments need MuJoCo of old, and its reader only gym: pip install --no-deps d4rl gym gym-notices
"""

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlx.pipeline.export import export
from rlx.progress import Silent
from tests.contracts.dataset_exporter import SAMPLES, Arrays, DatasetExporterContract, whole_dataset
from tests.contracts.source import Trajectory

REFUSED = {"dict observations": "one observation a step", "dict actions": "one action a step"}


class TestD4RL(DatasetExporterContract):
    format = "d4rl"
    name = "out.hdf5"
    refused: ClassVar = REFUSED
    lost: ClassVar = {
        "infos": ["the field info/score"],
        "extra fields": ["the field logits"],
        "seams": ["where 2 of 5 trajectories end, which no flag tells"],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return {name: rows for name, rows in arrays.items() if name not in ("info/score", "logits")}


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if sample not in REFUSED])
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
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], rows, err_msg=name)
    if sample == "vectors":
        transitions = d4rl.qlearning_dataset(environment, dataset=found)
        kept = ~stored["truncated"]
        kept[-1] = False  # D4RL looks one step ahead
        np.testing.assert_array_equal(transitions["rewards"], stored["reward"][kept])
