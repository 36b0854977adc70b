"""What rlx writes as MDS, by rlx's reader and, where it is installed, by MosaicML's library streaming."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from rlx.formats.mds import writer
from tests.contracts.dataset_exporter import RICH, SAMPLES, Arrays, DatasetExporterContract, whole_dataset
from tests.contracts.source import Trajectory


class TestMds(DatasetExporterContract):
    format = "mds"
    rich = True
    lost: ClassVar = {
        "pictures": ["observation as [84, 84]: it becomes [84, 84, 1]"],
        "finals not recorded": ["that the final observation of 5 of 5 trajectories was not recorded: it is zeros"],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return arrays | {"observation": arrays["observation"][..., None]} if sample == "pictures" else arrays

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        return True

    @pytest.fixture(autouse=True)
    def _small_shards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "_SHARD_SAMPLES", 10_000)
        monkeypatch.setattr(writer, "_SHARD_BYTES", 100_000)

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_as_streaming_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        streaming = pytest.importorskip("streaming.base", reason="streaming is not installed")
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        found = streaming.StreamingDataset(local=str(path), shuffle=False, batch_size=1)
        assert len(found) == len(dataset)
        for row in (0, 3, 22):
            assert found[row]["index"] == row
            np.testing.assert_array_equal(found[row]["next/reward"], dataset[row]["next", "reward"][0])
