"""What rlx writes for TorchRL, by rlx's reader, by TensorDict and, where it is installed, by TorchRL's storage."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tensordict import TensorDict

from rlx.store.dataset import Dataset
from tests.contracts.dataset_exporter import DatasetExporterContract, whole_dataset
from tests.contracts.source import Trajectory


def same_steps(found: TensorDict, dataset: Dataset) -> None:
    ted = dataset[:]
    assert set(found.keys(True, True)) == set(ted.keys(True, True)) - {"index"}
    for key in found.keys(True, True):
        assert found[key].dtype == ted[key].dtype, key
        assert torch.equal(found[key], ted[key]), key


class TestTorchRL(DatasetExporterContract):
    format = "torchrl"
    lost: ClassVar = {
        "finals not recorded": ["that the final observation of 5 of 5 trajectories was not recorded: it is zeros"]
    }

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        return True

    @pytest.mark.parametrize("sample", ["pictures", "dict observations", "infos", "dict actions", "seams"])
    def test_as_tensordict_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        same_steps(TensorDict.load_memmap(path), dataset)

    def test_as_torchrl_reads_it(self, tmp_path: Path, path: Path) -> None:
        """The test extra leaves TorchRL out: pip install 'rlx[bench]'."""
        data = pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
        dataset = whole_dataset(tmp_path / "data", "pictures")
        self.export(dataset.path, path)
        buffer = data.ReplayBuffer(storage=data.TensorStorage(TensorDict.load_memmap(path)))
        assert len(buffer) == len(dataset)
        same_steps(buffer[:], dataset)
