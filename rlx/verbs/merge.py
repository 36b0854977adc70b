"""``rlx.merge`` and ``rlx.split``: several datasets into one, and one into several."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.numbers import check_whole
from rlx.progress import Progress, receiver
from rlx.store.codec import Codec
from rlx.verbs.arguments import Options, SplitUnit, StoreName, StrPath, chosen_codec, numbers, paths
from rlx.verbs.options import (
    CODEC,
    STORE,
    Argument,
    DatasetArgument,
    JobsOption,
    Option,
    OverwriteOption,
    check,
    dataset_names,
    recorded,
)

if TYPE_CHECKING:
    from rlx.verbs.report import Report

_NAMED = 4  # datasets that a merged one is named after


def merge(
    datasets: Annotated[
        Iterable[StrPath],
        Argument(
            "Paths or ids of datasets, in the desired order.", metavar="DATASET", completes=dataset_names, is_list=True
        ),
    ],
    output: Annotated[StrPath, Option("Directory of the new dataset.", metavar="DIR", short="-o", recorded=False)],
    *,
    to: Annotated[StoreName | None, replace(STORE, default="that of the datasets")] = None,
    codec: Annotated[str | Codec | None, replace(CODEC, default="that of the datasets, unless --to is given")] = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
    progress: Progress | None = None,
) -> "Report":
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
    given = dict(locals())
    check(merge, given)
    options = Options(
        store=to or "zarr",
        codec=chosen_codec(codec),
        jobs=jobs,
        overwrite=overwrite,
        command=recorded(merge, given, codec=chosen_codec(codec)),
    )
    destination = Path(check_path("output", output, "a directory"))
    from rlx.home import locate
    from rlx.verbs.assembly import (
        Assembly,
        ShardPart,
        assemble,
        check_distinct,
        check_forms,
        check_schemas,
        merged_notes,
    )
    from rlx.verbs.inputs import opened_parent
    from rlx.verbs.report import check_apart

    opened = [opened_parent(locate(dataset)) for dataset in datasets]
    for dataset in opened:
        check_apart(dataset.path, destination)
    check_distinct(opened)
    check_schemas(opened)
    if to is None and codec is None:
        check_forms(opened)
        first = opened[0].manifest
        options = replace(options, store=first.store, codec=Codec.from_json(first.codec))
    ids = list(dict.fromkeys(dataset.manifest.id for dataset in opened))
    id = "+".join([*ids[:_NAMED], *([f"{len(ids) - _NAMED} more"] if len(ids) > _NAMED else [])])
    shards = [ShardPart(dataset, place) for dataset in opened for place in range(len(dataset.shard_names))]
    assembly = Assembly(id, opened[0].schema, merged_notes(opened), dict(enumerate(shards)))
    return assemble(assembly, opened, destination, options, receiver(progress))


def split(
    dataset: DatasetArgument,
    fractions: Annotated[
        Iterable[float], Option("Fraction of each part, such as 0.9,0.1.", metavar="F,F,...", recorded="always")
    ],
    *,
    by: Annotated[SplitUnit, Option("Unit of the split: trajectories, or whole shards.")] = "trajectory",
    seed: Annotated[int, Option("Random seed for the split.", least=0)] = 0,
    part: Annotated[
        int | None, Option("Number of the only part to write.", least=1, default="all", recorded=False)
    ] = None,
    output: Annotated[
        StrPath | Sequence[StrPath] | None,
        Option(
            "Directory of each part, or one name that -1, -2, ... are appended to.",
            metavar="DIR",
            short="-o",
            default="DATASET-1, DATASET-2, ...",
            is_list=True,
            recorded=False,
        ),
    ] = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
    progress: Progress | None = None,
) -> "list[Report]":
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
    fractions = numbers("fractions", fractions, float, "[0.9, 0.1]")
    given = dict(locals())
    check(split, given)
    if part is not None:
        check_whole("`part`", part, 1, len(fractions))
    command = recorded(
        split, given, dataset=os.fspath(check_path("dataset", dataset)), fractions=",".join(map(str, fractions))
    )
    from rlx.home import locate
    from rlx.verbs.assembly import Assembly, By, Division, assemble, check_places, divide
    from rlx.verbs.inputs import opened_parent

    places = destinations(dataset, len(fractions), part, output)
    division = Division(fractions, By(by), seed)
    opened = opened_parent(locate(dataset))
    check_places(opened, places)
    whole = opened.manifest
    shards = divide(opened, division)
    reports = []
    for number, place in zip(range(1, len(fractions) + 1) if part is None else [part], places, strict=True):
        options = Options(
            store=whole.store,
            codec=Codec.from_json(whole.codec),
            jobs=jobs,
            overwrite=overwrite,
            command=f"{command} --part {number}",
        )
        assembly = Assembly(f"{whole.id}-{number}", whole.schema, whole.inherited_notes, shards[number - 1])
        recipe = {"split": {"fractions": fractions, "by": by, "seed": seed, "part": number}}
        reports.append(assemble(assembly, [opened], place, options, receiver(progress), recipe))
    return reports


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
    from rlx.home import locate

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
