"""``rlx.verify`` and ``rlx.repair``."""

from dataclasses import replace
from pathlib import Path

from rlx.api.arguments import StrPath
from rlx.api.lineage import with_destination
from rlx.home import locate
from rlx.progress import Progress
from rlx.store.repair import Repair
from rlx.store.repair import repair as repair_dataset
from rlx.store.verification import Verification
from rlx.store.verification import verify as verify_dataset


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
