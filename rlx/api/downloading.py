"""``rlx.download``."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, overload

from rlx.api.arguments import (
    Engine,
    Layout,
    Store,
    StrPath,
    check_choice,
    chosen_codec,
    shard_numbers,
    write_options,
)
from rlx.api.lineage import command_line
from rlx.home import home
from rlx.pipeline.download import DownloadPlan, plan_download
from rlx.pipeline.download import download as download_run
from rlx.pipeline.report import Report
from rlx.progress import Progress, Silent
from rlx.store.codec import Codec


@overload
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
    overwrite: bool = False,
    dry_run: Literal[False] = False,
    progress: Progress | None = None,
) -> Report: ...


@overload
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
    overwrite: bool = False,
    dry_run: Literal[True],
    progress: Progress | None = None,
) -> DownloadPlan: ...


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
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Report | DownloadPlan:
    """Download a run into a dataset; call it again to resume.

    Args:
        run: game and number, such as ``Pong/5``; ``rlx.list_runs(remote=True)`` lists them.
        output: the dataset's directory; below ``$RLX_HOME`` by default.
        source: base URL or directory of the runs; RL Unplugged's bucket by default.
        layout: file layout of the source, ``rlu`` or ``dopamine``; auto-detected by default.
        shards: numbers of the shards to download; all by default.
        store: ``zarr`` or ``memmap``.
        codec: such as ``zstd:level=19``; ``zstd-dict`` for zarr and ``none`` for memmap by default.
        jobs: worker processes; one per core by default.
        engine: where workers run: ``local``, or ``ray`` for a Ray cluster.
        ray_address: address of the Ray cluster; ``$RAY_ADDRESS`` or a new local cluster by default.
        keep_source: keep downloaded files after conversion.
        overwrite: start afresh instead of resuming.
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
        OptionError, CodecError: an argument is unknown or does not go with another.
        PartialError: a worker process died; call it again to resume.

    Example:
        >>> report = rlx.download("Pong/5", source="dqn", shards=[0, 1])
        >>> report.shards, report.steps, report.failed_shards
        (2, 1471, [])
        >>> rlx.download("Pong/5", source="dqn", dry_run=True).bytes
        566193
    """
    check_choice("layout", layout, Layout)
    base = None if source is None else os.fspath(source)
    chosen = {
        "source": base,
        "layout": layout,
        "store": None if store == "zarr" else store,
        "codec": chosen_codec(codec),
        "shards": shard_numbers(shards),
    }
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
    )
    destination = home() / run if output is None else Path(output)
    if dry_run:
        return DownloadPlan(plan_download(run, destination, options, source=base, layout=layout))
    progress = progress or Silent()
    return download_run(run, destination, options, source=base, layout=layout, progress=progress)
