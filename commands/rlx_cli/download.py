"""``rlx download``: download runs into datasets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.api.arguments import Layout
from rlx.quantities import plural, size
from rlx_cli import completion
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    EngineOption,
    JobsOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    ShardsOption,
    SourceOption,
    StoreOption,
)
from rlx_cli.output import Output, table
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports

if TYPE_CHECKING:
    from rlx.pipeline.download import DownloadPlan


def download(
    ctx: typer.Context,
    run: Annotated[
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
    store: StoreOption = "zarr",
    codec: CodecOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
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
    (https, s3, gs, az, file) or a directory in the layout of RL Unplugged or of Dopamine's replay logs.
    """
    import rlx
    from rlx.home import home
    from rlx.pipeline.download import DownloadPlan

    output: Output = ctx.obj
    options: dict[str, Any] = {
        "source": source,
        "layout": layout,
        "shards": shards,
        "store": store,
        "codec": codec,
        "jobs": jobs,
        "engine": engine,
        "ray_address": ray_address,
        "keep_source": keep_source,
        "overwrite": overwrite,
    }
    places = [out if out is not None and len(run) == 1 else (out or home()) / one for one in run]
    if dry_run:
        plans = [
            rlx.download(one, output=place, **options, dry_run=True) for one, place in zip(run, places, strict=True)
        ]
        _show_plan(output, DownloadPlan([file for plan in plans for file in plan.files]))
        return
    reports = []
    for one, place in zip(run, places, strict=True):
        with resumable(place), showing(output, f"download {one}") as progress:
            reports.append(rlx.download(one, output=place, **options, progress=progress))
    show_reports(output, reports, as_list=len(run) > 1)


def _show_plan(output: Output, plan: "DownloadPlan") -> None:
    rows = [
        (file.state, "-" if file.bytes is None else size(file.bytes), file.crc32c or "-", file.url)
        for file in plan.files
    ]
    shown = table(["state", ">size", "crc32c", "file"], rows)
    output.show(plan.to_json(), shown, f"{plural(len(plan.files), 'file')}, {size(plan.bytes)}")
