"""A replay buffer over a dataset at rest: what the buffers of all kinds of datasets have in common."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from tensordict import TensorDictBase

from rlx.buffer.protocol import Sampler, Storage, Writer
from rlx.buffer.replay_buffer import Collate
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform.compose import Transform
from rlx.buffer.writer import ImmutableDatasetWriter
from rlx.datasets.mapped_storage import MappedStorage
from rlx.datasets.preprocess import Mapping, Workers, chunks, preprocess
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed

Download = bool | Literal["force"]


class DatasetExperienceReplay(TensorDictReplayBuffer):
    """Samples a dataset, which stays as it is; its checkpoints say where sampling stands, and hold no steps.

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
        """Deletes the dataset from the disk.

        Raises:
            DatasetLockedError: another process is writing it.
        """
        self.shutdown()
        with claimed(self.dataset.path):
            shutil.rmtree(self.dataset.path)

    def preprocess(
        self,
        fn: Callable[[TensorDictBase], TensorDictBase],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        dest: str | os.PathLike[str],
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Pool | None = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,  # noqa: ARG002
        pbar: bool = False,
        mp_start_method: str | None = None,
        num_frames: int | None = None,
    ) -> MappedStorage:
        """Applies a function to all steps; returns a memory-mapped storage of the results, which lie at ``dest``.

        Neither the sampler nor the transform has a part in it. Steps are given as TED, and every step stays one: to
        leave some out, or cut others, use ``rlx preprocess``.

        Args:
            fn: makes new steps of a chunk of steps [n], or of single steps with ``chunksize=0``.
            dim: the dimension that chunks are cut along; only 0.
            num_workers: processes; none or 0: this one.
            dest: a directory, empty or not there; it is complete or stays away.
            chunksize: steps in a chunk, 1,024 by default; 0 for single steps.
            num_chunks: chunks, instead of their size.
            pool: processes that are there already.
            generator: seeds torch's randomness within ``fn``, by chunk: the result does not depend on the workers.
            max_tasks_per_child: chunks after which a process is replaced.
            worker_threads: torch's threads in each process.
            index_with_generator: accepted so that TorchRL's calls work; chunks are never read before their turn.
            pbar: whether to show a progress bar on stderr.
            mp_start_method: ``spawn``, ``fork`` or ``forkserver``.
            num_frames: only so many steps, the first ones.

        Raises:
            DatasetExistsError: ``dest`` is not empty.
            SchemaMismatchError: chunks differ in their keys, dtypes or shapes.
            ValueError: the function made more or fewer steps than it was given.
        """
        if dim != 0:
            raise ValueError(f"dim {dim}: expected 0, the only dimension of a dataset")
        steps = len(self.dataset) if num_frames is None else min(num_frames, len(self.dataset))
        spans = chunks(steps, chunksize=chunksize, num_chunks=num_chunks)
        seed = None if generator is None else int(torch.randint(2**62, (), generator=generator))
        mapping = Mapping(self.dataset, fn, single=chunksize == 0, seed=seed)
        workers = Workers(num_workers or 0, mp_start_method, pool, max_tasks_per_child, worker_threads)
        target = Path(dest)
        for _ in _shown(preprocess(mapping, spans, target, workers), len(spans), pbar):
            pass
        return MappedStorage(target)


def _shown(done: Iterator[None], total: int, pbar: bool) -> Iterable[None]:
    return track(done, "preprocess", total, console=Console(stderr=True)) if pbar else done
