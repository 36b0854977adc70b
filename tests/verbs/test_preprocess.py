"""Datasets through recipes: the same bytes whoever does it, resumed, refused, and never half done."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.block import Block
from rlx.errors import DatasetExistsError, PartialError, TransformError
from rlx.manifest import Manifest
from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.store.layout import SHARDS
from rlx.store.verification import verify
from rlx.transform.code import Code
from rlx.transform.functions import Function, Per
from rlx.transform.images import Resize
from rlx.transform.registry import parse
from rlx.verbs import transformed
from rlx.verbs.recipe import Recipe
from rlx.verbs.report import Report
from tests.factories import LARGE, make_block, write_dataset
from tests.transform import functions

HALF = Resize(10, 15)
LENGTHS = (3, 5, 1, 7, 2, 6, 6, 4)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards of eight trajectories, which are cut into shards of ten steps."""
    monkeypatch.setattr(transformed, "_MIN_STEPS", 10)
    path = tmp_path / "source"
    shards = [[make_block(LENGTHS, schema=LARGE)], [make_block(LENGTHS, first_episode=8, schema=LARGE)]]
    write_dataset(path, shards, schema=LARGE)
    return path


def run(source: Path, destination: Path, *transforms: Any, jobs: int = 1, **options: Any) -> Report:
    report = rlx.preprocess(source, destination, transform=transforms, num_workers=jobs, **options)
    assert isinstance(report, Report)
    return report


def named(name: str, per: Per = Per.TRAJECTORY) -> Function:
    return Function(Code.named(f"tests.transform.functions:{name}"), per)


def content(path: Path) -> dict[str, bytes]:
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def all_steps(path: Path) -> Block:
    (block,) = [*_joined(Dataset(path))]
    return block


def _joined(dataset: Dataset) -> list[Block]:
    from tests.factories import join  # noqa: PLC0415

    return [join(list(dataset.blocks()))]


@pytest.mark.parametrize(("transforms", "jobs"), [((parse("filter:length > 2"), HALF), 3), ((named("noisy"),), 2)])
def test_the_same_bytes_by_any_number_of_workers(source: Path, tmp_path: Path, transforms: Any, jobs: int) -> None:
    run(source, tmp_path / "one", *transforms)
    run(source, tmp_path / "more", *transforms, jobs=jobs)
    assert content(tmp_path / "one") == content(tmp_path / "more")


@pytest.mark.usefixtures("two_workers_of_ray")
def test_the_same_bytes_by_workers_of_ray(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "one", named("noisy"))
    run(source, tmp_path / "ray", named("noisy"), jobs=2, engine="ray")
    assert content(tmp_path / "one") == content(tmp_path / "ray")
    with pytest.raises(TransformError, match="fails on trajectory 3: KeyError: 'three'"):
        run(source, tmp_path / "fails", named("fails_on_three"), jobs=2, engine="ray")


def test_what_is_written(source: Path, tmp_path: Path) -> None:
    before = content(source)
    report = run(source, tmp_path / "made", HALF)
    made = Dataset(tmp_path / "made", verify=True)
    assert made.schema["observation"].shape == (10, 15)
    assert (report.steps, report.trajectories, report.shards) == (68, 16, 8)
    assert made.trajectories.length.tolist() == [*LENGTHS, *LENGTHS]
    assert made.trajectories.episode.tolist() == list(range(16))
    found, expected = all_steps(tmp_path / "made"), all_steps(source)
    assert found.data["observation"][:, 0, 0].tolist() == expected.data["observation"][:, 0, 0].tolist()
    assert found.data["action"].tolist() == expected.data["action"].tolist()
    assert content(source) == before
    made_by = made.manifest.lineage[-1]
    assert made_by["recipe"] == {"transforms": ["resize:height=10,width=15"]}
    assert made_by["parents"][0]["id"] == "Test/1"


def test_no_more_shards_than_there_are_or_keep_workers_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed, "_MIN_STEPS", 2)
    source = tmp_path / "source"
    write_dataset(source, [[make_block([2] * 100)], [], [make_block([3], first_episode=100)]])
    dataset = Dataset(source)
    found = transformed.shard_inputs(dataset, np.arange(101))
    assert [shard_input.place for shard_input in found] == [0] * 16 + [1]
    assert np.concatenate([shard_input.trajectories for shard_input in found]).tolist() == list(range(101))
    assert {shard_input.steps for shard_input in found[:-1]} == {12, 14}
    few = transformed.shard_inputs(dataset, np.array([0, 7, 100]), steps=6)
    assert [len(shard_input.trajectories) for shard_input in few] == [1, 1, 1]
    few = transformed.shard_inputs(dataset, np.arange(101), steps=5)
    assert [shard_input.steps for shard_input in few] == [2, 2, 1]
    assert transformed.shard_inputs(dataset, np.arange(0)) == []


