"""``rlx.sample``: batches of datasets, returned or written to a file."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.formats.registry import writable
from rlx.verbs.arguments import BatchFormat, StrPath, check_exclusive, paths
from rlx.verbs.options import Argument, Option, check, dataset_names
from rlx.wording import without_secrets

if TYPE_CHECKING:
    from rlx.store.dataset import Dataset
    from rlx.verbs.sampling import Sample

_GAMMA = 0.99


def sample(
    datasets: Annotated[
        "StrPath | Dataset | Sequence[StrPath | Dataset]",
        Argument(
            "Paths of datasets, their ids below $RLX_HOME, or URLs.",
            metavar="DATASET",
            completes=dataset_names,
            is_list=True,
        ),
    ],
    *,
    batch_size: Annotated[int, Option("Steps per batch.", least=1)] = 128,
    slice_len: Annotated[
        int | None,
        Option("Steps per slice; draws slices instead of single steps.", metavar="L", least=1, default=False),
    ] = None,
    num_slices: Annotated[
        int | None, Option("Slices per batch; draws slices instead of single steps.", least=1, default=False)
    ] = None,
    stack: Annotated[int, Option("Observations per stack.", metavar="K", least=1)] = 1,
    n_step: Annotated[int, Option("Steps per transition.", least=1)] = 1,
    gamma: Annotated[
        float | None, Option("Discount factor for --n-step.", metavar="G", least=0, most=1, default=str(_GAMMA))
    ] = None,
    batches: Annotated[int, Option("Number of batches to write.", least=1)] = 1,
    seed: Annotated[int | None, Option("Random seed.", least=0, default="random")] = None,
    without_replacement: Annotated[bool, Option("Draw every step, or trajectory, at most once.")] = False,
    no_strict_length: Annotated[bool, Option("Include trajectories shorter than a slice.")] = False,
    output: Annotated[
        StrPath | BinaryIO | None,
        Option("Output file; - is stdout.", metavar="FILE|-", short="-o", default="print a preview"),
    ] = None,
    format: Annotated[
        BatchFormat | None,
        Option("File format.", default="from the file suffix", more=lambda: writable("batches")),
    ] = None,
) -> "Sample":
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
    check(sample, locals())
    several = paths("dataset", datasets)
    if not several:
        raise OptionError("no dataset given: expected at least one")
    from rlx.formats.common.batches import DirectoryExporter, columns_of, export
    from rlx.formats.registry import formats
    from rlx.store.dataset import Dataset
    from rlx.verbs.report import bytes_at
    from rlx.verbs.sampling import CountedBatches, Sample, Sampling, check_file, described, draw

    names = [one.where if isinstance(one, Dataset) else without_secrets(os.fspath(one)) for one in several]
    for name, length in (("slice_len", slice_len), ("num_slices", num_slices)):
        if length is not None and batch_size % length:
            raise OptionError(f"`batch_size` {batch_size}: expected a multiple of `{name}` ({length})")
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
        return replace(drawn, batches=1, steps=len(batch), columns=described(columns_of(batch)), batch=batch)
    path = Path(output) if isinstance(output, str | os.PathLike) else None
    check_file(opened, sampling, chosen, path)
    counted = CountedBatches(draw(opened, sampling))
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


def _format(output: StrPath | BinaryIO | None, format: str | None) -> str | None:
    """Return the format to write; None if nothing is written."""
    if output is None:
        if format is not None:
            raise OptionError("`format` requires `output`")
        return None
    if isinstance(output, str | os.PathLike):
        path = Path(check_path("`output`", output, "a path"))
        from rlx.formats.registry import format_of

        return format or format_of(path)
    if not hasattr(output, "write"):
        raise OptionError(f"`output` {output!r}: expected a path or an open binary file")
    if format is None:
        raise OptionError("`output` to an open file requires `format`")
    if format == "zarr":
        raise OptionError("zarr is a directory and cannot be written to an open file")
    return format
