"""Preprocessing of a storage into a memory-mapped one, chunk by chunk, in this process or others."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.pool import Pool
from pathlib import Path
from uuid import uuid4

import cloudpickle
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.protocol import Storage, rows_in_order
from rlx.buffer.storage.tensors import MappedStorage
from rlx.engine.local_engine import process_context
from rlx.errors import DatasetExistsError, SchemaMismatchError
from rlx.files.atomic import whole
from rlx.numbers import check_whole
from rlx.schema import name_of
from rlx.seeding import seeded

Function = Callable[[TensorDictBase], TensorDictBase]
Span = tuple[int, int]
# The function, a chunk, and its steps where the function cannot read them; both pickled.
_Task = tuple[bytes, Span, bytes | None]
_CHUNK_STEPS = 1024


@dataclass(frozen=True, slots=True)
class ChunkFunction:
    """The function applied to each chunk, in any process.

    Args:
        storage: source of the steps; None if each chunk brings its own.
        target: directory of the memory-mapped TensorDict to write; None while its keys are unknown.
        single: whether ``fn`` gets one step at a time, rather than a chunk.
        seed: seeds torch, numpy and Python within ``fn``, with the chunk's position; None seeds nothing.
        run: distinguishes the target from an earlier one at the same path, whose files a process may still have open.
    """

    storage: Storage | None
    fn: Function
    target: Path | None = None
    single: bool = False
    seed: int | None = None
    run: str = ""

    def read(self, start: int, stop: int) -> TensorDictBase:
        """Return the steps from ``start`` to ``stop``."""
        assert self.storage is not None
        return self.storage.get(rows_in_order(self.storage, np.arange(start, stop), len(self.storage)))

    def made(self, start: int, stop: int, steps: TensorDictBase | None = None) -> TensorDictBase:
        """Return the result of ``fn`` for the steps from ``start`` to ``stop``, which are read unless given."""
        steps = self.read(start, stop) if steps is None else steps
        with nullcontext() if self.seed is None else seeded((self.seed + start) % 2**63):
            if self.single:
                result: TensorDictBase = TensorDict.stack([self.fn(step) for step in steps.unbind(0)])
            else:
                result = self.fn(steps)
        if tuple(result.batch_size[:1]) != (stop - start,):
            raise ValueError(f"{self.fn!r} gave {list(result.batch_size)} for {stop - start} steps: expected as many")
        return result

    def write(self, span: Span, steps: TensorDictBase | None = None) -> None:
        """Write a chunk at its rows."""
        assert self.target is not None
        put(_opened(self.target, self.run), self.made(*span, steps), span)


@lru_cache(maxsize=1)
def _opened(target: Path, run: str) -> TensorDict:  # noqa: ARG001  (part of the cache's key)
    return TensorDict.load_memmap(target)


def put(storage: TensorDictBase, chunk: TensorDictBase, span: Span) -> None:
    """Write a chunk into the memory-mapped steps from ``span[0]`` to ``span[1]``."""
    expected, found = _kinds(storage), _kinds(chunk)
    differing = [key for key in sorted({*expected, *found}) if expected.get(key) != found.get(key)]
    if differing:
        differences = [f"{key} is {found.get(key)}, expected {expected.get(key)}" for key in differing]
        raise SchemaMismatchError(f"steps {span[0]:,} to {span[1]:,}: {'; '.join(differences)}")
    storage[span[0] : span[1]] = chunk


def _kinds(steps: TensorDictBase) -> dict[str, str]:
    return {
        name_of(key): f"{leaf.dtype}{list(leaf.shape[1:])}"
        for key, leaf in steps.items(include_nested=True, leaves_only=True)
    }


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes that apply the function.

    Args:
        count: processes; 0 for this one.
        start_method: how they start; by default Python's.
        pool: existing processes to use instead.
        max_tasks: chunks after which a process is replaced; never by default.
    """

    count: int = 0
    start_method: str | None = None
    pool: Pool | None = None
    max_tasks: int | None = None
    threads: int = 1

    def run(self, function: ChunkFunction, spans: Sequence[Span]) -> Iterator[None]:
        """Write all chunks, in any order; yield after each."""
        if self.pool is None and not self.count:
            for span in spans:
                function.write(span)
                yield
            return
        # Every process reads files itself; of steps in memory, each is sent its chunks.
        in_files = function.storage is not None and function.storage.is_in_files
        # Plain pickle cannot send lambdas and definitions of __main__ or a notebook.
        sent = cloudpickle.dumps(function if in_files else replace(function, storage=None))
        tasks = ((sent, span, None if in_files else cloudpickle.dumps(function.read(*span))) for span in spans)
        if self.pool is not None:
            pool = self.pool
            yield from _few_at_a_time(lambda task: pool.apply_async(_write, (task,)).get, tasks, os.cpu_count() or 1)
            return
        # Processes that are replaced cannot be forked: threads of this one would be copied in any state.
        method = self.start_method or ("spawn" if self.max_tasks else None)
        with ProcessPoolExecutor(
            self.count,
            mp_context=process_context(method),
            initializer=torch.set_num_threads,
            initargs=(self.threads,),
            max_tasks_per_child=self.max_tasks,
        ) as executor:
            yield from _few_at_a_time(lambda task: executor.submit(_write, task).result, tasks, 2 * self.count)


