from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rlx.formats.parquet import writer as parquet_dataset
from rlx.schema import Role
from rlx.testing.dataset_exporter import RICH, DatasetExporterContract, whole_dataset
from rlx.testing.source import read
from rlx.verbs.inputs import open_source


class TestParquet(DatasetExporterContract):
    format = "parquet"
    name = "out.parquet"
    rich = True

    @pytest.fixture(autouse=True)
    def _small_row_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_dataset, "_GROUP_BYTES", 2**19)

    def test_short_episodes_share_a_row_group(
        self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet_dataset, "_GROUP_STEPS", 5)
        self.export(whole_dataset(tmp_path / "data", "vectors").path, path)
        assert _groups(path) == [5, 7, 11]

    def test_as_pyarrow_reads_it(self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_dataset, "_GROUP_STEPS", 1)
        dataset = whole_dataset(tmp_path / "data", "pictures")
        self.export(dataset.path, path)
        assert _groups(path) == [4, 1, 7, 2, 9]
        table = pyarrow.parquet.ParquetFile(path).read()
        ted = dataset[:]
        frames = np.array(table["observation"].to_pylist(), np.uint8)
        np.testing.assert_array_equal(frames, ted["observation"].numpy())
        np.testing.assert_array_equal(table["action"], ted["action"].numpy())
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(table[f"next/{name}"], ted["next", name][:, 0].numpy())
        assert table["index"].to_pylist() == list(range(23))
        assert table["collector/traj_ids"].to_pylist() == ted["collector", "traj_ids"].tolist()
        assert table["trajectories/episode"].to_pylist() == ted["collector", "traj_ids"].tolist()
        last = table["next/observation"].is_valid().to_numpy()
        assert np.flatnonzero(last).tolist() == [3, 4, 11, 13, 22]
        finals = np.array(table["next/observation"].drop_null().to_pylist(), np.uint8)
        np.testing.assert_array_equal(finals, ted["next", "observation"].numpy()[last])

    def test_as_pyarrow_reads_texts_and_policy_outputs(self, tmp_path: Path, path: Path) -> None:
        for sample in RICH:
            dataset = whole_dataset(tmp_path / sample, sample)
            self.export(dataset.path, path, overwrite=True)
            table = pyarrow.parquet.read_table(path)
            stored = {name: [block.data[name] for block in dataset.blocks()] for name in dataset.schema}
            for name, field in dataset.schema.fields.items():
                if field.role != Role.OBSERVATION:
                    column = table[f"next/{name}" if field.role == Role.NEXT else name].to_pylist()
                    assert column == np.concatenate(stored[name]).tolist()

    def test_a_cut_trajectory_stays_one(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "seams")
        self.export(dataset.path, path)
        source, _ = open_source(path, None)
        assert [one.cut for one in read(source, 0)] == dataset.trajectories.cut.tolist()


def _groups(path: Path) -> list[int]:
    """Rows of every row group."""
    metadata = pyarrow.parquet.ParquetFile(path).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
