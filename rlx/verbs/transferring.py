"""``rlx.list_runs``, ``rlx.download``, ``rlx.push`` and ``rlx.pull``."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypedDict, Unpack, overload

from rlx.errors import OptionError
from rlx.files.disk import file_error, opened_file
from rlx.files.urls import HUB, check_path
from rlx.home import home
from rlx.progress import Progress, receiver
from rlx.store.codec import Codec
from rlx.verbs.arguments import (
    Engine,
    Layout,
    OnError,
    Store,
    StrPath,
    WriteArguments,
    check_choice,
    check_exclusive,
    check_number,
    check_text,
    chosen_codec,
    command_line,
    shard_numbers,
    write_options,
)
from rlx.verbs.catalog import CatalogEntry, local_runs, remote_runs
from rlx.verbs.download import DownloadPlan, download_hosted, plan_download, plan_hosted
from rlx.verbs.download import download as download_run
from rlx.verbs.hosted_datasets import hosted
from rlx.verbs.pull import plan_pull
from rlx.verbs.pull import pull as pull_dataset
from rlx.verbs.push import plan_push
from rlx.verbs.push import push as push_dataset
from rlx.verbs.report import Report
from rlx.verbs.sources import SourceStatus, configured_bases, probe
from rlx.verbs.transfers import JOBS, TransferPlan, TransferReport

_PROBED_GAME = "Pong"
_VERSION = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
_MAX_BIBTEX = 2**20


class _ListArguments(TypedDict, total=False):
    remote: bool
    local: bool
    game: str | None
    source: str | None
    search: str | None


@overload
def list_runs(
    url: StrPath | None = None, *, sources: Literal[False] = False, **arguments: Unpack[_ListArguments]
) -> list[CatalogEntry]: ...


@overload
def list_runs(
    url: StrPath | None = None, *, sources: Literal[True], **arguments: Unpack[_ListArguments]
) -> list[SourceStatus]: ...


def list_runs(
    url: StrPath | None = None,
    *,
    remote: bool = False,
    local: bool = False,
    game: str | None = None,
    source: str | None = None,
    search: str | None = None,
    sources: bool = False,
) -> list[CatalogEntry] | list[SourceStatus]:
    """List local datasets and downloadable runs; a run that is both is listed once, as the local dataset.

    Args:
        url: URL or directory to list instead, with rlx's datasets in the directory; of ``hf://datasets/ORG[/NAME]``,
            the datasets that rlx has pushed there.
        remote: downloadable runs only.
        local: datasets below ``$RLX_HOME`` only.
        game: runs of this game only, case-insensitive.
        source: URL or directory to list after the local datasets; or ``minari``, ``lerobot`` or ``hf`` (the whole hub);
            by default ``rlu``, rlx's built-in list of RL Unplugged.
        search: only names with this text, case-insensitive.
        sources: list the bases that runs are downloaded from instead, each with its answer for run 1 of game,
            Pong by default; ``$RLX_SOURCES`` or ``~/.config/rlx/sources.toml`` configures them.

    Raises:
        OptionError: arguments conflict, or the configured list of sources is invalid.
        SourceNotFoundError: the directory does not exist.
        ForbiddenError: the server refuses all requests.
        DownloadError: the server does not answer.

    Example:
        >>> [run.id for run in rlx.list_runs(remote=True, game="Pong")]  # doctest: +SKIP
        ['Pong/1', 'Pong/2', 'Pong/3', 'Pong/4', 'Pong/5']
    """
    for name, text in (("game", game), ("source", source), ("search", search)):
        check_text(name, text)
    if sources:
        if remote or local or (url, source, search) != (None, None, None):
            raise OptionError("`sources` can only be combined with `game`")
        return probe(configured_bases(), f"{game or _PROBED_GAME}/1")
    return each_once(*here_and_there(url, remote=remote, local=local, game=game, source=source, search=search))


class _DownloadArguments(WriteArguments, total=False):
    output: StrPath | None
    source: StrPath | None
    layout: Layout | None
    shards: Iterable[int] | None
    store: Store
    jobs: int | None
    keep_source: bool
    on_error: OnError


@overload
def download(run: str, *, dry_run: Literal[False] = False, **arguments: Unpack[_DownloadArguments]) -> Report: ...


@overload
def download(run: str, *, dry_run: Literal[True], **arguments: Unpack[_DownloadArguments]) -> DownloadPlan: ...


def download(
    run: str,
    *,
    output: StrPath | None = None,
    source: StrPath | None = None,
    layout: Layout | None = None,
    shards: Iterable[int] | None = None,
    store: Store = "zarr",
    codec: str | Codec | None = None,
    jobs: int | None = None,
    engine: Engine = "local",
    ray_address: str | None = None,
    keep_source: bool = False,
    on_error: OnError = "stop",
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Report | DownloadPlan:
    """Download a run into a dataset; call it again to resume.

    Args:
        run: game and number, such as ``Pong/5``; or a dataset of another project on the Hugging Face hub:
            ``minari:D4RL/door/human-v2``, ``lerobot:pusht``, ``hf:ORG/NAME[/PATH]``, each perhaps with ``@REVISION``.
            ``rlx.list_runs(remote=True, source="minari")`` lists them.
        output: the dataset's directory; below ``$RLX_HOME`` by default.
        source: base URL or directory of the runs; by default the configured sources in order, see
            ``rlx.list_runs(sources=True)``: RL Unplugged's buckets unless there are others.
        layout: file layout of the source, ``rlu`` or ``dopamine``; auto-detected by default.
        shards: numbers of the shards to download; all by default.
        store: ``zarr`` or ``memmap``.
        codec: such as ``zstd:level=19``; ``zstd-dict`` for zarr and ``none`` for memmap by default.
        jobs: worker processes; one per core by default.
        engine: where workers run: ``local``, or ``ray`` for a Ray cluster.
        ray_address: address of the Ray cluster; ``$RAY_ADDRESS`` or a new local cluster by default.
        keep_source: keep downloaded files after conversion; those of the hub always stay in its own cache.
        on_error: what an episode that cannot be read does: ``stop``, or ``skip`` to leave it out, name it and take the
            others, as for ``rlx.convert``; in Dopamine's layout, a shard that cannot be read from any source.
        overwrite: start afresh; an existing dataset stays until the new one is complete.
        dry_run: list the files and which of them would be downloaded; download nothing.
        progress: reports ``bytes``, ``shards`` and ``steps``.

    Returns:
        The dataset as far as it was downloaded; ``failed_shards`` names the shards that could not be fetched or were
        damaged, and ``raise_for_failures()`` raises their error. With dry_run, the plan.

    Raises:
        SourceNotFoundError: the source has no such run or shard.
        ForbiddenError: the server refuses access.
        DownloadError: the server does not answer.
        DatasetExistsError: output exists and is not this dataset.
        DatasetLockedError: another process is writing output.
        DiskFullError: the disk has too little space.
        OptionError, CodecError: an argument is unknown or conflicts with another.
        EngineError: the Ray cluster cannot be joined, or its workers cannot run rlx.
        PartialError: a worker process died; call it again to resume.

    Example:
        >>> report = rlx.download("Pong/5", source="dqn", shards=[0, 1])
        >>> report.shards, report.steps, report.failed_shards
        (2, 1471, [])
        >>> rlx.download("Pong/5", source="dqn", dry_run=True).bytes
        566193
    """
    if not isinstance(run, str):
        raise OptionError(f"run {run!r}: expected a text such as Pong/5", hint="call download once for each run")
    check_choice("layout", layout, Layout)
    if not isinstance(source, str | os.PathLike | None):
        raise OptionError(f"`source` {source!r}: expected a URL or a directory")
    base = None if source is None else os.fspath(source)
    chosen = {
        "source": base,
        "layout": layout,
        "store": None if store == "zarr" else store,
        "codec": chosen_codec(codec),
        "shards": shard_numbers(shards),
        "on_error": None if on_error == "stop" else on_error,
    }
    other = hosted(run)
    if other is not None:
        for name, given in (("source", source), ("layout", layout)):
            if given is not None:
                raise OptionError(f"`{name}` requires a run GAME/NUMBER, found {run}")
    if output is not None:
        check_path("`output`", output, "a directory")
    options = write_options(
        store=store,
        codec=codec,
        shards=shards,
        jobs=jobs,
        overwrite=overwrite,
        keep_source=keep_source,
        engine=engine,
        ray_address=ray_address,
        command=command_line("download", [run], chosen),
        on_error=on_error,
    )
    if other is not None:
        place = None if output is None else Path(output)
        if dry_run:
            return DownloadPlan(plan_hosted(other, place))
        return download_hosted(other, place, options, progress=receiver(progress))
    destination = home() / run if output is None else Path(output)
    if dry_run:
        return DownloadPlan(plan_download(run, destination, options, source=base, layout=layout))
    progress = receiver(progress)
    return download_run(run, destination, options, source=base, layout=layout, progress=progress)


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
) -> TransferReport: ...


@overload
def push(
    dataset: StrPath, url: StrPath, *, dry_run: Literal[True], **arguments: Unpack[_PushArguments]
) -> TransferPlan: ...


def push(
    dataset: StrPath,
    url: StrPath,
    *,
    jobs: int | None = None,
    overwrite: bool = False,
    private: bool = False,
    license: str | None = None,
    cite: StrPath | None = None,
    version: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> TransferReport | TransferPlan:
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
    check_number("jobs", jobs, 1)
    url = os.fspath(check_path("url", url, "a path or a URL"))
    for name, given in (("private", private), ("license", license), ("cite", cite)):
        if given and not url.startswith(HUB):
            raise OptionError(f"`{name}` requires {HUB}ORG/NAME, found {url}")
    if version is not None and not _VERSION.fullmatch(version):
        raise OptionError(f"`version` {version!r}: expected letters, digits, '.', '_' and '-', such as v2")
    if dry_run:
        return plan_push(dataset, url, overwrite=overwrite)
    return push_dataset(
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


class _PullArguments(TypedDict, total=False):
    jobs: int | None
    overwrite: bool
    progress: Progress | None


@overload
def pull(
    url: StrPath, output: StrPath | None = None, *, dry_run: Literal[False] = False, **arguments: Unpack[_PullArguments]
) -> TransferReport: ...


@overload
def pull(
    url: StrPath, output: StrPath | None = None, *, dry_run: Literal[True], **arguments: Unpack[_PullArguments]
) -> TransferPlan: ...


def pull(
    url: StrPath,
    output: StrPath | None = None,
    *,
    jobs: int | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> TransferReport | TransferPlan:
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
    check_number("jobs", jobs, 1)
    url = os.fspath(check_path("url", url))
    path = None if output is None else Path(check_path("`output`", output, "a directory"))
    if dry_run:
        return plan_pull(url, path, overwrite=overwrite)
    return pull_dataset(url, path, jobs=jobs or JOBS, overwrite=overwrite, progress=receiver(progress))


def here_and_there(
    url: StrPath | None, *, remote: bool, local: bool, game: str | None, source: str | None, search: str | None
) -> tuple[list[CatalogEntry], list[CatalogEntry]]:
    """Return the local datasets, and the downloadable runs; see ``list_runs``."""
    check_exclusive(("remote", remote or None), ("local", local or None))
    if url is not None:
        if local or source is not None:
            raise OptionError(f"{url}: a location excludes `local` and `source`")
        remote, source = True, str(check_path("url", url, "a path or a URL"))
    here = [] if remote else [entry for entry in local_runs() if entry.is_of(game, search)]
    return here, [] if local else remote_runs(source, game, search)


def each_once(here: Sequence[CatalogEntry], there: Sequence[CatalogEntry]) -> list[CatalogEntry]:
    """Return local datasets, and those downloadable runs that are not among them."""
    names = {entry.id for entry in here}
    return [*here, *(run for run in there if run.id not in names)]
