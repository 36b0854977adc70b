from pathlib import Path

import numpy as np

from tests.contracts.dataset_exporter import DatasetExporterContract, whole_dataset


class TestNpz(DatasetExporterContract):
    format = "npz"
    name = "out.npz"

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
