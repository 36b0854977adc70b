"""``rlx download``: download runs into datasets."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.api.lineage import command_line
from rlx.quantities import plural, size
from rlx_cli import completion
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    Engine,
    EngineOption,
    JobsOption,
    JsonOption,
    Layout,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    ShardsOption,
    SourceOption,
    Store,
    StoreOption,
)
from rlx_cli.output import Output, table
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports
from rlx_cli.writing import write_options

if TYPE_CHECKING:
    from rlx.pipeline.download import PlannedFile
    from rlx.pipeline.report import Report


def download(
    ctx: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Runs as GAME/NUMBER, such as Pong/5; rlx list --remote lists them.",
            autocompletion=completion.runs,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Dataset directory; for several runs, the parent directory.",
            show_default="below $RLX_HOME",
        ),
    ] = None,
    source: SourceOption = None,
    layout: Annotated[
        Layout | None, typer.Option("--layout", help="File layout of the source.", show_default="auto-detected")
    ] = None,
    shards: ShardsOption = None,
    store: StoreOption = Store.ZARR,
    codec: CodecOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = Engine.LOCAL,
    ray_address: RayAddressOption = None,
    keep_source: Annotated[bool, typer.Option("--keep-source", help="Keep downloaded files after conversion.")] = False,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files and which of them are downloaded; download nothing.")
    ] = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Download runs into datasets; run again to resume.

    \b
    Examples:
      rlx download Pong/5
      rlx download Pong/5 --shards 0-4,49 -o pong
      rlx download Breakout/{1..5} --dry-run
      rlx download Pong/5 --source /data/dqn --layout dopamine

    The default source is RL Unplugged: 46 Atari games, five runs of 50 million steps each. --source takes a URL
    (https, gs, file) or a directory in the layout of RL Unplugged or of Dopamine's replay logs.
    """
    from rlx.home import home
    from rlx.pipeline.download import download as download_run
    from rlx.pipeline.download import plan_download

    output: Output = ctx.obj
    as_written = {"store": None if store == Store.ZARR else store, "codec": codec, "shards": shards}
    options = write_options(
        store=store,
        codec=codec,
        shards=shards,
        jobs=jobs,
        overwrite=overwrite,
        keep_source=keep_source,
        engine=engine,
        ray_address=ray_address,
    )
    files: list[PlannedFile] = []
    reports: list[Report] = []
    for run in runs:
        command = command_line("download", [run], {"source": source, "layout": layout, **as_written})
        this = replace(options, command=command)
        destination = out if out is not None and len(runs) == 1 else (out or home()) / run
        if dry_run:
            files += plan_download(run, destination, this, source=source, layout=layout)
            continue
        with resumable(destination), showing(output, f"download {run}") as progress:
            report = download_run(run, destination, this, source=source, layout=layout, progress=progress)
        reports.append(report)
    if dry_run:
        _show_plan(output, files)
    else:
        show_reports(output, reports, as_list=len(runs) > 1)


def _show_plan(output: Output, planned: "Sequence[PlannedFile]") -> None:
    total = sum(file.bytes or 0 for file in planned)
    files = [{"url": file.url, "bytes": file.bytes, "crc32c": file.crc32c, "state": file.state} for file in planned]
    rows = [
        (file.state, "-" if file.bytes is None else size(file.bytes), file.crc32c or "-", file.url) for file in planned
    ]
    output.show(
        {"files": files, "bytes": total},
        table(["state", ">size", "crc32c", "file"], rows),
        f"{plural(len(planned), 'file')}, {size(total)}",
    )
