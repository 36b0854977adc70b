"""Checks that a batch, and a whole file of batches, fit into memory and on the disk, before anything is drawn."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import SamplingError
from rlx.files.disk import check_room
from rlx.quantities import size
from rlx.schema import Field, Role

if TYPE_CHECKING:
    from rlx.pipeline.sampling import Sampling
    from rlx.store.dataset import Dataset

_INDEX = Field("int64", (), Role.STEP)
_GATHERED = frozenset({"npz", "pt"})
# Compressed files are smaller than their rows, but not by more than this: the step numbers in them are random.
_BEST_RATIO = 1000
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_batch(dataset: "Dataset", sampling: "Sampling") -> None:
    """Raise SamplingError for a batch that this machine cannot hold: the kernel would kill the process later."""
    row_bytes = sum(field.row_bytes * rows for field, rows in _columns([dataset], sampling))
    wanted = sampling.batch_size * (row_bytes + _INDEX.row_bytes * sampling.n_step)
    there = _memory()
    if wanted > there:
        raise SamplingError(
            f"a batch of {sampling.batch_size:,} steps takes {size(wanted)}: this machine has {size(there)}",
            hint="draw smaller batches, shorter stacks or fewer steps of a transition",
        )


def check_file(datasets: "Sequence[Dataset]", sampling: "Sampling", format: str, path: Path | None) -> None:
    """Check that all batches fit into memory, for formats that hold all rows there, and that their file fits on disk.

    The size on disk is a lower bound: nobody knows beforehand how well rows compress.

    Args:
        datasets: to draw from.
        sampling: how.
        format: name of the file format of batches.
        path: the file or directory; None for a stream, which needs no room on a disk.

    Raises:
        SamplingError: the rows do not fit into memory.
        DiskFullError: the file does not fit on the disk.
    """
    steps, columns = _most_steps(datasets, sampling), list(_columns(datasets, sampling))
    num_bytes = steps * sum(field.row_bytes * rows for field, rows in columns)
    if format in _GATHERED and num_bytes > (there := _memory()):
        raise SamplingError(
            f"{format} holds all rows in memory: expected at most {size(there)}, found {size(num_bytes)}",
            hint="draw fewer batches, or use --format h5, zarr, parquet or jsonl",
        )
    if path is None:
        return
    if format == "jsonl":  # a digit and a separator at least
        num_bytes = steps * sum(2 * math.prod(field.shape) * rows for field, rows in columns)
    elif format != "pt":
        num_bytes //= _BEST_RATIO
    check_room(path, num_bytes, remedy="draw fewer batches")


def _columns(datasets: "Sequence[Dataset]", sampling: "Sampling") -> "Iterator[tuple[Field, int]]":
    """Yield the fields that all datasets have, and the rows of each in a drawn step."""
    schemas = [dataset.schema for dataset in datasets]
    for name in schemas[0]:
        field = schemas[0][name]
        if all(name in schema for schema in schemas):
            yield field, 2 * (1 if field.is_text else sampling.stack) if field.role == Role.OBSERVATION else 1
    yield _INDEX, 1


def _most_steps(datasets: "Sequence[Dataset]", sampling: "Sampling") -> int:
    """Return how many steps are drawn at most; without replacement, the first dataset that runs out ends the epoch."""
    steps = sampling.batches * sampling.batch_size
    if sampling.replacement:
        return steps
    return min(steps, len(datasets) * min(map(len, datasets)) + sampling.batch_size)


def _memory() -> int:
    """Return the bytes of memory of this machine, or of the container that this process runs in."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no limit is "max"
        return min(physical, int(_MEMORY_LIMIT.read_text()))
    return physical
