"""What every DatasetExporter keeps to: a suite that an exporter's own test file subclasses.

A subclass says what the format is called, which samples it refuses, which losses it names, and what of a trajectory
comes back when rlx reads the export again::

    class TestMyFormat(DatasetExporterContract):
        format = "myformat"
        refused = {"dict actions": "action"}

        def expected(self, trajectory: Trajectory) -> Arrays | None: ...
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import DatasetExistsError, DiskFullError, ExportError, FileAccessError
from rlx.formats.registry import formats
from rlx.manifest import Manifest
from rlx.progress import Silent
from rlx.schema import TEXT, Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.testing.exporter import contents
from rlx.testing.factories import cut, write_dataset
from rlx.testing.source import Trajectory, read
from rlx.verbs.export import ExportReport, SelectedShards, export
from rlx.verbs.inputs import open_source

Arrays = dict[str, NDArray[Any]]
_FLAGS = {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
_VECTOR = {"observation": Field("float32", (3,), Role.OBSERVATION)}
_DISCRETE = {"action": Field("int64", (), Role.STEP, {"type": "Discrete", "n": 6})}
_BOX = {"action": Field("float32", (2,), Role.STEP, {"type": "Box", "low": -1.0, "high": 1.0})}
_REWARD = {"reward": Field("float32", (), Role.NEXT)}


def schema(*parts: Mapping[str, Field]) -> Schema:
    """The schema of these fields, a reward and the flags."""
    fields = {name: field for part in parts for name, field in part.items()}
    return Schema({**fields, **({} if "reward" in fields else _REWARD), **_FLAGS})


SAMPLES: Mapping[str, Schema] = {
    "vectors": schema(_VECTOR, _BOX),
    "discrete actions": schema(_VECTOR, _DISCRETE),
    "pictures": schema({"observation": Field("uint8", (84, 84), Role.OBSERVATION)}, _DISCRETE),
    "colour pictures": schema({"observation": Field("uint8", (40, 36, 3), Role.OBSERVATION)}, _BOX),
    "dict observations": schema(
        {
            "observation/camera": Field("uint8", (40, 36, 3), Role.OBSERVATION),
            "observation/arm/angle": Field("float64", (2,), Role.OBSERVATION),
        },
        _BOX,
    ),
    "multi-discrete actions": schema(
        _VECTOR, {"action": Field("int64", (2,), Role.STEP, {"type": "MultiDiscrete", "nvec": [3, 4]})}
    ),
    "dict actions": schema(_VECTOR, {f"action/{name}": Field("float32", (1,), Role.STEP) for name in ("move", "turn")}),
    "wide rewards": schema(_VECTOR, _BOX, {"reward": Field("float64", (), Role.NEXT)}),
    "scalar observations": schema({"observation": Field("int32", (), Role.OBSERVATION)}, _BOX),
    "infos": schema(_VECTOR, _BOX, {"info/score": Field("float64", (), Role.OBSERVATION)}),
    "extra fields": schema(_VECTOR, _BOX, {"logits": Field("float32", (6,), Role.STEP)}),
    "seams": schema(_VECTOR, _BOX),
    "finals not recorded": schema(_VECTOR, _BOX),
}
# What formats that have a place for any field hold to the last value: texts, and what policies and environments say.
RICH: Mapping[str, Schema] = {
    "texts": schema(
        {
            "observation/mission": Field("string", (), Role.OBSERVATION),
            "observation/place": Field("float32", (3,), Role.OBSERVATION),
            "task": Field("string", (), Role.STEP),
            "info/said": Field("string", (), Role.NEXT),
        },
        _BOX,
    ),
    "policy outputs": schema(
        _VECTOR,
        _DISCRETE,
        {
            "action_log_prob": Field("float32", (), Role.STEP),
            "params/loc": Field("float64", (2,), Role.STEP),
            "is_init": Field("bool", (), Role.STEP),
            "info/lives": Field("int32", (), Role.NEXT),
            "info/deep/ram": Field("uint8", (4,), Role.NEXT),
            "value": Field("float16", (1,), Role.NEXT),
            "h": Field("float32", (2,), Role.OBSERVATION),
        },
    ),
}
# What formats hold or refuse, or name as lost.
ODD: Mapping[str, Schema] = {
    "observations without values": schema({"observation": Field("float32", (0,), Role.OBSERVATION)}, _BOX),
    "infos without values": schema(_VECTOR, _BOX, {"info/said": Field("int64", (2, 0), Role.NEXT)}),
    "texts in rows": schema(_VECTOR, _BOX, {"info/said": Field(TEXT, (2,), Role.NEXT)}),
    "observations of texts in rows": schema({"observation": Field(TEXT, (2, 1), Role.OBSERVATION)}, _BOX),
    "actions of text": schema(_VECTOR, {"action": Field(TEXT, (), Role.STEP)}),
    "names with points": schema({"observation/arm.x": Field("float32", (3,), Role.OBSERVATION)}, _BOX),
    "pictures beside observations": schema(
        _VECTOR, _BOX, {"info/frame": Field("uint8", (3, 16, 16), Role.OBSERVATION)}
    ),
}
_WORDS = ("", "go left", "pick \u00fcp the ball", "wait")
# How trajectories end: see random_block.
_ENDS = {"seams": "tu", "finals not recorded": "T"}


def random_block(chosen: Schema, lengths: tuple[int, ...] = (4, 1, 7), *, seed: int = 0, ends: str = "tx") -> Block:
    """Trajectories of random steps, numbered from 0, which end in turn as the letters say.

    t is terminated, x truncated, u neither; with T the final observation was not recorded either.
    """
    random = np.random.default_rng(seed)
    steps, count = sum(lengths), len(lengths)
    last = np.cumsum(lengths) - 1
    data: Arrays = {}
    for name, field in chosen.fields.items():
        rows = steps + count if field.role == Role.OBSERVATION else steps
        data[name] = _values(random, field, rows)
    if chosen.fields.get("is_init") == Field("bool", (), Role.STEP):
        data["is_init"] = np.isin(np.arange(steps), [0, *(last[:-1] + 1)])
    data["terminated"], data["truncated"] = np.zeros(steps, bool), np.zeros(steps, bool)
    kinds = np.array([ends[number % len(ends)] for number in range(count)])
    data["terminated"][last] = np.isin(kinds, ["t", "T"])
    data["truncated"][last] = kinds == "x"
    recorded = kinds != "T"
    finals = last + 1 + np.arange(count)
    for name in chosen.names(Role.OBSERVATION):
        data[name][finals[~recorded]] = 0
    return Block(data, np.array(lengths), np.arange(count), np.ones(count, bool), recorded)


def whole_dataset(path: Path, sample: str) -> Dataset:
    """A sample as a dataset of two shards, whose blocks end in the middle of trajectories."""
    for name, raw in _files_of(sample).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(raw)
    return Dataset(path)


@cache
def _files_of(sample: str) -> dict[str, bytes]:
    """The files of a sample's dataset: hundreds of tests begin with one, and to write it takes longer than to copy."""
    chosen, ends = {**SAMPLES, **RICH}[sample], _ENDS.get(sample, "tx")
    second = random_block(chosen, (2, 9), seed=1, ends=ends)
    shards = [cut(random_block(chosen, ends=ends), [2, 4]), cut(replace(second, episodes=second.episodes + 3), [5])]
    with TemporaryDirectory() as directory:
        return contents(write_dataset(Path(directory) / "data", shards, schema=chosen).path)