def test_dropped_trajectories_are_not_read(source: Path, tmp_path: Path) -> None:
    dataset = Dataset(source)
    report = run(source, tmp_path / "made", parse("filter:length > 5"), parse("subsample:every=2"))
    assert report.trajectories == 3
    made = Dataset(tmp_path / "made")
    assert made.trajectories.episode.tolist() == [3, 6, 13]
    recipe = Recipe((parse("filter:length > 5"), parse("subsample:every=2")))
    blocks = [
        block
        for shard_input in recipe.applied(dataset).inputs
        for block in transformed.read_input(dataset, shard_input)
    ]
    assert sum(block.steps for block in blocks) == report.steps == 19


def test_trajectories_of_some_shards(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "made", parse("subsample:every=2"), parse("filter:shard == 1 and length > 1"))
    assert Dataset(tmp_path / "made").trajectories.episode.tolist() == [8, 12, 14]


def test_only_the_first_steps(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "made", HALF, steps=20)
    made = Dataset(tmp_path / "made")
    assert report.steps == 20
    assert made.trajectories.length.tolist() == [3, 5, 1, 7, 2, 2]
    assert not made.trajectories.terminated[-1]
    assert made.trajectories.final_recorded.all()
    assert made.manifest.lineage[-1]["recipe"]["steps"] == 20


def test_steps_that_a_function_leaves_out_are_counted(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "made", named("without_every_third"))
    assert report.steps == sum(1 for index in range(68) if index % 3 != 2)
    assert sum(sum(shard.dropped.values()) for shard in Manifest.load(tmp_path / "made").shards) == 68 - report.steps
    assert verify(tmp_path / "made").ok
    assert Dataset(tmp_path / "made")[:]["action"].shape == (report.steps,)


def test_nothing_is_left(source: Path, tmp_path: Path) -> None:
    report = run(source, tmp_path / "made", parse("filter:length > 100"), HALF)
    assert (report.steps, report.shards) == (0, 0)
    assert Dataset(tmp_path / "made").schema["observation"].shape == (10, 15)
    with pytest.raises(TransformError, match="no step is left to apply it to"):
        run(source, tmp_path / "other", parse("filter:length > 100"), named("same"))
    assert not (tmp_path / "other").exists()


