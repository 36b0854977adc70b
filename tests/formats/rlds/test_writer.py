"""What rlx writes as RLDS, by rlx's reader and by TensorFlow Datasets where that is installed.

It needs TensorFlow, and so is no extra: pip install tensorflow-datasets tensorflow-cpu importlib_resources
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import rlx
from rlx.errors import ExportError
from rlx.formats.common import tf_example
from rlx.formats.rlds import writer as rlds
from rlx.progress import Silent
from rlx.schema import Field, Role
from rlx.store.dataset import Dataset
from rlx.testing.dataset_exporter import (
    RICH,
    SAMPLES,
    Arrays,
    DatasetExporterContract,
    random_block,
    schema,
    whole_dataset,
)
from rlx.testing.exporter import contents
from rlx.testing.source import Trajectory, read, same
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset

GOLDEN = Path(__file__).parents[2] / "golden/rlds"
UNRECORDED = "that the final observation of 5 of 5 trajectories was not recorded: it is zeros"


class TestRLDS(DatasetExporterContract):
    format = "rlds"
    rich = True
    lost: ClassVar = {
        "pictures": ["observation as [84, 84]: it becomes [84, 84, 1]"],
        "seams": ["that 2 of 5 trajectories end without being truncated"],
        "finals not recorded": [UNRECORDED],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        if sample == "pictures":
            arrays["observation"] = arrays["observation"][..., None]
        arrays["truncated"][-1] = not arrays["terminated"][-1]
        return arrays

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        return True

    def test_several_shards(self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = whole_dataset(tmp_path / "data", "vectors")
        monkeypatch.setattr(rlds, "_SHARD_BYTES", 600)
        self.export(dataset.path, path)
        names = [name for name in contents(path) if "tfrecord" in name]
        assert names == [f"rlx_test_1-train.tfrecord-{number:05d}-of-00003" for number in range(3)]
        assert [one.episode for one in every(path)] == list(range(5))

    def test_an_episode_too_long_for_an_example(
        self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = whole_dataset(tmp_path / "data", "vectors")
        monkeypatch.setattr(tf_example, "MAX_BYTES", 400)
        with pytest.raises(ExportError, match=r"episode 2 makes an example of .* bytes; expected at most 400"):
            self.export(dataset.path, path)
        assert not path.parent.exists()

    def test_a_cut_trajectory_stays_one(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "seams")
        self.export(dataset.path, path)
        assert [one.cut for one in every(path)] == dataset.trajectories.cut.tolist()

    def test_discounts_of_an_environment_are_kept(self, tmp_path: Path, path: Path) -> None:
        chosen = schema(SAMPLES["vectors"].fields, {"discount": Field("float32", (), Role.NEXT)})
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
        assert list(self.export(dataset.path, path).losses) == []
        for found, wanted in zip(every(path), self.source_trajectories(dataset), strict=True):
            np.testing.assert_array_equal(found["discount"], wanted["discount"])

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_as_tensorflow_datasets_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        tfds = pytest.importorskip("tensorflow_datasets", reason="TensorFlow Datasets is not installed")
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        builder = tfds.builder_from_directory(path)
        episodes = [
            (episode["episode_id"], list(episode["steps"]))
            for episode in tfds.as_numpy(builder.as_dataset(split="train"))
        ]
        wanted = self.source_trajectories(dataset)
        assert [number for number, _ in episodes] == [one.episode for one in wanted]
        for (_, steps), trajectory in zip(episodes, wanted, strict=True):
            check_steps(steps, trajectory, dataset)


def again(tmp_path: Path) -> Path:
    """What rlx writes of the dataset that TensorFlow Datasets wrote, through a dataset."""
    rlx.convert(GOLDEN, tmp_path / "data", from_="rlds", jobs=1)
    assert export(tmp_path / "data", tmp_path / "1.0.0", "rlds", progress=Silent()).losses == []
    return tmp_path / "1.0.0"


def test_what_tensorflow_datasets_wrote_comes_back_equal(tmp_path: Path) -> None:
    assert same(every(GOLDEN), every(again(tmp_path)))


def test_as_tensorflow_datasets_reads_its_own_data_again(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets", reason="TensorFlow Datasets is not installed")
    one, other = (
        [
            (int(episode["episode_id"]), list(episode["steps"]))
            for episode in tfds.as_numpy(tfds.builder_from_directory(path).as_dataset(split="train"))
        ]
        for path in (GOLDEN, again(tmp_path))
    )
    assert [number for number, _ in one] == [number for number, _ in other]
    for (_, before), (_, after) in zip(one, other, strict=True):
        assert len(before) == len(after)
        for number, (step, found) in enumerate(zip(before, after, strict=True)):
            for name in ("is_first", "is_last", "is_terminal", "observation/camera", "observation/grey"):
                np.testing.assert_array_equal(leaf(found, name), leaf(step, name), err_msg=name)
            for name in ("observation/angle", "observation/rough"):
                assert leaf(found, name).dtype == leaf(step, name).dtype
                np.testing.assert_array_equal(leaf(found, name), leaf(step, name), err_msg=name)
            if number < len(before) - 1:  # what else the last step has is filler
                for name in ("action", "reward", "discount", "label", "instruction"):
                    np.testing.assert_array_equal(found[name], step[name], err_msg=name)


def every(path: Path) -> list[Trajectory]:
    source, _ = open_source(path, None)
    return [trajectory for shard in source.shards() for trajectory in read(source, shard)]


def check_steps(steps: list[Mapping[str, Any]], trajectory: Trajectory, dataset: Dataset) -> None:
    """Every array of an episode, as TensorFlow Datasets gives it."""
    count, last = trajectory.steps, steps[-1]
    assert len(steps) == count + 1
    assert [bool(step["is_first"]) for step in steps] == [True, *[False] * count]
    assert [bool(step["is_last"]) for step in steps] == [*[False] * count, True]
    terminated = bool(trajectory["terminated"][-1])
    assert bool(last["is_terminal"]) == terminated
    assert [float(step["discount"]) for step in steps] == [*[1.0] * (count - 1), float(not terminated), 0.0]
    for name, field in dataset.schema.fields.items():
        if name not in ("terminated", "truncated"):
            rows = steps if field.role == Role.OBSERVATION else steps[:-1]
            found = np.stack([leaf(step, name) for step in rows])
            wanted = trajectory[name]
            if field.is_text:
                found = np.array([text.decode() for text in found.flat], object).reshape(wanted.shape)
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found.reshape(wanted.shape), wanted, err_msg=name)


def leaf(step: Mapping[str, Any], name: str) -> Any:
    found: Any = step
    for part in name.split("/"):
        found = found[part]
    return found
