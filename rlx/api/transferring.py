"""``rlx.push`` and ``rlx.pull``."""

from pathlib import Path

from rlx.api.arguments import StrPath, check_number
from rlx.pipeline.pull import pull as pull_dataset
from rlx.pipeline.push import push as push_dataset
from rlx.pipeline.transfers import JOBS, TransferReport
from rlx.progress import Progress, Silent


def push(
    dataset: StrPath,
    url: str,
    *,
    jobs: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TransferReport:
    """Copy a dataset to a bucket; call it again to resume.

    Sends only missing or changed files, and the manifest last, so that a partial push never looks complete.

    Args:
        dataset: the dataset's directory, or its id below ``$RLX_HOME``.
        url: ``s3://``, ``gs://``, ``az://``, ``file://`` or a directory.
        jobs: concurrent transfers; 8 by default.
        overwrite: send all files again, replacing the dataset at url.
        progress: reports ``bytes``.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        IncompleteDatasetError: another process is writing the dataset.
        CorruptDatasetError: a file of the dataset is damaged.
        DatasetExistsError: url holds another dataset.
        DatasetLockedError: another dataset is being pushed to url.
        ForbiddenError: the server refuses access.
        PartialError: some files could not be sent; call it again to resume.
        OptionError: jobs is below 1.
        MissingExtraError: obstore is not installed.

    Example:
        >>> rlx.push("cartpole", "bucket").steps  # a directory, or the URL of a bucket
        1000
    """
    check_number("jobs", jobs, 1)
    return push_dataset(dataset, url, jobs=jobs or JOBS, overwrite=overwrite, progress=progress or Silent())


def pull(
    url: str,
    output: StrPath | None = None,
    *,
    jobs: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TransferReport:
    """Copy a dataset from a bucket; call it again to resume.

    Args:
        url: ``s3://``, ``gs://``, ``az://``, ``http(s)://``, ``file://`` or a directory.
        output: the dataset's directory; its id below ``$RLX_HOME`` by default.
        jobs: concurrent transfers; 8 by default.
        overwrite: start afresh instead of resuming.
        progress: reports ``bytes`` and ``shards``.

    Returns:
        The dataset as far as it was copied; ``failed_shards`` names the shards that could not be fetched or were
        damaged, ``failures`` has their errors.

    Raises:
        DatasetNotFoundError: url has no dataset.
        CorruptDatasetError: the manifest at url is damaged.
        ForbiddenError: the server refuses access.
        DatasetExistsError: output exists and is not this dataset.
        DatasetLockedError: another process is writing output.
        DiskFullError: the disk has too little space.
        OptionError: jobs is below 1.
        MissingExtraError: obstore is not installed.

    Example:
        >>> _ = rlx.push("cartpole", "bucket")  # a directory, or the URL of a bucket
        >>> rlx.pull("bucket", "copy").steps
        1000
    """
    check_number("jobs", jobs, 1)
    path = None if output is None else Path(output)
    return pull_dataset(url, path, jobs=jobs or JOBS, overwrite=overwrite, progress=progress or Silent())
