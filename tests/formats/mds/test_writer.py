"""What rlx writes as MDS, by rlx's reader and, where it is installed, by MosaicML's library streaming."""

import importlib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlx.formats.mds import writer
from rlx.formats.mds.reader import open_mds
from rlx.testing.dataset_exporter import RICH, SAMPLES, Arrays, DatasetExporterContract, whole_dataset
from rlx.testing.source import Trajectory, read
from tests.formats.lerobot.peer import declare_operators


def peer() -> Any:
    """MosaicML's package, whose import wants torchvision."""
    if find_spec("streaming") is None:
        pytest.skip("streaming is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        declare_operators()
        return importlib.import_module("streaming.base")


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
        streaming = peer()
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        found = streaming.StreamingDataset(local=str(path), shuffle=False, batch_size=1)
        assert len(found) == len(dataset)
        for row in (0, 3, 22):
            assert found[row]["index"] == row
            np.testing.assert_array_equal(found[row]["next/reward"], dataset[row]["next", "reward"][0])

    @pytest.mark.parametrize("compression", ["zstd:3", "gz", "bz2"])
    def test_what_streaming_packs(self, compression: str, tmp_path: Path) -> None:
        streaming = peer()
        columns = {"observation": "ndarray:float32:2", "action": "int", "next/reward": "float32", "next/done": "uint8"}
        with streaming.MDSWriter(out=str(tmp_path / "a"), columns=columns, compression=compression) as out:
            for step in range(7):
                rows = {
                    "observation": np.array([step, 0.5], np.float32),
                    "action": step,
                    "next/reward": np.float32(step),
                }
                out.write({**rows, "next/done": np.uint8(step in (3, 6))})
        source = open_mds(tmp_path / "a")
        assert [file.split(".")[-1] for file in source.files(0)] == ["json", compression.split(":")[0]]
        assert [one["reward"].tolist() for one in read(source, 0)] == [[0, 1, 2, 3], [4, 5, 6]]
