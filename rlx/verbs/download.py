"""``rlx.download``: a run, or a dataset of another project on the hub, into a dataset."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack, overload

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import (
    LayoutName,
    OnError,
    Options,
    StoreName,
    StrPath,
    WriteArguments,
    chosen_codec,
    shard_numbers,
)
from rlx.verbs.options import (
    SOURCE,
    Argument,
    CodecOption,
    EngineOption,
    JobsOption,
    OnErrorOption,
    Option,
    OverwriteOption,
    RayAddressOption,
    ShardsOption,
    StoreOption,
    check,
    recorded,
)

if TYPE_CHECKING:
    from rlx.verbs.fetching import DownloadPlan
    from rlx.verbs.report import Report


def _runs() -> Iterable[str]:
    from rlx.formats.rl_unplugged import GAMES, RUNS

    return (f"{game}/{run}" for game in GAMES for run in RUNS)


class _DownloadArguments(WriteArguments, total=False):
    output: StrPath | None
    source: StrPath | None
    layout: LayoutName | None
    shards: Iterable[int] | None
    store: StoreName
    jobs: int | None
    keep_source: bool
    on_error: OnError


@overload
def download(run: str, *, dry_run: Literal[False] = False, **arguments: Unpack[_DownloadArguments]) -> "Report": ...


@overload
def download(run: str, *, dry_run: Literal[True], **arguments: Unpack[_DownloadArguments]) -> "DownloadPlan": ...


def download(
    run: Annotated[
        str,
        Argument(
            "Runs as GAME/NUMBER, such as Pong/5, or minari:ID, lerobot:ID, hf:ORG/NAME.",
            metavar="RUN",
            completes=_runs,
            is_list=True,
        ),
    ],
    *,
    output: Annotated[
        StrPath | None,
        Option(
            "Dataset directory; for several runs, the parent directory.",
            metavar="DIR",
            short="-o",
            default="below $RLX_HOME",
            recorded=False,
        ),
    ] = None,
    source: Annotated[StrPath | None, SOURCE] = None,
    layout: Annotated[LayoutName | None, Option("File layout of the source.", default="auto-detected")] = None,
    shards: ShardsOption = None,
    store: StoreOption = "zarr",
    codec: CodecOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    keep_source: Annotated[bool, Option("Keep downloaded files after conversion.", recorded=False)] = False,
    on_error: OnErrorOption = "stop",
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, Option("List the files and which of them are downloaded; download nothing.", recorded=False)
    ] = False,
    progress: Progress | None = None,
) -> "Report | DownloadPlan":
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
    given = dict(locals())
    if not isinstance(run, str):
        raise OptionError(f"run {run!r}: expected a text such as Pong/5", hint="call download once for each run")
    check(download, given)
    if not isinstance(source, str | os.PathLike | None):
        raise OptionError(f"`source` {source!r}: expected a URL or a directory")
    from rlx.home import home
    from rlx.verbs import fetching
    from rlx.verbs.hosted_datasets import hosted

    other = hosted(run)
    for name, wrong in (("source", source), ("layout", layout)):
        if other is not None and wrong is not None:
            raise OptionError(f"`{name}` requires a run GAME/NUMBER, found {run}")
    place = None if output is None else Path(check_path("`output`", output, "a directory"))
    base = None if source is None else os.fspath(source)
    options = Options(
        store=store,
        codec=chosen_codec(codec),
        shards=shard_numbers(shards),
        jobs=jobs,
        overwrite=overwrite,
        keep_source=keep_source,
        engine=engine,
        ray_address=ray_address,
        on_error=on_error,
        command=recorded(download, given, source=base, codec=chosen_codec(codec), shards=shard_numbers(shards)),
    )
    progress = receiver(progress)
    if other is not None:
        if dry_run:
            return fetching.DownloadPlan(fetching.plan_hosted(other, place))
        return fetching.download_hosted(other, place, options, progress=progress)
    destination = home() / run if place is None else place
    if dry_run:
        return fetching.DownloadPlan(fetching.plan_run(run, destination, options, source=base, layout=layout))
    return fetching.download_run(run, destination, options, source=base, layout=layout, progress=progress)
