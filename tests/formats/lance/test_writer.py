"""What rlx writes as Lance, by rlx's reader and by Lance."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from rlx.testing.dataset_exporter import RICH, SAMPLES, DatasetExporterContract, whole_dataset


class TestLance(DatasetExporterContract):
    format = "lance"
    name = "out.lance"
    rich = True
    only_utf_8 = True

    def content(self, path: Path) -> Any:
        """The rows: Lance names its files at random, and dates its versions."""
        return lance.dataset(path).to_table().to_pylist()

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_as_lance_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        found = lance.dataset(path)
        assert found.count_rows() == len(dataset)
        assert found.to_table()["next/reward"].to_pylist() == dataset[:]["next", "reward"].flatten().tolist()
        picked = found.take([20, 3]).to_pylist()
        for row, place in zip(picked, (20, 3), strict=True):
            assert row["index"] == place
            if "action" in row:
                np.testing.assert_array_equal(
                    np.array(row["action"]).reshape(-1), dataset[place]["action"].numpy().reshape(-1)
                )
