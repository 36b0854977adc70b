"""A replay buffer over a dataset at rest: what the buffers of all kinds of datasets have in common."""

import shutil
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from rlx.buffer.protocol import Sampler, Storage, Writer
from rlx.buffer.replay_buffer import Collate
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform.compose import Transform
from rlx.buffer.writer import ImmutableDatasetWriter
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed

Download = bool | Literal["force"]


class DatasetExperienceReplay(TensorDictReplayBuffer):
    """Sampler of a read-only dataset; its checkpoints hold the state of sampling, and no steps.

    Args:
        dataset: the dataset.
        dataset_id: its name.
        root: the directory above.
        storage: how its steps are read; all else as for ``ReplayBuffer``.
    """

    def __init__(
        self,
        dataset: Dataset,
        dataset_id: str,
        root: Path,
        *,
        storage: Storage,
        sampler: Sampler,
        writer: Writer | None,
        transform: Transform | None,
        batch_size: int | None,
        prefetch: int | None,
        pin_memory: bool,
        collate_fn: Collate | None,
    ) -> None:
        self.dataset = dataset
        self.dataset_id = dataset_id
        self._root = root
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter() if writer is None else writer,
            transform=transform,
            batch_size=batch_size,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
        )

    @property
    def data_path_root(self) -> Path:
        """The directory below which datasets lie by their names."""
        return self._root

    @property
    def data_path(self) -> Path:
        """The dataset's directory."""
        return self.dataset.path

    @cached_property
    def episodes(self) -> torch.Tensor:
        """int64 [S] the trajectory of every step; 8 bytes a step, made when first asked for."""
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
