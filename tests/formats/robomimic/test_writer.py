"""What rlx writes for robomimic, by rlx's reader and by robomimic's own where that is installed.

As it pins much that learning needs and reading does not: pip install --no-deps robomimic termcolor
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlx.errors import ExportError
from rlx.formats.common.hdf5.episodes import extra_columns
from rlx.formats.common.pictures import channels_last
from rlx.formats.robomimic.writer import _keys
from rlx.progress import Silent
from rlx.schema import Field, Role
from rlx.testing.dataset_exporter import (
    RICH,
    SAMPLES,
    Arrays,
    DatasetExporterContract,
    random_block,
    schema,
    whole_dataset,
)
from rlx.testing.source import Trajectory, read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset

REFUSED = {
    "discrete actions": r"one action of floats per step, found action int64\[\]",
    "pictures": r"found action int64\[\]",
    "multi-discrete actions": r"found action int64\[2\]",
    "dict actions": "found action/move float32",
    "policy outputs": r"found action int64\[\]",
}


class TestRobomimic(DatasetExporterContract):
    format = "robomimic"
    name = "out.hdf5"
    refused: ClassVar = REFUSED
    rich = True
    lost: ClassVar = {"dict observations": ["the name observation/arm/angle: it becomes arm_angle"]}

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        chosen = {**SAMPLES, **RICH}[sample]
        return {
            name.replace("arm/angle", "arm_angle"): channels_last(chosen[name]).arrange(rows)
            for name, rows in arrays.items()
        }


def test_what_a_policy_writes_and_what_is_known_of_trajectories_come_back(tmp_path: Path) -> None:
    fields = {name: field for name, field in RICH["policy outputs"].fields.items() if name != "action"}
    chosen = schema(fields, {"action": Field("float32", (2,), Role.STEP)})
    flags = np.array([True, False, True])
    block = random_block(chosen, ends="x")
    block = replace(block, episodes=np.array([7, 3, 3]), from_reset=flags, cut=~flags)
    dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
    assert export(dataset.path, tmp_path / "out.hdf5", "robomimic", progress=Silent()).losses == []
    source, _ = open_source(tmp_path / "out.hdf5", None)
    assert {name: source.schema[name].role for name in chosen} == {name: chosen[name].role for name in chosen}
    found = read(source, 0)
    for name in ("params/loc", "info/lives", "info/deep/ram", "value", "h"):
        np.testing.assert_array_equal(np.concatenate([one[name] for one in found]), block.data[name])
    assert [(one.episode, one.from_reset, one.cut) for one in found] == [
        (7, True, False),
        (3, False, True),
        (3, True, False),
    ]


def test_observations_that_would_be_called_the_same(tmp_path: Path) -> None:
    names = ("observation/arm/angle", "observation/arm_angle")
    chosen = schema(
        {name: Field("float32", (2,), Role.OBSERVATION) for name in names},
        {"action": Field("float32", (2,), Role.STEP)},
    )
    dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
    with pytest.raises(ExportError, match="two observations the same: observation/arm/angle, observation/arm_angle"):
        export(dataset.path, tmp_path / "out.hdf5", "robomimic", progress=Silent())
    assert not (tmp_path / "out.hdf5").exists()


@pytest.mark.parametrize("sample", [sample for sample in (*SAMPLES, "texts") if sample not in REFUSED])
def test_robomimic_reads_every_value(sample: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        reader = pytest.importorskip("robomimic.utils.dataset", exc_type=ImportError)
        modalities = pytest.importorskip("robomimic.utils.obs_utils", exc_type=ImportError)
    dataset = whole_dataset(tmp_path / "data", sample)
    names = {key: name for name, key in _keys(dataset.schema).items()}
    export(dataset.path, tmp_path / "out.hdf5", "robomimic", progress=Silent())
    has_next = bool(dataset.trajectories.final_recorded.any())
    modalities.initialize_obs_modality_mapping_from_dict({"low_dim": list(names)})
    extras = [extra for extra in extra_columns(dataset.schema) if not dataset.schema[extra.name].is_text]
    opened = reader.SequenceDataset(
        str(tmp_path / "out.hdf5"),
        [key for key, name in names.items() if not dataset.schema[name].is_text],
        ("actions", "rewards", "dones", *(extra.path for extra in extras)),
        load_next_obs=has_next,
    )
    assert (opened.n_demos, len(opened)) == (len(dataset.trajectories), len(dataset))
    stored: Arrays = {name: np.concatenate([block.data[name] for block in dataset.blocks()]) for name in dataset.schema}
    # It goes through demonstrations by their number as well.
    for step in range(len(dataset)):
        found: dict[str, Any] = opened[step]
        trajectory = int(dataset.steps.locate(np.array([step])).trajectory[0])
        assert found["rewards"][0] == stored["reward"][step]
        assert found["dones"][0] == stored["terminated"][step]
        np.testing.assert_array_equal(found["actions"][0], stored["action"][step])
        for extra in extras:
            is_seen = dataset.schema[extra.name].role == Role.OBSERVATION
            place = step + trajectory * is_seen + extra.is_after
            np.testing.assert_array_equal(found[extra.path][0], stored[extra.name][place])
        for key, name in names.items():
            if dataset.schema[name].is_text:
                continue  # which robomimic does not learn from
            rows = channels_last(dataset.schema[name]).arrange(stored[name][step + trajectory : step + trajectory + 2])
            np.testing.assert_array_equal(found["obs"][key][0], rows[0])
            if has_next:
                np.testing.assert_array_equal(found["next_obs"][key][0], rows[1])
