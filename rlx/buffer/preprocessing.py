"""``preprocess`` of replay buffers, with TorchRL's arguments."""

import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from tensordict import TensorDictBase

from rlx.buffer.preprocess import Mapping, Workers, chunks, preprocess
from rlx.buffer.protocol import Storage
from rlx.buffer.storage.mapped import MappedStorage


class Preprocessing:
    """An object over a storage that can be made over another storage."""

    @property
    def storage(self) -> Storage:
        """Where steps are kept."""
        raise NotImplementedError

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
        """Apply a function to all steps; return a memory-mapped storage of the results, which lie at ``dest``.

        Steps are given as they are stored, row by row, and every step stays one: to leave some out, or cut others, use
        ``rlx preprocess``. Neither the sampler nor the transform has a part in it.

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
            num_frames: process only the first ``num_frames`` steps.

        Raises:
            DatasetExistsError: ``dest`` is not empty.
            DatasetLockedError: another process is writing to ``dest``.
            SchemaMismatchError: chunks differ in their keys, dtypes or shapes.
            ValueError: the function made more or fewer steps than it was given.
        """
        if dim != 0:
            raise ValueError(f"dim {dim}: expected 0, the only dimension of stored steps")
        steps = len(self.storage) if num_frames is None else min(num_frames, len(self.storage))
        if not steps:
            raise ValueError("no steps to apply a function to")
        spans = chunks(steps, chunksize=chunksize, num_chunks=num_chunks)
        seed = None if generator is None else int(torch.randint(2**62, (), generator=generator))
        mapping = Mapping(self.storage, fn, single=chunksize == 0, seed=seed)
        workers = Workers(num_workers or 0, mp_start_method, pool, max_tasks_per_child, worker_threads)
        target = Path(dest)
        for _ in _shown(preprocess(mapping, spans, target, workers), len(spans), pbar):
            pass
        return MappedStorage(target)


def _shown(done: Iterator[None], total: int, pbar: bool) -> Iterable[None]:
    return track(done, "preprocess", total, console=Console(stderr=True)) if pbar else done
