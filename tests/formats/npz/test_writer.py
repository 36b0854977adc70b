from pathlib import Path

import numpy as np
import pytest

from rlx.errors import ExportError
from rlx.testing.dataset_exporter import RICH, DatasetExporterContract, random_block, whole_dataset
from tests.factories import write_dataset


class TestNpz(DatasetExporterContract):
    format = "npz"
    name = "out.npz"
    rich = True

    def test_as_numpy_reads_it(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "pictures")
        self.export(dataset.path, path)
        ted = dataset[:]
        with np.load(path, allow_pickle=False) as arrays:
            assert all(arrays[name].dtype.kind in "biuf" for name in arrays)
            np.testing.assert_array_equal(arrays["observation"], ted["observation"].numpy())
            np.testing.assert_array_equal(arrays["action"], ted["action"].numpy())
            for name in ("reward", "terminated", "truncated"):
                np.testing.assert_array_equal(arrays[f"next/{name}"], ted["next", name][:, 0].numpy())
            lengths = arrays["trajectories/length"]
            assert lengths.tolist() == [4, 1, 7, 2, 9]
            finals = ted["next", "observation"].numpy()[np.cumsum(lengths) - 1]
            np.testing.assert_array_equal(arrays["trajectories/final/observation"], finals)

    def test_as_numpy_reads_texts(self, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", "texts")
        self.export(dataset.path, path)
        ted = dataset[:]
        with np.load(path, allow_pickle=False) as arrays:
            assert arrays["task"].tolist() == list(ted["task"])
            assert arrays["observation/mission"].tolist() == list(ted["observation", "mission"])
            assert arrays["next/info/said"].tolist() == list(ted["next", "info", "said"])

    def test_a_text_that_numpy_would_cut_is_refused(self, tmp_path: Path, path: Path) -> None:
        chosen = RICH["texts"]
        block = random_block(chosen)
        block.data["task"][2] = "go\0"
        dataset = write_dataset(tmp_path / "data", [[block]], schema=chosen)
        with pytest.raises(ExportError, match="npz cannot hold a text that ends in NUL, found one in task"):
            self.export(dataset.path, path)
        assert not path.exists()
