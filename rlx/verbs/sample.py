"""``rlx.sample``."""

import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from numpy.typing import NDArray

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.formats.common.batches import Columns, DirectoryExporter, columns_of, export
from rlx.formats.registry import format_of, formats, writable
from rlx.numbers import check_whole
from rlx.store.dataset import Dataset
from rlx.verbs.arguments import BatchFormat, StrPath, check_choice, check_exclusive, check_number, paths
from rlx.verbs.report import bytes_at
from rlx.verbs.sampling import Sampling, check_file, draw
from rlx.wording import without_secrets

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_GAMMA = 0.99
_HEAD_ROWS = 10
_MAX_VALUES = 6


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
    batch: "TensorDictBase | None" = None
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


def sample(
    datasets: StrPath | Dataset | Sequence[StrPath | Dataset],
    *,
    batch_size: int = 128,
    slice_len: int | None = None,
    num_slices: int | None = None,
    stack: int = 1,
    n_step: int = 1,
    gamma: float | None = None,
    batches: int = 1,
    seed: int | None = None,
    without_replacement: bool = False,
    no_strict_length: bool = False,
    output: StrPath | BinaryIO | None = None,
    format: BatchFormat | None = None,
) -> Sample:
    """Draw steps or slices from datasets, and return or write them.

    Every batch has an equal share of each dataset. A file holds all batches concatenated, with fields named by path,
    such as ``next/reward``. To draw batch after batch for training, use ``rlx.ReplayBuffer(storage=rlx.open(...))``.

    Args:
        datasets: paths of datasets, their ids below ``$RLX_HOME``, or URLs; or one of them.
        batch_size: steps per batch.
        slice_len: steps per slice; draws slices instead of single steps.
        num_slices: slices per batch; draws slices instead of single steps.
        stack: observations per stack.
        n_step: steps per transition.
        gamma: discount factor for n_step; 0.99 by default.
        batches: number of batches to write.
        seed: random seed; random by default.
        without_replacement: draw every step, or trajectory, at most once.
        no_strict_length: include trajectories shorter than a slice.
        output: file to write, or a binary file that is open; by default the batch is returned.
        format: file format; by default that of the file's suffix.

    Returns:
        The drawn batch in ``batch``, or the file that was written.

    Raises:
        DatasetNotFoundError: a dataset does not exist.
        SamplingError: the batch cannot be split evenly, or does not fit into memory; SliceTooLongError: no trajectory
            has slice_len steps.
        SchemaMismatchError: observations of the datasets differ in shape.
        CorruptDatasetError: a dataset is damaged.
        UnknownFormatError: the file's suffix names no format.
        DatasetExistsError: output is a directory.
        DiskFullError: the disk has too little space.
        OptionError: an argument is out of range or conflicts with another.
        MissingExtraError: the format needs a package that is not installed.

    Example:
        >>> drawn = rlx.sample("Pong/5", batch_size=32, slice_len=8, seed=1)
        >>> drawn.batch["observation"].shape
        torch.Size([32, 84, 84])
        >>> rlx.sample("Pong/5", batches=10, output="steps.npz").steps
        1280
    """
    several = paths("dataset", datasets)
    if not several:
        raise OptionError("no dataset given: expected at least one")
    names = [one.where if isinstance(one, Dataset) else without_secrets(os.fspath(one)) for one in several]
    for name, number in (("batch_size", batch_size), ("stack", stack), ("n_step", n_step), ("batches", batches)):
        check_whole(f"`{name}`", number)
    for name, length in (("slice_len", slice_len), ("num_slices", num_slices)):
        check_number(name, length, 1)
        if length is not None and batch_size % length:
            raise OptionError(f"`batch_size` {batch_size}: expected a multiple of `{name}` ({length})")
    check_number("gamma", gamma, 0, 1)
    check_number("seed", seed, 0)
    check_exclusive(("slice_len", slice_len), ("num_slices", num_slices))
    if gamma is not None and n_step == 1:
        raise OptionError("`gamma` requires `n_step` of 2 or more")
    if batches > 1 and output is None:
        raise OptionError("`batches` requires `output`: without it, one batch is drawn")
    chosen = _format(output, format)
    sampling = Sampling(
        batch_size=batch_size,
        batches=batches,
        slice_len=slice_len,
        num_slices=num_slices,
        stack=stack,
        n_step=n_step,
        gamma=_GAMMA if gamma is None else gamma,
        seed=secrets.randbits(32) if seed is None else seed,
        replacement=not without_replacement,
        strict_length=not no_strict_length,
    )
    opened = [one if isinstance(one, Dataset) else Dataset(one) for one in several]
    drawn = Sample(names, sampling.seed or 0)
    if output is None or chosen is None:
        batch = next(draw(opened, sampling))
        return replace(drawn, batches=1, steps=len(batch), columns=_described(columns_of(batch)), batch=batch)
    path = Path(output) if isinstance(output, str | os.PathLike) else None
    check_file(opened, sampling, chosen, path)
    counted = _CountedBatches(draw(opened, sampling))
    if isinstance(output, str | os.PathLike):
        export(counted, Path(output), formats()[chosen].batches)
    else:
        exporter = formats()[chosen].batches
        assert not isinstance(exporter, DirectoryExporter)
        exporter.write(counted, output)
        output.flush()
    return replace(
        drawn,
        batches=counted.batches,
        steps=counted.steps,
        columns=counted.columns,
        output=path,
        format=chosen,
        bytes=None if path is None else bytes_at(path),
    )


def head_columns(batch: "TensorDictBase") -> dict[str, NDArray[Any]]:
    """Return the first rows of the columns that have few values, by their paths."""
    return {name: rows[:_HEAD_ROWS] for name, rows in columns_of(batch).items() if rows[:1].size <= _MAX_VALUES}


class _CountedBatches:
    """Batches as columns; counts them as they are consumed."""

    def __init__(self, batches: "Iterator[TensorDictBase]") -> None:
        self._batches = batches
        self.batches = 0
        self.steps = 0
        self.columns: dict[str, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[Columns]:
        for batch in self._batches:
            columns = columns_of(batch)
            self.batches += 1
            self.steps += len(batch)
            self.columns = _described(columns)
            yield columns


def _format(output: StrPath | BinaryIO | None, format: str | None) -> str | None:
    """Return the format to write; None if nothing is written."""
    check_choice("format", format, BatchFormat, partial(writable, "batches"))
    if output is None:
        if format is not None:
            raise OptionError("`format` requires `output`")
        return None
    if isinstance(output, str | os.PathLike):
        path = Path(check_path("`output`", output, "a path"))
        return format or format_of(path)
    if not hasattr(output, "write"):
        raise OptionError(f"`output` {output!r}: expected a path or an open binary file")
    if format is None:
        raise OptionError("`output` to an open file requires `format`")
    if format == "zarr":
        raise OptionError("zarr is a directory and cannot be written to an open file")
    return format


def _described(columns: Columns) -> dict[str, dict[str, Any]]:
    return {
        name: {"dtype": "string" if rows.dtype == object else str(rows.dtype), "shape": list(rows.shape[1:])}
        for name, rows in columns.items()
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
