"""What rlx writes for LeRobot, by rlx's reader, by pyarrow and datasets, and by LeRobot where that is installed.

LeRobot 0.4 pins older releases of what it needs than the other tests have: it is run in an environment of its own.
"""

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet
import pytest

import rlx
from rlx.errors import ExportError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.lerobot import tables
from rlx.formats.lerobot import writer as lerobot
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
from rlx.testing.source import Trajectory, read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset
from tests.formats.lerobot.peer import lerobot_datasets

GOLDEN = Path(__file__).parents[2] / "golden/lerobot"
TIMES = "steps without timestamps: they get 10 per second"


class TestLeRobot(DatasetExporterContract):
    format = "lerobot"
    rich = True
    lost: ClassVar = {sample: [TIMES] for sample in SAMPLES} | {
        "pictures": [TIMES, "observation as [84, 84]: it becomes [84, 84, 1]"],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return arrays | {"observation": arrays["observation"][..., None]} if sample == "pictures" else arrays

    @pytest.fixture(autouse=True)
    def _small_row_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lerobot, "_GROUP_BYTES", 2**17)

    def test_several_files(self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in a dataset of hundreds of megabytes: two files a directory, an episode in one file only."""
        dataset = whole_dataset(tmp_path / "data", "pictures")
        monkeypatch.setattr(lerobot, "_FILE_MEGABYTES", 0.03)
        monkeypatch.setattr(lerobot, "_CHUNK_FILES", 2)
        self.export(dataset.path, path)
        names = [name for name in contents(path) if name.startswith("data/")]
        assert names == [f"data/chunk-{place}.parquet" for place in ("000/file-000", "000/file-001", "001/file-000")]
        source, _ = open_source(path, None)
        assert [one.episode for shard in source.shards() for one in read(source, shard)] == [0, 1, 2, 3, 4]

    def test_so_many_short_episodes_that_a_file_would_have_too_many_row_groups(
        self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = whole_dataset(tmp_path / "data", "vectors")
        monkeypatch.setattr(tables, "_FILE_COLUMN_CHUNKS", 1)
        monkeypatch.setattr(tables, "_BUFFERED_EPISODES", 2)
        self.export(dataset.path, path)
        names = [name for name in contents(path) if "/file-" in name]
        assert names == [
            *(f"data/chunk-000/file-{number:03d}.parquet" for number in range(5)),
            *(f"meta/episodes/chunk-000/file-{number:03d}.parquet" for number in range(3)),
        ]
        source, _ = open_source(path, None)
        assert [one.episode for shard in source.shards() for one in read(source, shard)] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("ends", ["t", "tTx", "Tx"])
    def test_every_file_of_steps_finds_its_final_observations(
        self, ends: str, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen = SAMPLES["dict observations"]
        block = random_block(chosen, (4, 1, 7, 2, 9), ends=ends)
        dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
        monkeypatch.setattr(tables, "_FILE_COLUMN_CHUNKS", 1)
        monkeypatch.setattr(tables, "_GROUP_ROWS", 2)
        monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 1)
        self.export(dataset.path, path)
        finals = pyarrow.parquet.ParquetFile(path / "meta/final_observations.parquet")
        known = int(dataset.trajectories.final_recorded.sum())
        assert (finals.metadata.num_rows, finals.num_row_groups) == (known, -(-known // 2))
        source, _ = open_source(path, None)
        found = [read(source, shard)[0] for shard in source.shards()]
        for one, wanted in zip(found, self.source_trajectories(dataset), strict=True):
            assert one.final_recorded == wanted.final_recorded
            for name in dataset.schema.names(Role.OBSERVATION):
                np.testing.assert_array_equal(one[name], wanted[name])

    def test_as_the_format_says(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "pictures")
        self.export(dataset.path, path)
        info = json.loads((path / "meta/info.json").read_text())
        assert (info["codebase_version"], info["total_episodes"], info["total_frames"]) == ("v3.0", 5, 23)
        assert (info["splits"], info["total_tasks"], info["video_path"]) == ({"train": "0:5"}, 1, None)
        assert info["features"]["observation.image"] == {
            "dtype": "image",
            "shape": [84, 84, 1],
            "names": ["height", "width", "channels"],
        }
        assert info["features"]["next.reward"] == {"dtype": "float32", "shape": [1], "names": None}
        data = pyarrow.parquet.ParquetFile(path / info["data_path"].format(chunk_index=0, file_index=0))
        assert [data.metadata.row_group(number).num_rows for number in range(5)] == [4, 1, 7, 2, 9]
        table, ted = data.read(), dataset[:]
        np.testing.assert_array_equal(table["next.reward"], ted["next", "reward"][:, 0])
        np.testing.assert_array_equal(table["next.done"], ted["next", "done"][:, 0])
        np.testing.assert_array_equal(table["episode_index"], ted["collector", "traj_ids"])
        assert table["index"].to_pylist() == list(range(23))
        assert table["timestamp"].to_pylist()[4:7] == pytest.approx([0, 0, 0.1])
        episodes = pyarrow.parquet.read_table(path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
        assert [one["length"] for one in episodes] == [4, 1, 7, 2, 9]
        assert [one["dataset_from_index"] for one in episodes] == [0, 4, 5, 12, 14]
        assert [one["dataset_to_index"] for one in episodes] == [4, 5, 12, 14, 23]
        frames = ted["observation"].numpy()[5:12] / 255
        assert episodes[2]["stats/observation.image/mean"] == [[[pytest.approx(frames.mean())]]]
        assert episodes[2]["stats/observation.image/count"] == [7]
        stats = json.loads((path / "meta/stats.json").read_text())
        assert stats["next.reward"]["std"] == [pytest.approx(ted["next", "reward"].double().std(correction=0).item())]
        tasks = pyarrow.parquet.read_table(path / "meta/tasks.parquet")
        assert tasks.to_pydict() == {"task_index": [0], "task": ["Test/1"]}

    def test_what_lerobot_wrote_comes_back_equal(self, tmp_path: Path, path: Path) -> None:
        """Names of features and of their parts, tasks, times and both flags, through a dataset."""
        source = shutil.copytree(GOLDEN, tmp_path / "walks")
        info = json.loads((source / "meta/info.json").read_text())
        info |= {"fps": 25, "robot_type": "arm", "splits": {"train": "0:2", "test": "2:3"}}
        info["features"]["next.truncated"] = {"dtype": "bool", "shape": [1], "names": None}
        (source / "meta/info.json").write_text(json.dumps(info))
        file = source / "data/chunk-000/file-000.parquet"
        table = pyarrow.parquet.read_table(file)
        since = [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5]
        place = table.schema.names.index("timestamp")
        times = pyarrow.array((np.array(since) / 25).astype(np.float32))
        table = table.set_column(place, "timestamp", times)
        pyarrow.parquet.write_table(table.append_column("next.truncated", pyarrow.array([False] * 12)), file)
        rlx.convert(source, tmp_path / "data", from_="lerobot", jobs=1)
        report = export(tmp_path / "data", path, "lerobot", progress=Silent())
        assert report.losses == []
        told = json.loads((path / "meta/info.json").read_text())
        for name in ("fps", "robot_type", "total_tasks"):
            assert told[name] == info[name]
        dropped = 12 - told["total_frames"]  # steps whose outcome is not recorded
        assert told["splits"] == info["splits"]
        assert told["features"] == info["features"]
        before, after = table.to_pylist(), pyarrow.parquet.read_table(path / "data/chunk-000/file-000.parquet")
        kept = [row for row in before if (row["episode_index"], row["frame_index"]) in _places(after)]
        assert len(before) - len(kept) == dropped
        for name in info["features"]:
            if name not in ("index", "next.done", "next.truncated", "observation.images.top"):
                assert after[name].to_pylist() == [row[name] for row in kept], name
        assert pyarrow.parquet.read_table(path / "meta/tasks.parquet")["task"].to_pylist() == ["push", "pull"]
        episodes = pyarrow.parquet.read_table(path / "meta/episodes/chunk-000/file-000.parquet")
        assert episodes["tasks"].to_pylist() == [["push"], ["pull"], ["push"]]

    def test_both_flags_come_back(self, tmp_path: Path, path: Path) -> None:
        chosen = SAMPLES["vectors"]
        block = random_block(chosen, ends="tx")
        block.data["truncated"][3] = True  # the first trajectory terminated as it was truncated
        dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
        assert list(self.export(dataset.path, path).losses) == [TIMES]
        source, _ = open_source(path, None)
        ends = [(bool(one["terminated"][-1]), bool(one["truncated"][-1])) for one in read(source, 0)]
        assert ends == [(True, True), (False, True), (True, False)]

    def test_a_cut_trajectory_stays_one(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "seams")
        self.export(dataset.path, path)
        source, _ = open_source(path, None)
        assert [one.cut for one in read(source, 0)] == dataset.trajectories.cut.tolist()

    def test_tasks_are_those_of_the_steps(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "texts")
        self.export(dataset.path, path)
        tasks = pyarrow.parquet.read_table(path / "meta/tasks.parquet")["task"].to_pylist()
        rows = pyarrow.parquet.read_table(path / "data/chunk-000/file-000.parquet")
        wanted = np.concatenate([block.data["task"] for block in dataset.blocks()]).tolist()
        assert [tasks[number] for number in rows["task_index"].to_pylist()] == wanted
        assert tasks == list(dict.fromkeys(wanted))
        assert (
            rows["next.info.said"].to_pylist()
            == np.concatenate([block.data["info/said"] for block in dataset.blocks()]).tolist()
        )

    def test_statistics_of_what_is_not_finite(self, tmp_path: Path, path: Path) -> None:
        chosen = schema(SAMPLES["vectors"].fields, {"info/score": Field("float64", (), Role.NEXT)})
        block = random_block(chosen)
        block.data["info/score"][[1, 5]] = np.nan, np.inf
        dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
        self.export(dataset.path, path)

        def refuse(word: str) -> None:
            raise AssertionError(word)

        stats = json.loads((path / "meta/stats.json").read_text(), parse_constant=refuse)
        finite = block.data["info/score"][np.isfinite(block.data["info/score"])]
        assert stats["next.info.score"]["mean"] == [pytest.approx(finite.mean())]

    def test_arrays_of_six_dimensions(self, tmp_path: Path, path: Path) -> None:
        action = {"action": Field("float32", (2,), Role.STEP)}
        chosen = schema({"observation": Field("float32", (1, 2, 1, 2, 1, 2), Role.OBSERVATION)}, action)
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen)]], schema=chosen)
        with pytest.raises(ExportError, match=r"at most 5 dimensions, found observation \[1, 2, 1, 2, 1, 2\]"):
            self.export(dataset.path, path)

    def test_arrays_of_several_dimensions(self, tmp_path: Path, path: Path) -> None:
        action = {"action": Field("float32", (2,), Role.STEP)}
        chosen = schema({"observation": Field("float32", (2, 3), Role.OBSERVATION)}, action)
        dataset = write_dataset(tmp_path / "data", [[random_block(chosen, ends="t")]], schema=chosen)
        self.export(dataset.path, path)
        source, _ = open_source(path, None)
        for found, wanted in zip(read(source, 0), self.source_trajectories(dataset), strict=True):
            np.testing.assert_array_equal(found["observation"][:-1], wanted["observation"][:-1])

    @pytest.mark.parametrize("sample", ["pictures", "dict observations", "wide rewards"])
    def test_as_datasets_reads_it(
        self, sample: str, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        files = [str(file) for file in sorted(path.glob("data/*/*.parquet"))]
        check_rows(datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache")), path, dataset)

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_as_lerobot_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        pytest.importorskip("lerobot", reason="LeRobot is not installed")
        module = lerobot_datasets()
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        found = module.LeRobotDataset("rlx/test", root=path)
        assert (len(found), found.num_episodes) == (23, 5)
        stored = [block.data["task"] for block in dataset.blocks()] if sample == "texts" else [["Test/1"] * 23]
        assert [found[row]["task"] for row in range(23)] == np.concatenate(stored).tolist()
        check_rows(found.hf_dataset.with_format(None), path, dataset)


def _places(table: Any) -> set[tuple[int, int]]:
    return set(zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True))


def check_rows(found: Any, path: Path, dataset: Dataset) -> None:
    """Every row of a library's own table against the dataset's."""
    ted = dataset[:]
    called = json.loads((path / "provenance.json").read_text())["rlx"]["features"]
    for column, name in called.items():
        path_in_ted = ("next", *name.split("/")) if dataset.schema[name].role == Role.NEXT else tuple(name.split("/"))
        if dataset.schema[name].is_text:
            assert [row[column] for row in found] == ted[path_in_ted].tolist()
            continue
        wanted = ted[path_in_ted].numpy()
        rows = np.array([np.asarray(row[column]) for row in found])
        np.testing.assert_array_equal(rows.reshape(wanted.shape), wanted, err_msg=column)
