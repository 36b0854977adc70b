"""What rlx writes as Parquet of datasets, by rlx's reader and by ``datasets``."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from datasets import Image, load_dataset

from rlx.formats.parquet import writer
from rlx.testing.dataset_exporter import (
    RICH,
    SAMPLES,
    Arrays,
    DatasetExporterContract,
    whole_dataset,
)
from rlx.testing.source import Trajectory

PICTURES = {"pictures": "observation", "colour pictures": "observation", "dict observations": "observation/camera"}


class TestHfParquet(DatasetExporterContract):
    format = "hf_parquet"
    name = "out.parquet"
    rich = True
    lost: ClassVar = {"pictures": ["observation as [84, 84]: it becomes [84, 84, 1]"]}

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return arrays | {"observation": arrays["observation"][..., None]} if sample == "pictures" else arrays

    @pytest.fixture(autouse=True)
    def _small_row_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "_GROUP_STEPS", 5)

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_as_datasets_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        found = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        assert len(found) == len(dataset)
        seen = np.concatenate([one["reward"] for one in self.source_trajectories(dataset)])
        np.testing.assert_array_equal(found["next/reward"], seen)
        if (name := PICTURES.get(sample)) is not None:
            assert isinstance(found.features[name], Image)
            rows = np.concatenate([one[name][:-1] for one in self.source_trajectories(dataset)])
            for row in (0, 3, 20):
                np.testing.assert_array_equal(np.asarray(found[row][name]), rows[row])
