"""What rlx writes for Minari, by rlx's reader and by Minari's own."""

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces

import rlx
from rlx.errors import ExportError
from rlx.formats.common.pictures import channels_first
from rlx.formats.minari.writer import _environment
from rlx.progress import Silent
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.testing.dataset_exporter import (
    RICH,
    SAMPLES,
    Arrays,
    DatasetExporterContract,
    random_block,
    whole_dataset,
)
from rlx.testing.source import Trajectory, read
from rlx.verbs.arguments import Options
from rlx.verbs.convert import convert_files
from rlx.verbs.export import export
from rlx.verbs.inputs import Fetched, open_source
from tests.factories import write_dataset
from tests.minari_files import datasets_at, read_dataset, record_cart_pole
from tests.minari_files import write_dataset as write_minari

RESHAPED = {
    "pictures": ["observation as [84, 84]: it becomes [1, 84, 84]"],
    "colour pictures": ["observation as [40, 36, 3]: it becomes [3, 40, 36]"],
    "dict observations": ["observation/camera as [40, 36, 3]: it becomes [3, 40, 36]"],
}


class TestMinari(DatasetExporterContract):
    format = "minari"
    name = "out-v0"
    rich = True
    lost: ClassVar = {
        **RESHAPED,
        "extra fields": ["that logits have no values for final observations: zeros are written"],
        "finals not recorded": ["that the final observation of 5 of 5 trajectories was not recorded: it is zeros"],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return {name: as_written(sample, name, rows) for name, rows in arrays.items()}

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002  (every episode has one)
        return True


def as_written(sample: str, name: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The rows of a field as Minari gets them."""
    return channels_first({**SAMPLES, **RICH}[sample][name]).arrange(rows)


def flat(name: str, values: Any) -> Arrays:
    if isinstance(values, dict):
        return {path: rows for key, below in values.items() for path, rows in flat(f"{name}/{key}", below).items()}
    if isinstance(values, list) or values.dtype == object:  # of Text spaces, and of infos as they lie in the file
        values = np.array([text.decode() if isinstance(text, bytes) else text for text in values], object)
    return {name: values}


@pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
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
        assert len(found) == len(dataset.schema)
        for name, field in dataset.schema.fields.items():
            is_observation = field.role == Role.OBSERVATION
            first = start + number * is_observation
            expected = as_written(sample, name, stored[name][first : first + length + is_observation])
            rows = found[name if name in found else f"info/{name}"]
            if len(rows) > len(expected):  # of infos there is one at the reset too
                rows = rows[1:] if field.role == Role.NEXT else rows[:-1]
            assert (rows.dtype, rows.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_array_equal(rows, expected, err_msg=name)


def test_rows_without_values_are_kept(tmp_path: Path) -> None:
    schema = Schema.of(observation=("float32", (1,)), action=("int64", ()))
    none, seen = Field("float32", (2, 0), Role.STEP), Field("float32", (0,), Role.OBSERVATION)
    schema = Schema({**schema.fields, "none": none, "unseen": seen})
    block = random_block(schema, (2, 3), seed=0, ends="tx")
    write_dataset(tmp_path / "data", [[block]], schema=schema)
    export(tmp_path / "data", tmp_path / "root/out-v0", "minari", progress=Silent())
    for episode, length in zip(read_dataset(tmp_path / "root", "out-v0"), (2, 3), strict=True):
        assert episode.infos["none"].shape[1:] == (2, 0)
        assert len(episode.actions) == length
    source = Fetched(tmp_path / "root/out-v0")
    convert_files(source, tmp_path / "back", Options(jobs=1), source_format=None, progress=Silent())
    found = Dataset(tmp_path / "back").schema
    assert (found["none"].shape, found["unseen"].shape) == ((2, 0), (0,))


@pytest.mark.parametrize("sample", [*SAMPLES, "texts"])
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
    if isinstance(values, list):
        return values[0]
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


def test_without_gymnasium_no_environment_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert _environment({"environment": "CartPole-v1"}) == {}


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (spaces.MultiBinary(4), spaces.MultiBinary([2, 3])),
        (spaces.MultiBinary([4]), spaces.MultiDiscrete([2, 3])),
        (spaces.Dict({"mission": spaces.Text(9, charset="ab "), "flags": spaces.MultiBinary(3)}), spaces.Text(4)),
        (spaces.Tuple((spaces.Discrete(5, start=2), spaces.Box(-1, 1, (2,)))), spaces.Discrete(3)),
    ],
)
def test_what_minari_wrote_comes_back_equal(
    observation: gymnasium.Space[Any], action: gymnasium.Space[Any], tmp_path: Path
) -> None:
    """Spaces, values, infos, texts and what is said of the dataset, by Minari's own reader, through a dataset."""
    write_minari(tmp_path / "root", "one-v0", observation=observation, action=action, author="Ada", algorithm_name="rl")
    source = tmp_path / "root/one-v0"
    rlx.convert(source, tmp_path / "data", from_="minari", jobs=1)
    report = export(tmp_path / "data", tmp_path / "root/two-v0", "minari", progress=Silent())
    assert report.losses == []
    with datasets_at(tmp_path / "root"):
        one, other = (minari.load_dataset(f"{name}-v0") for name in ("one", "two"))
        assert (one.observation_space, one.action_space) == (other.observation_space, other.action_space)
        for name in ("author", "algorithm_name", "total_steps", "total_episodes"):
            assert one.storage.metadata[name] == other.storage.metadata[name]
    pairs = zip(*(read_dataset(tmp_path / "root", f"{name}-v0") for name in ("one", "two")), strict=True)
    for before, after in pairs:
        for name in ("observations", "actions", "infos", "rewards", "terminations", "truncations"):
            assert_same(getattr(before, name), getattr(after, name), name)


def assert_same(before: Any, after: Any, name: str) -> None:
    assert type(before) is type(after), name
    if isinstance(before, dict):
        assert list(before) == list(after), name
        for key in before:
            assert_same(before[key], after[key], f"{name}/{key}")
    elif isinstance(before, tuple):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            assert_same(one, other, f"{name}/{number}")
    elif isinstance(before, list):
        assert before == after, name
    else:
        assert (before.dtype, before.shape) == (after.dtype, after.shape), name
        np.testing.assert_array_equal(before, after, err_msg=name)


def test_a_cut_episode_stays_one(tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "seams")
    export(dataset.path, tmp_path / "root/out-v0", "minari", progress=Silent())
    source, _ = open_source(tmp_path / "root/out-v0", None)
    assert [one.cut for one in read(source, 0)] == dataset.trajectories.cut.tolist()


def test_a_text_with_a_nul_is_refused(tmp_path: Path) -> None:
    chosen = RICH["texts"]
    block = random_block(chosen)
    block.data["task"][3] = "a\0b"
    dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
    with pytest.raises(ExportError, match="cannot hold a text with a NUL in it, found one in /episode_0/infos/task"):
        export(dataset.path, tmp_path / "new/out-v0", "minari", progress=Silent())
    assert not (tmp_path / "new").exists()
