"""``rlx convert``: convert files or a dataset into a dataset, another store or codec, or another project's format."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlx.api.lineage import command_line
from rlx_cli import completion
from rlx_cli.exit_codes import UsageError
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    Engine,
    EngineOption,
    Format,
    JobsOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    ShardsOption,
    known_format,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_export, show_reports
from rlx_cli.writing import write_options


class Target(StrEnum):
    """Formats that can be written: the stores of a dataset, and formats of other projects."""

    ZARR = "zarr"
    MEMMAP = "memmap"
    MINARI = "minari"
    D4RL = "d4rl"
    ROBOMIMIC = "robomimic"
    D3RLPY = "d3rlpy"
    DOPAMINE = "dopamine"
    LEROBOT = "lerobot"
    RLDS = "rlds"
    TORCHRL = "torchrl"
    PARQUET = "parquet"
    NPZ = "npz"


_STORES = (Target.ZARR, Target.MEMMAP)
_OTHERS = tuple(target for target in Target if target not in _STORES)


def convert(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="Dataset, or files of another project.", autocompletion=completion.datasets),
    ],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New dataset or file.")],
    source_format: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help=f"Format of SRC: {', '.join(Format)}; with options, torchrl:time_dim=0.",
            show_default="auto-detected",
            callback=known_format,
            autocompletion=lambda: list(Format),
        ),
    ] = None,
    target: Annotated[
        Target,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help=f"Store of a new dataset, {' or '.join(_STORES)}, or another project's format: {', '.join(_OTHERS)}.",
        ),
    ] = Target.ZARR,
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
    engine: EngineOption = Engine.LOCAL,
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
    from rlx.home import locate
    from rlx.pipeline.convert import convert as convert_run

    output: Output = ctx.obj
    if capacity is not None and target != Target.DOPAMINE:
        raise UsageError(f"--capacity requires --to dopamine, found --to {target}", hint="rlx convert --help")
    if target not in _STORES:
        if codec is not None:
            raise UsageError(f"--codec requires --to zarr or memmap, found --to {target}", hint="rlx convert --help")
        if engine != Engine.LOCAL:
            raise UsageError(
                f"--engine {engine} requires --to zarr or memmap, found --to {target}", hint="rlx convert --help"
            )
        from rlx.formats.dopamine.writer import DopamineExporter
        from rlx.pipeline.export import export

        with showing(output, f"convert {source}") as progress:
            report = export(
                locate(source),
                destination,
                target,
                source_format=source_format,
                shards=shards,
                overwrite=overwrite,
                exporter=None if capacity is None else DopamineExporter(capacity),
                progress=progress,
            )
        show_export(output, report)
        return
    command = command_line(
        "convert",
        [source],
        {"from": source_format, "to": None if target == Target.ZARR else target, "codec": codec, "shards": shards},
    )
    options = write_options(
        store=target,
        codec=codec,
        shards=shards,
        jobs=jobs,
        overwrite=overwrite,
        command=command,
        engine=engine,
        ray_address=ray_address,
    )
    with resumable(destination), showing(output, f"convert {source}") as progress:
        written = convert_run(locate(source), destination, options, source_format=source_format, progress=progress)
    show_reports(output, [written], as_list=False)
