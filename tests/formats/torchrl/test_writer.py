"""What rlx writes for TorchRL, by rlx's reader, by TensorDict and, where it is installed, by TorchRL's storage."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx.store.dataset import Dataset
from rlx.testing.dataset_exporter import RICH, DatasetExporterContract, whole_dataset
from rlx.testing.source import Trajectory, read
from rlx.verbs.inputs import open_source
from tests.factories import make_block, write_dataset


def same_steps(found: TensorDict, dataset: Dataset) -> None:
    ted, found = dataset[:], found.exclude("trajectories")
    assert set(found.keys(True, True)) == set(ted.keys(True, True)) - {"index"}
    for key in found.keys(True, True):
        if isinstance(ted[key], torch.Tensor):
            assert found[key].dtype == ted[key].dtype, key
            assert torch.equal(found[key], ted[key]), key
        else:
            assert list(found[key]) == list(ted[key]), key


class TestTorchRL(DatasetExporterContract):
    format = "torchrl"
    rich = True
    lost: ClassVar = {
        "finals not recorded": ["that the final observation of 5 of 5 trajectories was not recorded: it is zeros"]
    }

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        return True

    @pytest.mark.parametrize("sample", ["pictures", "dict observations", "infos", "dict actions", "seams", *RICH])
    def test_as_tensordict_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        same_steps(TensorDict.load_memmap(path), dataset)

    @pytest.mark.parametrize("sample", ["pictures", *RICH])
    def test_as_torchrl_reads_it(self, sample: str, tmp_path: Path, path: Path) -> None:
        """The test extra leaves TorchRL out: pip install 'rlx[bench]'."""
        data = pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
        dataset = whole_dataset(tmp_path / "data", sample)
        self.export(dataset.path, path)
        buffer = data.ReplayBuffer(storage=data.TensorStorage(TensorDict.load_memmap(path)))
        assert len(buffer) == len(dataset)
        same_steps(buffer[:], dataset)

    def test_trajectories_come_back_as_they_were(self, tmp_path: Path, path: Path) -> None:
        block = make_block([3, 1, 5])
        flags = np.array([True, False, True])
        block = replace(block, episodes=np.array([7, 3, 3]), from_reset=flags, cut=np.zeros(3, bool))
        block.data["terminated"][3], block.data["truncated"][3] = False, True
        block = replace(block, cut=np.array([False, True, False]))
        dataset = write_dataset(tmp_path / "data", [[block]])
        assert self.export(dataset.path, path).losses == []
        found = read(open_source(path, None)[0], 0)
        assert [(one.episode, one.from_reset, one.cut) for one in found] == [
            (7, True, False),
            (3, False, True),
            (3, True, False),
        ]
