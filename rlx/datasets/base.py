"""Base of replay buffers over datasets on disk."""

import shutil
from functools import cached_property
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
import torch

from rlx.buffer.replay_buffer import BufferOptions
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.writer import ImmutableDatasetWriter
from rlx.manifest import FILE_NAME, Manifest
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed

Download = bool | Literal["force"]


def is_complete(path: Path) -> bool:
    """Return whether a directory holds a dataset whose shards are all there."""
    return (path / FILE_NAME).exists() and not Manifest.load(path).missing


class DatasetExperienceReplay(TensorDictReplayBuffer):
    """Replay buffer over a read-only dataset; its checkpoints hold the state of sampling, and no steps.

    Args:
        dataset: the dataset.
        dataset_id: its name.
        root: the directory above the datasets.
        options: the arguments of ``ReplayBuffer``; ``writer`` refuses to write by default.
    """

    def __init__(
        self,
        dataset: Dataset,
        dataset_id: str,
        root: Path,
        **options: Unpack[BufferOptions],
    ) -> None:
        self.dataset = dataset
        self.dataset_id = dataset_id
        self._root = root
        if options.get("writer") is None:
            options["writer"] = ImmutableDatasetWriter()
        super().__init__(**options)

    @property
    def data_path_root(self) -> Path:
        """The directory that holds the datasets."""
        return self._root

    @property
    def data_path(self) -> Path:
        """The dataset's directory."""
        return self.dataset.path

    @cached_property
    def episodes(self) -> torch.Tensor:
        """int64 [S] the trajectory of every step; 8 bytes per step, computed on first use."""
        lengths = self.dataset.trajectories.length
        return torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))

    def delete(self) -> None:
        """Delete the dataset from the disk.

        Raises:
            DatasetLockedError: another process is writing it.
        """
        self.shutdown()
        with claimed(self.dataset.path):
            shutil.rmtree(self.dataset.path)