def _values(random: np.random.Generator, field: Field, rows: int) -> NDArray[Any]:
    shape = (rows, *field.shape)
    if field.is_text:
        return np.array(_WORDS, object)[random.integers(len(_WORDS), size=shape)]
    if field.dtype == "bool":
        return random.integers(2, size=shape).astype(bool)
    if field.dtype.startswith("float"):
        return random.uniform(-1, 1, shape).astype(field.dtype)
    high = min((field.space or {}).get("nvec", [(field.space or {}).get("n", 256)]))
    return random.integers(0, high, shape).astype(field.dtype)


@contextmanager
def small_disk(disk: Path) -> Iterator[Path]:
    """A disk of 512 kB; skips the test where it cannot be mounted."""
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class DatasetExporterContract:
    """The tests; see the module's docstring."""

    format: ClassVar[str]
    name: ClassVar[str] = "out"
    # What the error says of samples that the format cannot hold.
    refused: ClassVar[Mapping[str, str]] = {}
    # What is said to be lost of a sample, beside ``always``.
    lost: ClassVar[Mapping[str, list[str]]] = {}
    always: ClassVar[list[str]] = []
    # Whether it has a place for any field, of text too.
    rich: ClassVar[bool] = False
    # Whether the other project's library takes only paths of UTF-8.
    only_utf_8: ClassVar[bool] = False

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:  # noqa: ARG002
        """What comes back of a trajectory, whose last step is done then; none if it is nothing."""
        arrays = {name: trajectory[name] for name in trajectory.parts}
        arrays["truncated"][-1] |= not arrays["terminated"][-1]
        return arrays

    def expected_role(self, name: str, field: Field) -> Role:  # noqa: ARG002
        """The role that a field comes back with."""
        return field.role

    def keeps_final(self, trajectory: Trajectory) -> bool:
        """Whether the final observation of what comes back counts as recorded."""
        return trajectory.final_recorded

    def content(self, path: Path) -> Any:
        """What is the same for the same dataset: the bytes of all files."""
        return contents(path)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "new/place" / self.name

    def export(self, dataset: Path, path: Path, **how: Any) -> ExportReport:
        return export(dataset, path, self.format, progress=Silent(), **how)

    def source_trajectories(self, dataset: Dataset) -> list[Trajectory]:
        source, _ = open_source(dataset.path, None)
        return [trajectory for shard in source.shards() for trajectory in read(source, shard)]

    def held(self) -> list[str]:
        return [sample for sample in SAMPLES if sample not in self.refused]

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_a_round_trip(self, sample: str, tmp_path: Path, path: Path) -> None:
        if sample in RICH and not self.rich:
            return
        dataset = whole_dataset(tmp_path / "data", sample)
        if sample in self.refused:
            with pytest.raises(ExportError, match=self.refused[sample]):
                self.export(dataset.path, path)
            assert not path.parent.exists()
            return
        report = self.export(dataset.path, path)
        assert (report.steps, report.trajectories) == (len(dataset), len(dataset.trajectories))
        assert report.bytes == sum(map(len, contents(path).values()))
        source, _ = open_source(path, None)
        found = [trajectory for shard in source.shards() for trajectory in read(source, shard)]
        pairs = [(self.expected(one, sample), self.keeps_final(one)) for one in self.source_trajectories(dataset)]
        wanted = [(arrays, is_recorded) for arrays, is_recorded in pairs if arrays is not None]
        assert [trajectory.final_recorded for trajectory in found] == [is_recorded for _, is_recorded in wanted]
        for trajectory, (arrays, _) in zip(found, wanted, strict=True):
            assert set(trajectory.parts) == set(arrays)
            assert {name: source.schema[name].role for name in arrays if name in dataset.schema} == {
                name: self.expected_role(name, dataset.schema[name]) for name in arrays if name in dataset.schema
            }
            for name, rows in arrays.items():
                assert (trajectory[name].dtype, trajectory[name].shape) == (rows.dtype, rows.shape), name
                np.testing.assert_array_equal(trajectory[name], rows, err_msg=name)
        for name in set(source.schema) & set(dataset.schema):
            field, before = source.schema[name], dataset.schema[name]
            if before.space is not None and (field.dtype, field.shape) == (before.dtype, before.shape):
                # Minari may know more of it.
                assert {**(field.space or {}), **before.space} == field.space, name

    @pytest.mark.parametrize("sample", SAMPLES)
    def test_losses_are_said_and_recorded(
        self, sample: str, tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        if sample in self.refused:
            return
        report = self.export(whole_dataset(tmp_path / "data", sample).path, path)
        assert list(report.losses) == [*self.always, *self.lost.get(sample, [])]
        title = formats()[self.format].datasets.title
        assert [record.getMessage() for record in caplog.records] == [
            f"{title} cannot hold {loss}" for loss in report.losses
        ]
        assert open_source(path, None)[0].notes.get("lost", []) == list(report.losses)

    def test_steps_without_actions_are_refused(self, tmp_path: Path, path: Path) -> None:
        """As they are of files: what rlx writes it can read."""
        chosen = schema(_VECTOR)
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
        with pytest.raises(ExportError, match="holds an action per step, found only observation, reward, terminated"):
            self.export(dataset.path, path)
        assert not path.parent.exists()

    @pytest.mark.parametrize(("name", "other"), [("observation", "pixels"), ("action", "agents/action")])
    def test_fields_of_another_name_come_back_or_are_refused(
        self, name: str, other: str, tmp_path: Path, path: Path
    ) -> None:
        fields = {**_VECTOR, **_BOX}
        chosen = schema({other if known == name else known: field for known, field in fields.items()})
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
        try:
            self.export(dataset.path, path)
        except ExportError as exc:
            assert f"requires a field called {name}, found {other}" in str(exc)  # noqa: PT017
            assert exc.hint == f"rlx preprocess SRC DST --transform rename:{other}={name}"  # noqa: PT017
            assert not path.parent.exists()
        else:
            assert other in open_source(path, None)[0].schema

    @pytest.mark.parametrize("odd", ODD)
    def test_what_is_odd_comes_back_or_is_refused_or_lost_by_name(self, odd: str, tmp_path: Path, path: Path) -> None:
        chosen = ODD[odd]
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
        names = set(chosen) - {"reward", "terminated", "truncated"}
        try:
            report = self.export(dataset.path, path)
        except ExportError as exc:
            assert any(name in str(exc) for name in names), str(exc)  # noqa: PT017
            assert not path.parent.exists()
            return
        said, source = " ".join(report.losses), open_source(path, None)[0]
        found = [trajectory for shard in source.shards() for trajectory in read(source, shard)]
        before = self.source_trajectories(dataset)
        for name in names:
            if name not in source.schema or source.schema[name].role != chosen[name].role:
                assert name in said
            elif name not in said and "final observation" not in said:
                for trajectory, was in zip(found, before, strict=True):
                    np.testing.assert_array_equal(trajectory[name], was[name], err_msg=name)

    def test_long_notes_come_back_or_are_lost_by_name(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        notes = {"card": "x" * 100_000}
        replace(Manifest.load(dataset.path), notes=notes).save(dataset.path)
        report = self.export(dataset.path, path)
        found = open_source(path, None)[0].notes
        assert found.get("card") == notes["card"] or "the notes of the source" in " ".join(report.losses)
        assert self.export(dataset.path, path).skipped_shards == report.shards

    def test_a_path_that_is_not_utf_8(self, tmp_path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        path = tmp_path / os.fsdecode(b"n\xff") / self.name
        if self.only_utf_8:
            with pytest.raises(FileAccessError, match="not UTF-8"):
                self.export(dataset.path, path)
            return
        self.export(dataset.path, path)
        source = open_source(path, None)[0]
        assert sum(one.steps for shard in source.shards() for one in read(source, shard)) > 0

    def test_the_same_dataset_gives_the_same_bytes(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        self.export(dataset.path, path)
        again = tmp_path / "other/place" / self.name
        self.export(dataset.path, again)
        assert self.content(path) == self.content(again)

    def test_some_shards(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        report = self.export(dataset.path, path, shards=[1])
        assert (report.steps, report.trajectories, report.shards) == (11, 2, 1)

    def test_what_is_there_stays_unless_it_is_to_be_replaced(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        self.export(dataset.path, path)
        before = self.content(path)
        with pytest.raises(DatasetExistsError, match="already exists") as caught:
            self.export(dataset.path, path, shards=[1])
        assert caught.value.hint == "`overwrite` replaces it"
        assert self.content(path) == before
        self.export(dataset.path, path, shards=[1], overwrite=True)
        assert self.content(path) != before
        self.export(dataset.path, path, overwrite=True)
        assert self.content(path) == before
        assert [entry.name for entry in path.parent.iterdir() if "." in entry.name and entry != path] == []

    def test_the_same_command_again_keeps_what_is_there(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        first = self.export(dataset.path, path)
        written = {file: file.stat().st_mtime_ns for file in [path, *path.rglob("*")]}
        again = self.export(dataset.path, path)
        assert (first.skipped_shards, again.skipped_shards) == (0, again.shards)
        assert replace(again, seconds=0, skipped_shards=0) == replace(first, seconds=0)
        assert {file: file.stat().st_mtime_ns for file in [path, *path.rglob("*")]} == written
        other = write_dataset(tmp_path / "other", [[random_block(dataset.schema)]], schema=dataset.schema)
        with pytest.raises(DatasetExistsError, match="already exists"):
            self.export(other.path, path)

    def test_the_same_file_exported_again(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        file = path.with_name("source-v0" if self.name.endswith("-v0") else f"source-{path.name}")
        self.export(dataset.path, file)
        assert self.export(file, path).skipped_shards == 0
        assert self.export(file, path).skipped_shards == 1
        self.export(dataset.path, file, shards=[1], overwrite=True)
        with pytest.raises(DatasetExistsError, match="already exists"):
            self.export(file, path)

    @pytest.mark.parametrize("is_directory", [False, True])
    def test_what_is_of_another_format_is_never_replaced(self, is_directory: bool, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        precious = path / "precious" if is_directory else path
        precious.parent.mkdir(parents=True)
        precious.write_text("mine")
        with pytest.raises(DatasetExistsError, match=self.name):
            self.export(dataset.path, path, overwrite=True)
        assert precious.read_text() == "mine"

    def test_a_failure_leaves_nothing(self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = whole_dataset(tmp_path / "data", self.held()[0])
        blocks = SelectedShards.blocks

        def broken(self: SelectedShards) -> Iterator[Block]:
            yield next(blocks(self))
            raise RuntimeError("no more")

        monkeypatch.setattr(SelectedShards, "blocks", broken)
        with pytest.raises(RuntimeError, match="no more"):
            self.export(dataset.path, path)
        assert not (tmp_path / "new").exists()

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        with small_disk(tmp_path / "disk") as disk:
            yield disk

    def test_a_full_disk_leaves_nothing(self, tmp_path: Path, small_disk: Path) -> None:
        chosen = SAMPLES[self.held()[0]]
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen, (60_000,))]], schema=chosen)
        with pytest.raises(DiskFullError, match="no room left"):
            self.export(dataset.path, small_disk / "place" / self.name)
        assert not list(small_disk.iterdir())
