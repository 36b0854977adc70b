from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import CorruptDatasetError, CorruptShardError, DatasetExistsError, ExportError
from rlx.formats.registry import formats
from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.store.trajectories import Trajectories
from rlx.testing.dataset_exporter import SAMPLES, random_block, whole_dataset
from rlx.testing.source import read
from rlx.verbs.export import SelectedShards, export, survey
from rlx.verbs.inputs import open_source
from tests.factories import cut, write_dataset
from tests.hdf5_files import changed, set_row, write_d4rl


class Counting:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.expected, self.done = 0, 0

    def expect(self, unit: str, amount: int) -> None:
        assert unit == "steps"
        self.expected += amount

    def advance(self, unit: str, amount: int) -> None:
        assert unit == "steps"
        self.done += amount


def same(one: Trajectories, other: Trajectories) -> bool:
    return all(
        a.dtype == b.dtype and np.allclose(a, b, rtol=1e-12, atol=1e-12)
        for a, b in zip(astuple(one), astuple(other), strict=True)
    )


@pytest.mark.parametrize("ends", ["t", "x", "u", "T", "tuxT"])
def test_a_survey_finds_the_table(ends: str, tmp_path: Path) -> None:
    chosen = SAMPLES["vectors"]
    block = random_block(chosen, (4, 1, 7, 3), ends=ends)
    dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
    for steps in ([15], [1] * 14, [2, 5], [4, 1, 7]):
        assert same(survey(cut(block, steps), chosen), dataset.trajectories), steps
    assert len(fields(Trajectories)) == 8


def test_the_table_of_some_shards_is_that_of_their_blocks(tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "vectors")
    source, _ = open_source(dataset.path, None)
    for shards in ([0, 1], [1], [0]):
        chosen = SelectedShards(source, shards)
        assert same(chosen.trajectories, survey(chosen.blocks(), chosen.schema))


@pytest.mark.parametrize("format", sorted(name for name, found in formats().items() if "datasets" in found.writes))
def test_a_dataset_of_no_steps(format: str, tmp_path: Path) -> None:
    empty = write_dataset(tmp_path / "data", [], schema=SAMPLES["vectors"]).path
    with pytest.raises(ExportError, match=r"has no steps to export|one discrete action"):
        export(empty, tmp_path / "made-v0", format, progress=Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_progress_is_told_of_every_step(tmp_path: Path) -> None:
    dataset, progress = whole_dataset(tmp_path / "data", "vectors"), Counting()
    export(dataset.path, tmp_path / "out.hdf5", "d4rl", progress=progress)
    assert progress.expected == progress.done == len(dataset)


def test_a_foreign_format_into_another(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "hopper.hdf5")
    report = export(tmp_path / "hopper.hdf5", tmp_path / "hopper-v0", "minari", progress=Silent())
    assert (report.id, report.steps, report.trajectories, report.shards) == ("hopper", 12, 4, 1)
    assert report.losses == ["that info/qpos have no values for final observations: zeros are written"]
    one, other = (open_source(tmp_path / name, None)[0] for name in ("hopper.hdf5", "hopper-v0"))
    for before, after in zip(read(one, 0), read(other, 0), strict=True):
        for name in after.parts:
            np.testing.assert_array_equal(before[name], after[name])


def test_a_damaged_source_leaves_nothing(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "hopper.hdf5")
    changed(tmp_path / "hopper.hdf5", set_row("rewards", 9, np.nan))
    with pytest.raises(CorruptShardError, match="rewards: expected finite numbers, found NaN in row 9"):
        export(tmp_path / "hopper.hdf5", tmp_path / "new/hopper-v0", "minari", progress=Silent())
    assert not (tmp_path / "new").exists()


def test_a_damaged_shard_leaves_nothing(tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "vectors")
    file = dataset.path / dataset.shard_files(1)[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptDatasetError, match="is damaged"):
        export(Dataset(dataset.path).path, tmp_path / "new/out.hdf5", "d4rl", progress=Silent())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["", "inside.hdf5", ".."])
def test_the_source_is_not_written_over(place: str, tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "some/data", "vectors")
    with pytest.raises(DatasetExistsError, match="expected another directory"):
        export(dataset.path, dataset.path / place, "d4rl", overwrite=True, progress=Silent())
    assert len(Dataset(dataset.path)) == len(dataset)
