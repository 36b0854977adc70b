"""Batches drawn from datasets, as a learner gets them, and checks that they fit memory and disk."""

import logging
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from rlx.buffer.ensemble import ReplayBufferEnsemble
from rlx.buffer.sampler.slices import SliceSampler, SliceSamplerWithoutReplacement
from rlx.buffer.sampler.steps import RandomSampler, SamplerWithoutReplacement
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform.batches import FrameStack
from rlx.buffer.transform.compose import Compose, Transform
from rlx.errors import SamplingError, SchemaMismatchError, SliceTooLongError
from rlx.files.disk import check_room
from rlx.formats.common.batches import Columns, columns_of
from rlx.schema import Field, Role, Schema, name_of
from rlx.store.dataset import Dataset, cast_hint
from rlx.store.ted import to_rows
from rlx.transform.multi_step import NStep
from rlx.wording import size

_INDEX = Field("int64", (), Role.STEP)
_HEAD_ROWS = 10
_MAX_VALUES = 6
_GATHERED = frozenset({"npz", "pt"})
# Compressed files are smaller than their rows, but not by more than this: the step numbers in them are random.
_BEST_RATIO = 1000
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """Batches that were drawn from datasets.

    Args:
        datasets: paths, ids or URLs of the datasets, without passwords.
        seed: random seed that draws the same steps again.
        batches: number of batches.
        steps: steps of all batches.
        columns: dtype, and shape of a row, of each column by its path, such as ``next/reward``.
        batch: the batch, TED of batch size [steps]; None if batches were written.
        output: the file; None if none was named.
        format: format of the file.
        bytes: size of the file.
    """

    datasets: Sequence[str]
    seed: int
    batches: int = 0
    steps: int = 0
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    batch: TensorDictBase | None = None
    output: Path | None = None
    format: str | None = None
    bytes: int | None = None

    @property
    def head(self) -> list[dict[str, Any]] | None:
        """The first rows of the batch with the columns of few values; None if batches were written."""
        if self.batch is None:
            return None
        shown = head_columns(self.batch)
        return [
            {name: _jsonable(rows[row : row + 1].tolist()[0]) for name, rows in shown.items()}
            for row in range(min(_HEAD_ROWS, self.steps))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        document = {"datasets": list(self.datasets), "seed": self.seed}
        written = {
            "output": None if self.output is None else str(self.output),
            "format": self.format,
            "bytes": self.bytes,
        }
        counted = {"batches": self.batches, "steps": self.steps, "columns": dict(self.columns)}
        if self.batch is None:
            return {**document, **written, **counted}
        return {**document, **counted, "head": self.head}


@dataclass(frozen=True, slots=True)
class Sampling:
    """The arguments of sampling, as of ``rlx.sample``."""

    batch_size: int = 128
    batches: int = 1
    slice_len: int | None = None
    num_slices: int | None = None
    stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    seed: int | None = None
    replacement: bool = True
    strict_length: bool = True


def draw(datasets: Sequence[Dataset], sampling: Sampling) -> Iterator[TensorDictBase]:
    """Draw batches [batch_size] of TED; of several datasets an equal share each, one after the other.

    Fields that only some of the datasets have are left out, which is logged as a warning.

    ``index`` is the step in its dataset; of several datasets ``("index", "index")`` is, and ``("index", "buffer_ids")``
    says which.
    """
    for dataset in datasets:
        check_batch(dataset, sampling)
    _say_what_differs(datasets)
    samplers = [make_sampler(sampling, number) for number in range(len(datasets))]
    buffers = [
        TensorDictReplayBuffer(
            storage=DatasetStorage(dataset), sampler=sampler, transform=_transforms(dataset.schema, sampling)
        )
        for dataset, sampler in zip(datasets, samplers, strict=True)
    ]
    as_one = partial(_one_behind_the_other, datasets=datasets)
    joined = (
        buffers[0] if len(buffers) == 1 else ReplayBufferEnsemble(*buffers, sample_from_all=True, collate_fn=as_one)
    )
    for _ in range(sampling.batches):
        try:
            batch = joined.sample(sampling.batch_size)
        except SliceTooLongError as exc:  # whose hint names the argument of a sampler
            raise SliceTooLongError(str(exc), hint="request shorter slices, or use `no_strict_length`") from exc
        yield batch
        if not sampling.replacement and any(sampler.ran_out for sampler in samplers):
            return


def make_sampler(sampling: Sampling, number: int = 0) -> RandomSampler | SamplerWithoutReplacement | SliceSampler:
    """Return the sampler that draws so; datasets of different numbers are drawn from independently."""
    seed = None if sampling.seed is None else sampling.seed + number
    if sampling.slice_len is None and sampling.num_slices is None:
        return RandomSampler(seed=seed) if sampling.replacement else SamplerWithoutReplacement(seed=seed)
    kind = SliceSampler if sampling.replacement else SliceSamplerWithoutReplacement
    return kind(
        num_slices=sampling.num_slices,
        slice_len=sampling.slice_len,
        strict_length=sampling.strict_length,
        seed=seed,
    )


def _transforms(schema: Schema, sampling: Sampling) -> Compose:
    transforms: list[Transform] = []
    if sampling.stack > 1:
        numeric = [name for name in schema.names(Role.OBSERVATION) if not schema[name].is_text]
        names = [tuple(name.split("/")) for name in numeric]
        transforms.append(FrameStack(sampling.stack, keys=[name for name in names if name[0] == "observation"]))
    if sampling.n_step > 1:
        transforms.append(NStep(sampling.n_step, sampling.gamma))
    return Compose(*transforms)


def _say_what_differs(datasets: Sequence[Dataset]) -> None:
    count = Counter(name for dataset in datasets for name in dataset.schema)
    if partly := sorted(name for name, having in count.items() if having < len(datasets)):
        logger.warning("left out: %s: not all datasets have them", ", ".join(partly))


def _one_behind_the_other(batches: list[TensorDictBase], datasets: Sequence[Dataset]) -> TensorDictBase:
    """Return one batch, with the keys that all have."""
    common = set.intersection(*(set(batch.keys(True, True, is_leaf=is_leaf_nontensor)) for batch in batches))
    for key in common:
        fields = [Field.of(to_rows(batch.get(key)), Role.STEP) for batch in batches]
        kinds = {(field.dtype, field.shape) for field in fields}
        if len(kinds) > 1:
            found = " and ".join(sorted(f"{dtype}{list(shape)}" for dtype, shape in kinds))
            raise SchemaMismatchError(
                f"datasets differ: {name_of(key)} is {found}; expected the same in all",
                hint=cast_hint(datasets),
            )
    joined: TensorDictBase = TensorDict.cat([batch.select(*common) for batch in batches])
    return joined


def check_batch(dataset: Dataset, sampling: Sampling) -> None:
    """Raise SamplingError for a batch that this machine cannot hold: the kernel would kill the process later."""
    row_bytes = sum(field.row_bytes * rows for field, rows in _columns([dataset], sampling))
    wanted = sampling.batch_size * (row_bytes + _INDEX.row_bytes * sampling.n_step)
    there = _memory()
    if wanted > there:
        raise SamplingError(
            f"a batch of {sampling.batch_size:,} steps takes {size(wanted)}: this machine has {size(there)}",
            hint="draw smaller batches, shorter stacks or fewer steps of a transition",
        )


def check_file(datasets: Sequence[Dataset], sampling: Sampling, format: str, path: Path | None) -> None:
    """Check that all batches fit into memory, for formats that hold all rows there, and that their file fits on disk.

    The size on disk is a lower bound: nobody knows beforehand how well rows compress.

    Args:
        path: the file or directory; None for a stream, which needs no room on a disk.
    """
    steps, columns = _most_steps(datasets, sampling), list(_columns(datasets, sampling))
    num_bytes = steps * sum(field.row_bytes * rows for field, rows in columns)
    if format in _GATHERED and num_bytes > (there := _memory()):
        raise SamplingError(
            f"{format} holds all rows in memory: expected at most {size(there)}, found {size(num_bytes)}",
            hint="draw fewer batches, or use `format` h5, zarr, parquet or jsonl",
        )
    if path is None:
        return
    if format == "jsonl":  # a digit and a separator at least
        num_bytes = steps * sum(2 * math.prod(field.shape) * rows for field, rows in columns)
    elif format != "pt":
        num_bytes //= _BEST_RATIO
    check_room(path, num_bytes, remedy="draw fewer batches")


def _columns(datasets: Sequence[Dataset], sampling: Sampling) -> Iterator[tuple[Field, int]]:
    """Yield the fields that all datasets have, and the rows of each in a drawn step."""
    schemas = [dataset.schema for dataset in datasets]
    for name in schemas[0]:
        field = schemas[0][name]
        if all(name in schema for schema in schemas):
            yield field, 2 * (1 if field.is_text else sampling.stack) if field.role == Role.OBSERVATION else 1
    yield _INDEX, 1


def _most_steps(datasets: Sequence[Dataset], sampling: Sampling) -> int:
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


def head_columns(batch: TensorDictBase) -> dict[str, NDArray[Any]]:
    """Return the first rows of the columns that have few values, by their paths."""
    return {name: rows[:_HEAD_ROWS] for name, rows in columns_of(batch).items() if rows[:1].size <= _MAX_VALUES}


class CountedBatches:
    """Batches as columns; counts them as they are consumed."""

    def __init__(self, batches: Iterator[TensorDictBase]) -> None:
        self._batches = batches
        self.batches = 0
        self.steps = 0
        self.columns: dict[str, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[Columns]:
        for batch in self._batches:
            columns = columns_of(batch)
            self.batches += 1
            self.steps += len(batch)
            self.columns = described(columns)
            yield columns


def described(columns: Columns) -> dict[str, dict[str, Any]]:
    """Return dtype, and shape of a row, of each column."""
    return {
        name: {"dtype": "string" if rows.dtype == object else str(rows.dtype), "shape": list(rows.shape[1:])}
        for name, rows in columns.items()
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