def _few_at_a_time(submit: Callable[[_Task], Callable[[], None]], tasks: Iterable[_Task], limit: int) -> Iterator[None]:
    """Submit tasks, and yield after each one; at most ``limit`` are under way, and in memory."""
    waiting: deque[Callable[[], None]] = deque()
    for task in tasks:
        if len(waiting) >= limit:
            waiting.popleft()()
            yield
        waiting.append(submit(task))
    for done in waiting:
        done()
        yield


@lru_cache(maxsize=1)
def _received(sent: bytes) -> ChunkFunction:
    function: ChunkFunction = cloudpickle.loads(sent)
    return function


def _write(task: _Task) -> None:
    sent, span, steps = task
    _received(sent).write(span, None if steps is None else cloudpickle.loads(steps))


def chunks(steps: int, *, chunksize: int | None, num_chunks: int | None) -> list[Span]:
    """Return the chunks into which the steps are cut.

    Args:
        chunksize: steps of a chunk; 1,024 by default, as for 0, which gives ``fn`` one step at a time.

    Example:
        >>> chunks(5, chunksize=2, num_chunks=None), chunks(5, chunksize=None, num_chunks=2)
        ([(0, 2), (2, 4), (4, 5)], [(0, 3), (3, 5)])
    """
    if chunksize is not None and num_chunks is not None:
        raise ValueError("chunksize and num_chunks exclude each other")
    size = chunksize or _CHUNK_STEPS
    if num_chunks is not None:
        size = -(-steps // num_chunks)
    return [(start, min(start + size, steps)) for start in range(0, steps, size)]


def preprocess(function: ChunkFunction, spans: Sequence[Span], dest: Path, workers: Workers) -> Iterator[None]:
    """Write the results of ``fn`` for these chunks as a memory-mapped TensorDict at ``dest``; yield after each chunk.

    The directory appears once it is complete.
    """

    def check() -> None:
        if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
            raise DatasetExistsError(f"{dest} is not empty; expected a new directory")

    with whole(dest, check) as partial:
        try:
            first = function.made(*spans[0])
            target = first[0].expand(spans[-1][1], *first.batch_size[1:]).memmap_like(partial)
            put(target, first, spans[0])
            yield
            yield from workers.run(replace(function, target=partial, run=uuid4().hex), spans[1:])
        finally:
            _opened.cache_clear()


class Preprocessing:
    """Base of objects over a storage that can be rebuilt over another one."""

    @property
    def storage(self) -> Storage:
        """The storage of the steps."""
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
        """Apply a function to all steps; return a memory-mapped storage of the results at ``dest``.

        ``fn`` gets steps as they are stored, without the buffer's transforms, and returns as many; to drop steps, use
        ``rlx preprocess``.

        Args:
            fn: returns new steps for a chunk of steps [n], or for a single step with ``chunksize=0``.
            dim: the dimension that chunks are cut along; only 0.
            num_workers: number of processes; None or 0 for this process.
            dest: a new or empty directory; it appears once it is complete.
            chunksize: steps in a chunk, 1,024 by default; 0 for single steps.
            num_chunks: number of chunks, instead of ``chunksize``.
            pool: existing pool of processes to use.
            generator: seeds torch, numpy and Python within ``fn``, by chunk, so that the result does not depend on
                the workers.
            max_tasks_per_child: chunks after which a process is replaced.
            worker_threads: number of torch threads in each process.
            index_with_generator: accepted for compatibility with TorchRL; no effect.
            pbar: whether to show a progress bar on stderr.
            mp_start_method: ``spawn``, ``fork`` or ``forkserver``.
            num_frames: process only the first ``num_frames`` steps.

        Raises:
            DatasetExistsError: ``dest`` is not empty.
            DatasetLockedError: another process is writing to ``dest``.
            SchemaMismatchError: chunks differ in their keys, dtypes or shapes.
            OptionError: a number is out of range.
            ValueError: the function returned another number of steps.
        """
        if dim != 0:
            raise ValueError(f"dim {dim}: expected 0, the only dimension of stored steps")
        counts = {
            "num_frames": (num_frames, 1),
            "num_workers": (num_workers, 0),
            "chunksize": (chunksize, 0),
            "num_chunks": (num_chunks, 1),
            "max_tasks_per_child": (max_tasks_per_child, 1),
            "worker_threads": (worker_threads, 1),
        }
        for name, (count, least) in counts.items():
            if count is not None:
                check_whole(name, count, least)
        steps = len(self.storage) if num_frames is None else min(num_frames, len(self.storage))
        if not steps:
            raise ValueError("no steps to apply a function to")
        spans = chunks(steps, chunksize=chunksize, num_chunks=num_chunks)
        seed = None if generator is None else int(torch.randint(2**62, (), generator=generator))
        function = ChunkFunction(self.storage, fn, single=chunksize == 0, seed=seed)
        workers = Workers(num_workers or 0, mp_start_method, pool, max_tasks_per_child, worker_threads)
        target = Path(dest)
        for _ in _shown(preprocess(function, spans, target, workers), len(spans), pbar):
            pass
        return MappedStorage(target)


def _shown(done: Iterator[None], total: int, pbar: bool) -> Iterable[None]:
    return track(done, "preprocess", total, console=Console(stderr=True)) if pbar else done
