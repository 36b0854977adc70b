"""``rlx convert``: files at hand into a dataset, or a dataset into another store or codec."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlx_cli.lineage import command_line
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    JobsOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    ShardsOption,
    Store,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports
from rlx_cli.writing import write_options


class Format(StrEnum):
    """What can be converted."""

    RLX = "rlx"
    RLU = "rlu"
    DOPAMINE = "dopamine"
    MINARI = "minari"


def convert(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory of a run's files, or a dataset.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="The new dataset's directory.")],
    source_format: Annotated[
        Format | None, typer.Option("--from", help="What SRC holds.", show_default="found out")
    ] = None,
    store: Annotated[Store, typer.Option("--to", help="How shards are stored.")] = Store.ZARR,
    codec: CodecOption = None,
    shards: ShardsOption = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Convert a directory of files, or a dataset, into a dataset.

    \b
    Examples:
      rlx convert replay/Pong/1 pong
      rlx convert ~/.minari/datasets/D4RL/door/human-v2 door
      rlx convert Pong/5 pong-memmap --to memmap
      rlx convert Pong/5 pong-archive --codec zstd:level=19,chunk=32

    The directory holds a run as Dopamine or RL Unplugged lays it out. Run again, it goes on where it stopped.
    """
    from rlx.home import locate
    from rlx.pipeline.convert import convert as convert_run

    output: Output = ctx.obj
    command = command_line(
        "convert",
        [source],
        {"from": source_format, "to": None if store == Store.ZARR else store, "codec": codec, "shards": shards},
    )
    options = write_options(store=store, codec=codec, shards=shards, jobs=jobs, overwrite=overwrite, command=command)
    with resumable(destination), showing(output, f"convert {source}") as progress:
        report = convert_run(locate(source), destination, options, source_format=source_format, progress=progress)
    show_reports(output, [report], as_list=False)
