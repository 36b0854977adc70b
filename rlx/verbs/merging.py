"""``rlx.merge`` and ``rlx.split``."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.home import locate
from rlx.pipeline import split as pipeline
from rlx.progress import Progress, receiver
from rlx.store.codec import Codec
from rlx.verbs.arguments import (
    SplitUnit,
    Store,
    StrPath,
    check_choice,
    check_number,
    chosen_codec,
    command_line,
    numbers,
    paths,
    write_options,
)
from rlx.verbs.merge import merge as merge_datasets
from rlx.verbs.report import Report


def merge(
    datasets: Iterable[StrPath],
    output: StrPath,
    *,
    to: Store | None = None,
    codec: str | Codec | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Merge datasets into one; call it again to resume.

    Shards are hard-linked where the file system allows it, and copied elsewhere.

    Args:
        datasets: directories of the datasets, or their ids below ``$RLX_HOME``, in the desired order.
        output: the new dataset's directory.
        to: ``zarr`` or ``memmap``; shards of another store are re-encoded. That of the datasets by default.
        codec: such as ``zstd-dict``; shards of another codec are re-encoded. By default that of the datasets, or
            with ``to`` that of the store.
        jobs: worker processes; one per core by default.
        overwrite: start afresh; an existing dataset stays until the new one is complete.
        progress: reports ``bytes`` of linked shards, ``shards`` and ``steps`` of re-encoded ones.

    Raises:
        DatasetNotFoundError: a dataset does not exist.
        DatasetError: a dataset is given twice, or the datasets differ in store or codec.
        SchemaMismatchError: the datasets have different fields.
        DatasetExistsError: output is one of the datasets, or holds another dataset.
        CorruptDatasetError: a dataset is damaged.
        OptionError, CodecError: datasets is empty or not a list, or another argument is unknown.

    Example:
        >>> first, second = rlx.split("cartpole", [0.5, 0.5], output=["first", "second"])
        >>> rlx.merge(["first", "second"], "both").steps == first.steps + second.steps
        True
    """
    if isinstance(datasets, str | os.PathLike):
        raise OptionError(f"one dataset given, {os.fspath(datasets)!r}: expected a list")
    datasets = paths("dataset", datasets)
    if not datasets:
        raise OptionError("no dataset given: expected a list of at least one")
    chosen = {"to": to, "codec": chosen_codec(codec)}
    options = write_options(
        store=to or "zarr",
        codec=codec,
        jobs=jobs,
        overwrite=overwrite,
        command=command_line("merge", [os.fspath(dataset) for dataset in datasets], chosen),
    )
    return merge_datasets(
        [locate(dataset) for dataset in datasets],
        Path(check_path("output", output, "a directory")),
        options,
        encode=to is not None or codec is not None,
        progress=receiver(progress),
    )


def split(
    dataset: StrPath,
    fractions: Iterable[float],
    *,
    by: SplitUnit = "trajectory",
    seed: int = 0,
    part: int | None = None,
    output: StrPath | Sequence[StrPath] | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Report]:
    """Split the trajectories of a dataset into several datasets; call it again to resume.

    Every trajectory goes to one part, determined by the seed and the fractions alone. If the fractions sum to less than
    1, the remaining fraction is dropped.

    Args:
        dataset: the dataset's directory, or its id below ``$RLX_HOME``.
        fractions: fraction of each part, such as ``[0.9, 0.1]``.
        by: ``trajectory``, or ``shard`` to split whole shards, which are hard-linked.
        seed: random seed for the split.
        part: number of the only part to write, from 1; all by default.
        output: a directory for each part, or one name that -1, -2, ... are appended to; that of the dataset by default.
        jobs: worker processes; one per core by default.
        overwrite: start afresh; an existing dataset stays until the new one is complete.
        progress: reports ``bytes`` of linked shards, ``shards`` and ``steps`` of re-encoded ones.

    Returns:
        A report for each part that was written.

    Raises:
        OptionError: the fractions, the seed or the number of directories does not fit.
        DatasetNotFoundError: dataset does not exist.
        DatasetError: a part would have no trajectories, or does not exist.
        DatasetExistsError: a directory is the dataset's or another part's, or holds another dataset.
        CorruptDatasetError: the dataset is damaged.

    Example:
        >>> train, test = rlx.split("cartpole", [0.9, 0.1], output=["train", "test"])
        >>> train.steps + test.steps
        1000
    """
    check_choice("by", by, SplitUnit)
    fractions = numbers("fractions", fractions, float, "[0.9, 0.1]")
    check_number("part", part, 1, len(fractions))
    check_number("seed", seed, 0)
    options = write_options(
        jobs=jobs,
        overwrite=overwrite,
        command=command_line(
            "split",
            [os.fspath(check_path("dataset", dataset))],
            {
                "fractions": ",".join(map(str, fractions)),
                "by": None if by == "trajectory" else by,
                "seed": seed or None,
            },
        ),
    )
    return pipeline.split(
        locate(dataset),
        destinations(dataset, len(fractions), part, output),
        pipeline.Division(fractions, pipeline.By(by), seed),
        options,
        part=None if part is None else part - 1,
        progress=receiver(progress),
    )


def destinations(
    dataset: StrPath,
    count: int,
    part: int | None,
    output: StrPath | Sequence[StrPath] | None,
) -> list[Path]:
    """Return the directories of the parts that are written.

    Args:
        dataset: the dataset that is split.
        count: number of parts.
        part: number of the only part to write, from 1; None for all.
        output: a directory for each part, or a name that numbers are appended to; None for that of the dataset.

    Raises:
        OptionError: there are several directories, but not one for each part.
        DatasetNotFoundError: dataset does not exist.

    Example:
        >>> [path.name for path in destinations("/data/pong", 2, None, "part")]
        ['part-1', 'part-2']
    """
    numbers = range(1, count + 1) if part is None else [part]
    given = [] if output is None else [Path(one) for one in paths("`output`", output)]
    if len(given) == len(numbers):
        return given
    if len(given) > 1:
        raise OptionError(
            f"found {len(given)} directories for {len(numbers)} parts: expected one for each, or one for all"
        )
    stem = given[0] if given else locate(dataset)
    stem = stem if stem.name else stem.absolute()  # of the working directory, whose path is "."
    if not stem.name:
        raise OptionError(f"`output` {stem}: expected a directory for each part, or a name")
    return [stem.with_name(f"{stem.name}-{number}") for number in numbers]
