"""What rlx writes for d3rlpy, by rlx's reader and by d3rlpy's own where that is installed.

d3rlpy pins gymnasium 1.0.0, so that it cannot be had beside what the other tests need except without its dependencies:
pip install --no-deps d3rlpy gym gym-notices structlog colorama dataclasses-json marshmallow typing-inspect scikit-learn
"""

import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlx.formats.common.pictures import channels_first
from rlx.progress import Silent
from rlx.schema import Field, Role
from rlx.testing.dataset_exporter import RICH, SAMPLES, Arrays, DatasetExporterContract, whole_dataset
from rlx.testing.source import Trajectory
from rlx.verbs.export import export

FINAL = "the final observation of 5 of 5 trajectories"
CUT = (
    "the outcome of the last step of 2 of 5 trajectories, which did not terminate: d3rlpy makes no transitions of them"
)
CHOSEN = {**SAMPLES, **RICH}
LOST = {sample: [FINAL, CUT] for sample in SAMPLES}
REFUSED = {
    "multi-discrete actions": r"one discrete action or one vector of floats per step, found action int64\[2\]",
    "dict actions": r"found action/move float32\[1\], action/turn float32\[1\]",
    "texts": "d3rlpy holds observations of numbers, found text in observation/mission",
}


class TestD3rlpy(DatasetExporterContract):
    format = "d3rlpy"
    name = "out.h5"
    rich = True
    refused: ClassVar = REFUSED
    lost: ClassVar = LOST | {
        "pictures": [FINAL, CUT, "observation as [84, 84]: it becomes [1, 84, 84]"],
        "colour pictures": [FINAL, CUT, "observation as [40, 36, 3]: it becomes [3, 40, 36]"],
        "scalar observations": [FINAL, CUT, "observation as []: it becomes [1]"],
        "dict observations": [
            FINAL,
            CUT,
            "observation/camera as [40, 36, 3]: it becomes [3, 40, 36]",
            "names of observations: observation/camera, observation/arm/angle become a tuple in this order",
        ],
        "wide rewards": [FINAL, CUT, "rewards of float64: they are rounded to float32"],
        "infos": [FINAL, "the last info/score of each trajectory", CUT],
        "seams": [FINAL, CUT, "that 2 of 5 trajectories end without being truncated"],
        "finals not recorded": [],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        """An episode that did not terminate was truncated; no observation follows its last step."""
        arrays, steps = super().expected(trajectory, sample) or {}, trajectory.steps
        found: Arrays = {}
        for name, rows in arrays.items():
            if name.startswith("observation"):
                rows = np.concatenate([rows[:steps], np.zeros_like(rows[:1])])
                rows = rows[:, None] if rows.ndim == 1 else channels_first(CHOSEN[sample][name]).arrange(rows)
                found[TUPLE.get(name, name)] = rows
            else:
                found[name] = rows[:steps].astype(np.float32) if name == "reward" else rows[:steps]
        found["truncated"] = (np.arange(steps) == steps - 1) & ~arrays["terminated"]
        return found

    def expected_role(self, name: str, field: Field) -> Role:
        return Role.STEP if name in ("info/score", "h") else field.role

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        return False


TUPLE = {"observation/camera": "observation/_index_0", "observation/arm/angle": "observation/_index_1"}


@pytest.fixture(scope="module")
def d3rlpy() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip("d3rlpy", exc_type=ImportError)


@pytest.mark.parametrize("sample", [sample for sample in CHOSEN if sample not in REFUSED])
def test_d3rlpy_reads_every_value(sample: str, tmp_path: Path, d3rlpy: Any) -> None:
    dataset = whole_dataset(tmp_path / "data", sample)
    export(dataset.path, tmp_path / "out.h5", "d3rlpy", progress=Silent())
    with (tmp_path / "out.h5").open("rb") as file, warnings.catch_warnings(action="ignore"):
        buffer = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    table = dataset.trajectories
    transitions = table.length - ~table.terminated
    numbers = np.flatnonzero(transitions)  # d3rlpy passes over episodes of which it can make none
    assert [len(episode) for episode in buffer.episodes] == table.length[numbers].tolist()
    assert buffer.transition_count == int(transitions.sum())
    discrete = dataset.schema["action"].dtype == "int64"
    assert buffer.dataset_info.action_space.name == ("DISCRETE" if discrete else "CONTINUOUS")
    stored = {name: np.concatenate([block.data[name] for block in dataset.blocks()]) for name in dataset.schema}
    for number, episode in zip(numbers.tolist(), buffer.episodes, strict=True):
        start, length = int(table.start[number]), int(table.length[number])
        steps = slice(start, start + length)
        np.testing.assert_array_equal(episode.rewards[:, 0], stored["reward"][steps].astype(np.float32))
        actions = episode.actions[:, 0] if discrete else episode.actions
        np.testing.assert_array_equal(actions, stored["action"][steps])
        assert episode.terminated == bool(table.terminated[number])
        names = [name for name in dataset.schema if name.startswith("observation")]
        observations = episode.observations if len(names) > 1 else [episode.observations]
        for name, rows in zip(names, observations, strict=True):
            expected = stored[name][start + number : start + number + length]
            expected = (
                expected[:, None] if expected.ndim == 1 else channels_first(dataset.schema[name]).arrange(expected)
            )
            np.testing.assert_array_equal(rows, expected)
