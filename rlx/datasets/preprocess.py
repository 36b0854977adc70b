"""A function applied to a dataset, chunk by chunk, in this process or others, into a new memory-mapped storage."""

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.pool import Pool
from pathlib import Path

import cloudpickle
import torch
from tensordict import TensorDict, TensorDictBase

from rlx.errors import DatasetExistsError, SchemaMismatchError
from rlx.store.dataset import Dataset

Function = Callable[[TensorDictBase], TensorDictBase]
Span = tuple[int, int]
_CHUNK_STEPS = 1024


@dataclass(frozen=True, slots=True)
class Mapping:
    """What is done to each chunk, in whatever process.

    Args:
        dataset: where steps come from.
        fn: what makes new steps of them.
        target: directory of the memory-mapped TensorDict that they are written to; none while its keys are unknown.
        single: whether ``fn`` gets one step at a time, rather than a chunk.
        seed: of torch's randomness within ``fn``, together with the chunk's place; none: as it comes.
    """

    dataset: Dataset
    fn: Function
    target: Path | None = None
    single: bool = False
    seed: int | None = None

    def made(self, start: int, stop: int) -> TensorDictBase:
        """What ``fn`` makes of the steps from ``start`` to ``stop``.

        Raises:
            ValueError: it makes more or fewer steps of them.
        """
        steps = self.dataset[start:stop]
        with _seeded(self.seed, start):
            if self.single:
                result: TensorDictBase = TensorDict.stack([self.fn(step) for step in steps.unbind(0)])
            else:
                result = self.fn(steps)
        if tuple(result.batch_size[:1]) != (stop - start,):
            raise ValueError(f"{self.fn!r} made {list(result.batch_size)} of {stop - start} steps: expected as many")
        return result

    def write(self, span: Span) -> None:
        """Puts a chunk where it belongs.

        Raises:
            SchemaMismatchError: its keys, dtypes or shapes are not those of the first chunk.
        """
        assert self.target is not None
        put(_opened(self.target), self.made(*span), span)


@contextmanager
def _seeded(seed: int | None, start: int) -> Iterator[None]:
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed((seed + start) % 2**63)
        yield


@lru_cache(maxsize=1)
def _opened(target: Path) -> TensorDict:
    return TensorDict.load_memmap(target)


def put(storage: TensorDictBase, chunk: TensorDictBase, span: Span) -> None:
    """Writes a chunk into the memory-mapped steps from ``span[0]`` to ``span[1]``."""
    expected, found = _kinds(storage), _kinds(chunk)
    differing = [key for key in sorted({*expected, *found}) if expected.get(key) != found.get(key)]
    if differing:
        told = [f"{key} is {found.get(key)}, expected {expected.get(key)}" for key in differing]
        raise SchemaMismatchError(f"steps {span[0]:,} to {span[1]:,}: {'; '.join(told)}")
    storage[span[0] : span[1]] = chunk


def _kinds(steps: TensorDictBase) -> dict[str, str]:
    """dtype and shape of every leaf."""
    return {
        "/".join((key,) if isinstance(key, str) else key): f"{leaf.dtype}{list(leaf.shape[1:])}"
        for key, leaf in steps.items(include_nested=True, leaves_only=True)
    }


@dataclass(frozen=True, slots=True)
class Workers:
    """Who does it.

    Args:
        count: processes; 0 for this one.
        start_method: how they start; Python's default where not given.
        pool: processes that are there already, used instead.
        max_tasks: chunks after which a process is replaced; never where not given.
        threads: torch's threads in each process.
    """

    count: int = 0
    start_method: str | None = None
    pool: Pool | None = None
    max_tasks: int | None = None
    threads: int = 1

    def run(self, mapping: Mapping, spans: Sequence[Span]) -> Iterator[None]:
        """Writes all chunks, in any order; yields after each."""
        if self.pool is None and not self.count:
            for span in spans:
                mapping.write(span)
                yield
            return
        # What __main__ or a notebook defines, and lambdas, plain pickle cannot send.
        sent = cloudpickle.dumps(mapping)
        tasks = [(sent, span) for span in spans]
        if self.pool is not None:
            yield from self.pool.imap_unordered(_write, tasks)
            return
        # Processes that are replaced cannot be forked: threads of this one would be copied in any state.
        method = self.start_method or ("spawn" if self.max_tasks else None)
        with ProcessPoolExecutor(
            self.count,
            mp_context=multiprocessing.get_context(method),
            initializer=torch.set_num_threads,
            initargs=(self.threads,),
            max_tasks_per_child=self.max_tasks,
        ) as executor:
            yield from executor.map(_write, tasks)


@lru_cache(maxsize=1)
def _received(sent: bytes) -> Mapping:
    mapping: Mapping = cloudpickle.loads(sent)
    return mapping


def _write(task: tuple[bytes, Span]) -> None:
    _received(task[0]).write(task[1])


def chunks(steps: int, *, chunksize: int | None, num_chunks: int | None) -> list[Span]:
    """The chunks that so many steps are cut into.

    Args:
        steps: how many.
        chunksize: steps of a chunk; 1,024 by default, as for 0, which gives ``fn`` one step at a time.
        num_chunks: chunks instead.

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


def preprocess(mapping: Mapping, spans: Sequence[Span], dest: Path, workers: Workers) -> Iterator[None]:
    """Writes what ``fn`` makes of these chunks as a memory-mapped TensorDict at ``dest``; yields after each chunk.

    The directory is there when all of it is.

    Raises:
        DatasetExistsError: the directory is not empty.
        SchemaMismatchError: chunks differ in their keys, dtypes or shapes.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise DatasetExistsError(f"{dest} is not empty; expected a new directory")
    dest.parent.mkdir(parents=True, exist_ok=True)
    partial = dest.with_name(dest.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        first = mapping.made(*spans[0])
        target = first[0].expand(spans[-1][1], *first.batch_size[1:]).memmap_like(partial)
        put(target, first, spans[0])
        yield
        yield from workers.run(replace(mapping, target=partial), spans[1:])
        _opened.cache_clear()
        if dest.exists():
            dest.rmdir()
        os.replace(partial, dest)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
