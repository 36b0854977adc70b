"""``rlx.verify`` and ``rlx.repair``: the checksums of a dataset."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlx.files.urls import check_path
from rlx.progress import Progress
from rlx.verbs.arguments import with_destination
from rlx.verbs.options import AnyDatasetArgument, DatasetArgument, Option

if TYPE_CHECKING:
    from rlx.store.repair import Repair
    from rlx.store.verification import Verification


def verify(dataset: AnyDatasetArgument, *, progress: Progress | None = None) -> "Verification":
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
    from rlx.store import verification

    check_path("dataset", dataset)
    return verification.verify(dataset if isinstance(dataset, str) else Path(dataset), progress=progress)


def repair(
    dataset: DatasetArgument,
    *,
    delete: Annotated[bool, Option("Delete damaged shards instead of moving them to DATASET/.damaged.")] = False,
    progress: Progress | None = None,
) -> "Repair":
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
    from rlx.home import locate
    from rlx.store.repair import repair as repair_dataset

    done = repair_dataset(locate(dataset), delete=delete, progress=progress)
    if done.hint and done.hint.startswith("rlx "):  # commands of a lineage leave out the destination
        return replace(done, hint=with_destination(done.hint, done.dataset))
    return done
