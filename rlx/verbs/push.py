"""``rlx.push``: a dataset to a location."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, Unpack, overload

from rlx.errors import OptionError
from rlx.files.disk import file_error, opened_file
from rlx.files.urls import HUB, check_path
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import StrPath
from rlx.verbs.options import JOBS, Argument, DatasetArgument, Option, TransfersOption, check

if TYPE_CHECKING:
    from rlx.verbs.transfers import TransferPlan, TransferReport

_VERSION = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_MAX_BIBTEX = 2**20


class _PushArguments(TypedDict, total=False):
    jobs: int | None
    overwrite: bool
    private: bool
    license: str | None
    cite: StrPath | None
    version: str | None
    progress: Progress | None


@overload
def push(
    dataset: StrPath, url: StrPath, *, dry_run: Literal[False] = False, **arguments: Unpack[_PushArguments]
) -> "TransferReport": ...


@overload
def push(
    dataset: StrPath, url: StrPath, *, dry_run: Literal[True], **arguments: Unpack[_PushArguments]
) -> "TransferPlan": ...


def push(
    dataset: DatasetArgument,
    url: Annotated[StrPath, Argument("Location: s3://, gs://, az://, hf:// or a directory.", metavar="URL")],
    *,
    jobs: TransfersOption = None,
    overwrite: Annotated[bool, Option("Send all files again, replacing the dataset at URL.")] = False,
    private: Annotated[bool, Option("Make a new repository on the hub private.")] = False,
    license: Annotated[str | None, Option("Licence for the card on the hub, such as cc-by-4.0.", metavar="ID")] = None,
    cite: Annotated[StrPath | None, Option("BibTeX file for the card on the hub.", metavar="FILE")] = None,
    version: Annotated[
        str | None, Option("Name of this state of the dataset, such as v2; a tag on the hub.", metavar="NAME")
    ] = None,
    dry_run: Annotated[bool, Option("List the files that would be sent; send nothing.")] = False,
    progress: Progress | None = None,
) -> "TransferReport | TransferPlan":
    """Copy a dataset to a bucket or the Hugging Face hub; call it again to resume.

    Sends only missing or changed files, and the manifest last, so that a partial push never looks complete. A push to
    the hub is one commit, and writes a dataset card with plots, the trajectories as CSV, and ``croissant.json``
    (https://mlcommons.org/croissant); a card that somebody else has written is kept.

    Args:
        dataset: the dataset's directory, or its id below ``$RLX_HOME``.
        url: ``s3://``, ``gs://``, ``az://``, ``hf://datasets/ORG/NAME[@BRANCH][/PATH]``, ``file://`` or a directory.
        jobs: concurrent transfers; 8 by default.
        overwrite: send all files again, replacing the dataset at url.
        private: make a new repository of the hub private.
        license: licence of the data for the card on the hub, such as ``cc-by-4.0``; none is stated by default.
        cite: BibTeX file for the card on the hub, in addition to the papers that rlx knows.
        version: name of this state of the dataset, such as ``v2``: noted in the manifest, locally and at url, and on
            the hub a tag, which is read as ``hf://datasets/ORG/NAME@v2``.
        dry_run: return the files that would be sent; write nothing.
        progress: reports ``bytes``.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        IncompleteDatasetError: another process is writing the dataset.
        CorruptDatasetError: a file of the dataset is damaged.
        DatasetExistsError: url holds another dataset, or another state of it with that version.
        DatasetLockedError: another dataset is being pushed to url.
        ForbiddenError: the server refuses access.
        PartialError: some files could not be sent; call it again to resume.
        OptionError: jobs is below 1, version is invalid or the name of a branch, or private, license or cite is given
            without a URL of the hub.
        FileAccessError: cite cannot be read.
        MissingExtraError: obstore, or for the hub huggingface_hub, is not installed.

    Example:
        >>> rlx.push("cartpole", "bucket").steps  # a directory, or the URL of a bucket
        1000
    """
    check(push, locals())
    url = os.fspath(check_path("url", url, "a path or a URL"))
    for name, given in (("private", private), ("license", license), ("cite", cite)):
        if given and not url.startswith(HUB):
            raise OptionError(f"`{name}` requires {HUB}ORG/NAME, found {url}")
    if version is not None and not _VERSION.fullmatch(version):
        raise OptionError(f"`version` {version!r}: expected letters, digits, '.', '_' and '-', such as v2")
    from rlx.verbs import sending

    if dry_run:
        return sending.plan(dataset, url, overwrite=overwrite)
    return sending.send(
        dataset,
        url,
        jobs=jobs or JOBS,
        overwrite=overwrite,
        private=private or None,
        license=license,
        citation=None if cite is None else _bibtex(Path(check_path("`cite`", cite, "a file"))),
        version=version,
        progress=receiver(progress),
    )


def _bibtex(path: Path) -> str:
    try:
        with opened_file(path) as file:
            text = file.read(_MAX_BIBTEX).decode()
    except OSError as exc:
        raise file_error(exc, path) from exc
    except UnicodeDecodeError:
        text = ""
    if not text.lstrip().startswith("@"):
        raise OptionError(f"`cite` {path} is not BibTeX: expected an entry such as @article{{...}}")
    return text
