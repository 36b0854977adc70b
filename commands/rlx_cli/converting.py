"""``rlx convert``: convert files or a dataset into a dataset, another store or codec, or another project's format."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, get_args

import typer

from rlx.api.arguments import ConvertFormat, ExportFormat
from rlx_cli import completion
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    EngineOption,
    FromOption,
    JobsOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    ShardsOption,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_export, show_reports

_FORMATS = ", ".join(get_args(ExportFormat))


def convert(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="Dataset, or files of another project.", autocompletion=completion.datasets),
    ],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New dataset or file.")],
    from_: FromOption = None,
    to: Annotated[
        ConvertFormat,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help=f"Store of a new dataset, zarr or memmap, or another project's format: {_FORMATS}.",
        ),
    ] = "zarr",
    codec: CodecOption = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            min=8,
            metavar="N",
            help="Rows per file in Dopamine's layout.",
            show_default="1,000,000, or fewer if SRC is smaller",
        ),
    ] = None,
    shards: ShardsOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Convert files or a dataset into a dataset, or another format.

    \b
    Examples:
      rlx convert replay/Pong/1 pong
      rlx convert ~/.minari/datasets/D4RL/door/human-v2 door
      rlx convert Pong/5 pong-archive --codec zstd:level=19,chunk=32
      rlx convert door door.hdf5 --to d4rl

    Run again to resume a conversion to a dataset, or to keep a finished export. An export to another project's format
    first warns of data that the format cannot hold.
    """
    import rlx
    from rlx.pipeline.report import Report

    output: Output = ctx.obj
    kept = nullcontext() if to in get_args(ExportFormat) else resumable(destination, overwrite=overwrite)
    with kept, showing(output, f"convert {source}") as progress:
        report = rlx.convert(
            source,
            destination,
            from_=from_,
            to=to,
            codec=codec,
            capacity=capacity,
            shards=shards,
            jobs=jobs,
            engine=engine,
            ray_address=ray_address,
            overwrite=overwrite,
            progress=progress,
        )
    if isinstance(report, Report):
        show_reports(output, [report], as_list=False)
    else:
        show_export(output, report)
