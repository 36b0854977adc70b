"""``rlx.pull``: a dataset from a location."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, Unpack, overload

from rlx.files.urls import check_path
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import StrPath
from rlx.verbs.options import JOBS, Argument, Option, OverwriteOption, TransfersOption, check

if TYPE_CHECKING:
    from rlx.verbs.transfers import TransferPlan, TransferReport


class _PullArguments(TypedDict, total=False):
    jobs: int | None
    overwrite: bool
    progress: Progress | None


@overload
def pull(
    url: StrPath, output: StrPath | None = None, *, dry_run: Literal[False] = False, **arguments: Unpack[_PullArguments]
) -> "TransferReport": ...


@overload
def pull(
    url: StrPath, output: StrPath | None = None, *, dry_run: Literal[True], **arguments: Unpack[_PullArguments]
) -> "TransferPlan": ...


def pull(
    url: Annotated[
        StrPath, Argument("Location: s3://, gs://, az://, hf://, http(s):// or a directory.", metavar="URL")
    ],
    output: Annotated[
        StrPath | None,
        Option("Dataset directory.", metavar="DIR", short="-o", default="its id below $RLX_HOME"),
    ] = None,
    *,
    jobs: TransfersOption = None,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[bool, Option("List the files that would be fetched; fetch nothing.")] = False,
    progress: Progress | None = None,
) -> "TransferReport | TransferPlan":
    """Copy a dataset from a bucket or the Hugging Face hub; call it again to resume.

    Args:
        url: ``s3://``, ``gs://``, ``az://``, ``hf://datasets/ORG/NAME[@REV][/PATH]``, ``http(s)://``,
            ``file://`` or a directory.
        output: the dataset's directory; its id below ``$RLX_HOME`` by default.
        jobs: concurrent transfers; 8 by default.
        overwrite: start afresh; an existing dataset stays until the new one is complete.
        dry_run: return the files that would be fetched; write nothing.
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
    check(pull, locals())
    url = os.fspath(check_path("url", url))
    path = None if output is None else Path(check_path("`output`", output, "a directory"))
    from rlx.verbs import receiving

    if dry_run:
        return receiving.plan(url, path, overwrite=overwrite)
    return receiving.receive(url, path, jobs=jobs or JOBS, overwrite=overwrite, progress=receiver(progress))
