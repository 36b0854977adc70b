"""What rlx writes for Minari, by rlx's reader and by Minari's own."""

import json
from pathlib import Path
from typing import Any, ClassVar

import minari
import numpy as np
import pytest

from rlx.errors import ExportError
from rlx.export.minari import _environment
from rlx.export.pictures import channels_first
from rlx.pipeline.export import export
from rlx.progress import Silent
from rlx.schema import Role
from tests.contracts.dataset_exporter import SAMPLES, Arrays, DatasetExporterContract, whole_dataset
from tests.contracts.source import Trajectory
from tests.minari_files import datasets_at, read_dataset, record_cart_pole

RESHAPED = {
    "pictures": ["observation as [84, 84]: it becomes [1, 84, 84]"],
    "colour pictures": ["observation as [40, 36, 3]: it becomes [3, 40, 36]"],
    "dict observations": ["observation/camera as [40, 36, 3]: it becomes [3, 40, 36]"],
}


class TestMinari(DatasetExporterContract):
    format = "minari"
    name = "out-v0"
    lost: ClassVar = {
        **RESHAPED,
        "extra fields": ["the field logits"],
        "finals not recorded": ["that the final observation of 5 of 5 trajectories was not recorded: it is zeros"],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return {name: as_written(sample, name, rows) for name, rows in arrays.items() if name != "logits"}

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002  (every episode has one)
        return True


def as_written(sample: str, name: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rows of a field as Minari gets them."""
    return channels_first(SAMPLES[sample][name]).arrange(rows)


def flat(name: str, values: Any) -> Arrays:
    if isinstance(values, dict):
        return {path: rows for key, below in values.items() for path, rows in flat(f"{name}/{key}", below).items()}
    return {name: values}


@pytest.mark.parametrize("sample", SAMPLES)
def test_minari_reads_every_value(sample: str, tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", sample)
    export(dataset.path, tmp_path / "root/out-v0", "minari", progress=Silent())
    episodes = read_dataset(tmp_path / "root", "out-v0")
    table = dataset.trajectories
    assert [len(episode.rewards) for episode in episodes] == table.length.tolist()
    stored = {name: np.concatenate([block.data[name] for block in dataset.blocks()]) for name in dataset.schema}
    for number, episode in enumerate(episodes):
        start, length = int(table.start[number]), int(table.length[number])
        found = flat("observation", episode.observations) | flat("action", episode.actions)
        found |= flat("info", episode.infos or {})
        found |= {"reward": episode.rewards, "terminated": episode.terminations, "truncated": episode.truncations}
        assert set(found) == set(dataset.schema) - {"logits"}
        for name, rows in found.items():
            is_observation = dataset.schema[name].role == Role.OBSERVATION
            first = start + number * is_observation
            expected = as_written(sample, name, stored[name][first : first + length + is_observation])
            assert (rows.dtype, rows.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_array_equal(rows, expected, err_msg=name)


@pytest.mark.parametrize("sample", SAMPLES)
def test_minari_knows_the_spaces(sample: str, tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", sample)
    export(dataset.path, tmp_path / "root/out-v0", "minari", progress=Silent())
    with datasets_at(tmp_path / "root"):
        opened = minari.load_dataset("out-v0")
        episode = opened[0]
        assert "out-v0" in minari.list_local_datasets()
    for space, rows in ((opened.observation_space, episode.observations), (opened.action_space, episode.actions)):
        assert space.contains(first_row(rows)), space
    if hasattr(opened.storage, "jpeg_encoding"):  # from 0.5.4 on
        assert opened.storage.jpeg_encoding is False
        assert not minari.dataset.minari_storage.is_image_space(opened.observation_space)


def first_row(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: first_row(below) for key, below in values.items()}
    # Of a row of integers, not of the array, a number is what a Discrete space takes; a Box takes arrays alone.
    return values[0] if values[0].shape or values.dtype == np.int64 else np.array(values[0])


def test_namespaces_are_those_of_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    dataset = whole_dataset(tmp_path / "data", "vectors")
    export(dataset.path, tmp_path / "root/some/deep/out-v3", "minari", progress=Silent())
    assert list(minari.list_local_datasets()) == ["some/deep/out-v3"]
    assert minari.namespace.list_local_namespaces() == ["some", "some/deep"]
    assert minari.load_dataset("some/deep/out-v3").total_steps == len(dataset)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    export(dataset.path, tmp_path / "root/some/deep/other-v3", "minari", progress=Silent())
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    assert list(minari.list_local_datasets()) == ["some/deep/other-v3", "some/deep/out-v3"]


@pytest.mark.parametrize("name", ["out", "out-v", "out.b-v1", "out v1-v0"])
def test_a_name_that_minari_cannot_take(name: str, tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "vectors")
    with pytest.raises(ExportError, match="wants a name that ends in a version"):
        export(dataset.path, tmp_path / "new" / name, "minari", progress=Silent())
    assert not (tmp_path / "new").exists()


def test_minari_to_minari_is_the_same(tmp_path: Path) -> None:
    """Of a dataset that Minari wrote comes one that Minari finds no difference in, environment and all."""
    episodes = record_cart_pole(tmp_path / "root", "cartpole/random-v0")
    export(tmp_path / "root/cartpole/random-v0", tmp_path / "root/cartpole/again-v0", "minari", progress=Silent())
    with datasets_at(tmp_path / "root"):
        one, other = (minari.load_dataset(f"cartpole/{name}-v0") for name in ("random", "again"))
        assert one.observation_space.shape == other.observation_space.shape
        assert one.action_space == other.action_space
        assert one.env_spec.to_json() == other.env_spec.to_json()
        assert other.recover_environment().spec.max_episode_steps == 20
    for before, after in zip(episodes, read_dataset(tmp_path / "root", "cartpole/again-v0"), strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            mine, theirs = getattr(after, name), getattr(before, name)
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("notes", "spec"),
    [
        ({"environment": "CartPole-v1"}, "CartPole-v1"),
        ({"environment": "CartPole-v1", "environment_settings": {"frame_skip": 4}}, None),
        ({"environment": "Nowhere-v1"}, None),
        ({"environment": "no id"}, None),
        ({"environment": 3}, None),
        ({}, None),
    ],
)
def test_the_environment_where_it_is_known(notes: dict[str, Any], spec: str | None) -> None:
    found = _environment(notes)
    assert (json.loads(found["env_spec"])["id"] if found else None) == spec
