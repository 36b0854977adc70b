"""``rlx merge``: several datasets as one."""

from pathlib import Path
from typing import Annotated

import typer

from rlx_cli import completion
from rlx_cli.lineage import command_line
from rlx_cli.options import CodecOption, DebugOption, JobsOption, JsonOption, OverwriteOption, QuietOption, Store
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports
from rlx_cli.writing import write_options


def merge(
    ctx: typer.Context,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET",
            help="Paths or ids of the datasets, in the order wanted.",
            autocompletion=completion.datasets,
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The new dataset's directory.")],
    store: Annotated[
        Store | None, typer.Option("--to", help="How shards are stored.", show_default="as the datasets are")
    ] = None,
    codec: CodecOption = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Put the shards of several datasets into one.

    \b
    Examples:
      rlx merge Pong/1 Pong/2 Pong/3 -o pong
      rlx merge monday tuesday -o week --codec zstd-dict --json

    Shards are hard-linked where the file system can do that, so that they take no room twice, and copied elsewhere.
    With --to or --codec, those of another store or codec are encoded anew. Episodes keep their numbers.
    """
    from rlx.home import locate
    from rlx.pipeline.merge import merge as merge_datasets

    output: Output = ctx.obj
    command = command_line("merge", datasets, {"to": store, "codec": codec})
    options = write_options(
        store=store or Store.ZARR, codec=codec, shards=None, jobs=jobs, overwrite=overwrite, command=command
    )
    encode = store is not None or codec is not None
    with resumable(out), showing(output, "merge") as progress:
        report = merge_datasets([locate(one) for one in datasets], out, options, encode=encode, progress=progress)
    show_reports(output, [report], as_list=False)
