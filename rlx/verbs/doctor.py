"""``rlx.doctor`` and ``rlx.diff``: what is wrong with a dataset, and how two differ."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import Options, StrPath, check_source_format, paths
from rlx.verbs.options import Argument, FromOption, Option, check, dataset_names, recorded

if TYPE_CHECKING:
    from rlx.verbs.checkup import Checkup
    from rlx.verbs.comparison import Comparison


def doctor(
    dataset: Annotated[
        StrPath,
        Argument(
            "Path, id or URL of a dataset, or a path that rlx convert reads.",
            metavar="DATASET|FILE",
            completes=dataset_names,
        ),
    ],
    *,
    from_: FromOption = None,
    against: Annotated[
        StrPath | Sequence[StrPath] | None,
        Option("Dataset that must not share episodes with this one; repeatable.", metavar="DATASET", is_list=True),
    ] = None,
    sample: Annotated[int | None, Option("Number of trajectories to check.", least=1, default="all")] = None,
    fix: Annotated[bool, Option("Write a copy without the trajectories that have errors.")] = False,
    output: Annotated[
        StrPath | None, Option("Directory of the fixed dataset.", metavar="DIR", short="-o", recorded=False)
    ] = None,
    progress: Progress | None = None,
) -> "Checkup":
    """Check a dataset for wrong flags, rewards, duplicates and NaN.

    Finds shifted rewards, wrong flags, joined or duplicate episodes, NaN, actions outside their space, black or
    repeated images, decreasing timestamps and more. ``rlx.verify`` verifies checksums.

    Args:
        dataset: path, id or URL of a dataset, or a path that ``rlx.convert`` reads.
        from_: format of the files, with options if it has any; auto-detected by default.
        against: datasets that must not share episodes with this one.
        sample: number of trajectories to check; all by default.
        fix: write a copy without the trajectories that have errors.
        output: directory of the copy.
        progress: reports ``steps``, and of the copy ``bytes`` and ``shards``.

    Returns:
        The findings, errors first; ``ok`` is true if none is an error. Problems are returned, not raised.

    Raises:
        DatasetNotFoundError, SourceNotFoundError: dataset does not exist.
        CorruptDatasetError, CorruptShardError: the manifest or an index is damaged, so that nothing can be read.
        DatasetError: every trajectory has an error.
        DatasetExistsError: output exists and is not this dataset.
        OptionError: an argument is unknown or conflicts with another.

    Example:
        >>> checkup = rlx.doctor("cartpole")
        >>> checkup.ok, checkup.steps, checkup.findings
        (True, 1000, [])
    """
    given = dict(locals())
    check(doctor, given)
    check_source_format(from_)
    if fix != (output is not None):
        raise OptionError("`fix` and `output` require each other")
    if fix and sample is not None:
        raise OptionError("`fix` checks every trajectory and excludes `sample`")
    from rlx.store.dataset import Dataset
    from rlx.verbs import checkup

    path = os.fspath(check_path("dataset", dataset))
    if output is not None:
        check_path("`output`", output, "a directory")
        _ = Dataset(path).path  # raises unless it is a dataset on this machine, before all of it is examined
    others = [] if against is None else [os.fspath(other) for other in paths("`against`", against)]
    found = checkup.examined(path, source_format=from_, against=others, sample=sample, progress=receiver(progress))
    if output is None:
        return found
    options = Options(command=recorded(doctor, given, dataset=path, from_=None, against=others or None))
    return replace(found, fixed=checkup.fix(path, found, Path(output), options, receiver(progress)))


def diff(
    a: Annotated[
        StrPath,
        Argument("First dataset: path, id below $RLX_HOME, or URL.", metavar="A", completes=dataset_names),
    ],
    b: Annotated[StrPath, Argument("Second dataset.", metavar="B", completes=dataset_names)],
    *,
    progress: Progress | None = None,
) -> "Comparison":
    """Compare two datasets: manifest, lineage, trajectories and every field of every step.

    Stores, codecs and numbers of shards may differ; each is then a difference of the manifest alone. Steps are compared
    bit by bit, so equal NaN are equal. Files that have equal lengths and checksums in both manifests are not read.

    Args:
        a: the first dataset: its directory, its id below ``$RLX_HOME``, or its URL.
        b: the second dataset.
        progress: reports ``steps``.

    Returns:
        The differences, each with its part, its name, both values, and for steps and trajectories how many differ and
        the first of them; ``equal`` is true if nothing differs.

    Raises:
        DatasetNotFoundError: a dataset does not exist.
        CorruptDatasetError: a file that is read is damaged.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.

    Example:
        >>> _ = rlx.convert("cartpole", "copy", codec="zstd")
        >>> [difference.name for difference in rlx.diff("cartpole", "copy").differences]
        ['codec', 'command']
    """
    from rlx.store.dataset import Dataset
    from rlx.verbs.comparison import compare

    return compare(Dataset(a), Dataset(b), progress=receiver(progress))
