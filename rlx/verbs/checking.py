"""``rlx.verify``, ``rlx.repair``, ``rlx.doctor`` and ``rlx.diff``: checks of the bytes and the meaning of datasets."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.home import locate
from rlx.progress import Progress, receiver
from rlx.store.dataset import Dataset
from rlx.store.repair import Repair
from rlx.store.repair import repair as repair_dataset
from rlx.store.verification import Verification
from rlx.store.verification import verify as verify_dataset
from rlx.verbs.arguments import (
    StrPath,
    check_number,
    check_source_format,
    command_line,
    paths,
    with_destination,
    write_options,
)
from rlx.verbs.diff import Comparison, compare
from rlx.verbs.doctor import Checkup
from rlx.verbs.doctor import doctor as examine
from rlx.verbs.doctor import fix as write_fixed


def verify(dataset: StrPath, *, progress: Progress | None = None) -> Verification:
    """Verify the checksums of a dataset against its manifest.

    Args:
        dataset: the dataset's directory, its id below ``$RLX_HOME``, or its URL.
        progress: reports ``bytes``.

    Returns:
        The problems found; ``ok`` is true if none was found. Damage is returned, not raised.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        IncompleteDatasetError: the dataset has no manifest yet.
        FormatVersionError: a newer rlx wrote it.
        FileAccessError: the manifest cannot be read.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.
        MissingExtraError: a URL needs obstore, which is not installed.

    Example:
        >>> rlx.verify("cartpole").ok
        True
    """
    check_path("dataset", dataset)
    return verify_dataset(dataset if isinstance(dataset, str) else Path(dataset), progress=progress)


def repair(dataset: StrPath, *, delete: bool = False, progress: Progress | None = None) -> Repair:
    """Drop the damaged shards of a dataset and keep the others.

    Args:
        dataset: the dataset's directory, or its id below ``$RLX_HOME``.
        delete: delete damaged shards instead of moving them to ``.damaged`` in the dataset's directory.
        progress: reports ``bytes``.

    Returns:
        The shards kept and dropped; ``hint`` is the command that restores the dropped ones.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        IncompleteDatasetError: the dataset has no manifest yet.
        FormatVersionError: a newer rlx wrote it.
        FileAccessError: the manifest cannot be read.
        DatasetLockedError: another process is writing the dataset.

    Example:
        >>> rlx.repair("cartpole").dropped
        []
    """
    done = repair_dataset(locate(dataset), delete=delete, progress=progress)
    if done.hint and done.hint.startswith("rlx "):  # commands of a lineage leave out the destination
        return replace(done, hint=with_destination(done.hint, done.dataset))
    return done


def doctor(
    dataset: StrPath,
    *,
    from_: str | None = None,
    against: StrPath | Sequence[StrPath] | None = None,
    sample: int | None = None,
    fix: bool = False,
    output: StrPath | None = None,
    progress: Progress | None = None,
) -> Checkup:
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
    check_source_format(from_)
    check_number("sample", sample, 1)
    if fix != (output is not None):
        raise OptionError("`fix` and `output` require each other")
    if fix and sample is not None:
        raise OptionError("`fix` checks every trajectory and excludes `sample`")
    path = os.fspath(check_path("dataset", dataset))
    if output is not None:
        check_path("`output`", output, "a directory")
        _ = Dataset(path).path  # raises unless it is a dataset on this machine, before all of it is examined
    others = [] if against is None else [os.fspath(other) for other in paths("`against`", against)]
    checkup = examine(path, source_format=from_, against=others, sample=sample, progress=progress)
    if output is None:
        return checkup
    options = write_options(command=command_line("doctor", [path], {"against": others or None, "fix": True}))
    return replace(checkup, fixed=write_fixed(path, checkup, Path(output), options, progress))


def diff(a: StrPath, b: StrPath, *, progress: Progress | None = None) -> Comparison:
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
    return compare(Dataset(a), Dataset(b), progress=receiver(progress))