def test_a_failure_leaves_finished_shards_and_the_next_run_goes_on(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "made"
    with pytest.raises(TransformError, match=r"functions:fails_on_three fails on trajectory 3: KeyError: 'three'"):
        run(source, destination, named("fails_on_three"))
    assert Manifest.load(destination).listed == {"00000"}
    whole = run(source, tmp_path / "whole", HALF)
    listed = Manifest.load(tmp_path / "whole")
    half = Manifest.load(tmp_path / "whole").without_shards({"00003", "00005"})
    half.save(tmp_path / "whole")
    again = run(source, tmp_path / "whole", HALF)
    assert again.skipped_shards == whole.shards - 2
    assert Manifest.load(tmp_path / "whole") == listed


def test_a_worker_that_dies_is_told_with_what_it_had_at_hand(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "made"
    with pytest.raises(PartialError, match=r"a worker process died; .*unfinished trajectories are") as caught:
        run(source, destination, named("dies_on_three"), jobs=2)
    assert "2 to 4" in str(caught.value)
    assert caught.value.hint == "run the same command again; if memory was short, with `num_workers` 1"
    done = run(source, tmp_path / "whole", named("same"))
    assert done.steps == 68
    assert not list((tmp_path / "whole").rglob("at"))


def test_notes_of_workers_are_whole_or_gone(tmp_path: Path) -> None:
    note = tmp_path / SHARDS / "00000.partial" / transformed.IN_PROGRESS
    note.parent.mkdir(parents=True)
    (tmp_path / SHARDS / "00001.partial").mkdir()
    (tmp_path / SHARDS / "00001.partial" / transformed.IN_PROGRESS).symlink_to("gone")  # listed, then removed
    watch = transformed.StepWatch(Silent(), note)
    watch.read(make_block((3, 2), schema=LARGE))
    with note.open() as opened:
        watch.read(make_block((4,), first_episode=2, schema=LARGE))
        assert opened.read() == "0 1"  # whoever reads it meanwhile has all of it
    assert transformed.unfinished(tmp_path) == "; unfinished trajectories are 0 to 2"


@pytest.mark.parametrize(
    ("transforms", "steps", "message"),
    [
        ((Resize(5, 5),), None, r"its transforms is \['resize:height=10,width=15'\], expected \['resize:height=5"),
        ((HALF,), 5, "its steps is None, expected 5"),
    ],
)
def test_another_recipe_is_refused(source: Path, tmp_path: Path, transforms: Any, steps: Any, message: str) -> None:
    destination = tmp_path / "made"
    run(source, destination, HALF)
    before = content(destination)
    with pytest.raises(DatasetExistsError, match=message) as caught:
        run(source, destination, *transforms, steps=steps)
    assert "`overwrite`" in str(caught.value.hint)
    assert content(destination) == before
    run(source, destination, *transforms, steps=steps, overwrite=True)
    assert Dataset(destination).manifest.lineage[-1]["recipe"]["transforms"][0] == f"resize:{_size(transforms[0])}"


def _size(resize: Resize) -> str:
    return f"height={resize.height},width={resize.width}"


def test_another_source_or_function_is_refused(source: Path, tmp_path: Path) -> None:
    code = tmp_path / "change.py"
    code.write_text("def change(steps):\n    return steps\n")

    def apply() -> Report:
        return run(source, tmp_path / "made", Function(Code.named(f"{code}:change")))

    apply()
    assert apply().skipped_shards == 8
    code.write_text("def change(steps):\n    return steps[:]\n")
    with pytest.raises(DatasetExistsError, match="was created in another way: its code is"):
        apply()
    code.write_text("def change(steps):\n    return steps\n")
    apply()
    listed = Manifest.load(source)
    replace(listed, notes={"other": "notes"}).save(source)
    with pytest.raises(DatasetExistsError, match="was created in another way: its source is"):
        apply()


def test_a_dataset_of_another_origin_is_refused(source: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "made", [[make_block(LENGTHS, schema=LARGE)]], schema=LARGE)
    with pytest.raises(DatasetExistsError, match="was created in another way"):
        run(source, tmp_path / "made", parse("clip_reward"))


@pytest.mark.parametrize("place", ["inside", "above", "itself", "foreign"])
def test_destinations_that_are_refused(source: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/letter.txt").write_text("dear")
    before = content(source)
    where = {"inside": source / "made", "above": tmp_path, "itself": source, "foreign": tmp_path / "foreign"}[place]
    with pytest.raises(DatasetExistsError):
        run(source, where, HALF, overwrite=True)
    assert content(source) == before
    assert (tmp_path / "foreign/letter.txt").read_text() == "dear"


def test_selections_come_first() -> None:
    with pytest.raises(TransformError, match="filter:length > 3 selects trajectories of the source"):
        Recipe((HALF, parse("filter:length > 3")))


def test_a_recipe_that_does_not_suit_leaves_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TransformError, match="expected uint8, uint16 or float32"):
        run(source, tmp_path / "made", parse("grayscale"))
    assert not (tmp_path / "made").exists()


def test_a_preview(source: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    shown = rlx.preprocess(source, transform=HALF, dry_run=True)
    assert (shown.steps_read, shown.steps, shown.shards) == (68, 68, 8)
    assert shown.first["observation"].shape == (10, 15)
    assert shown.schema["observation"].shape == (10, 15)
    assert shown.bytes > 0
    assert sorted(os.listdir(tmp_path)) == before
    assert rlx.preprocess(source, transform="filter:length > 99", dry_run=True).first == {}


def test_progress_comes_from_what_is_read(source: Path, tmp_path: Path) -> None:
    class Told(Silent):
        def __init__(self) -> None:
            self.expected: dict[str, int] = {}
            self.done: dict[str, int] = {}

        def expect(self, unit: str, amount: int) -> None:
            self.expected[unit] = self.expected.get(unit, 0) + amount

        def advance(self, unit: str, amount: int) -> None:
            self.done[unit] = self.done.get(unit, 0) + amount

    told = Told()
    report = run(source, tmp_path / "made", named("without_every_third"), progress=told)
    assert told.expected["steps"] == told.done["steps"] == 68
    assert told.expected["bytes read"] == told.done["bytes read"]
    assert told.done["bytes written"] == report.bytes
    assert told.done["shards"] == 8


def test_functions_are_importable() -> None:
    assert Code.of(functions.same).sha256 == Code.named("tests.transform.functions:same").sha256
