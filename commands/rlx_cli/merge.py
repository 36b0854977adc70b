"""``rlx merge``: merge several datasets into one."""

from pathlib import Path
from typing import Annotated

import typer

from rlx.api.arguments import Store
from rlx_cli import completion
from rlx_cli.options import (
    DebugOption,
    JobsOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    codec_option,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports


def merge(
    ctx: typer.Context,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET",
            help="Paths or ids of datasets, in the desired order.",
            autocompletion=completion.datasets,
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory of the new dataset.")],
    to: Annotated[
        Store | None, typer.Option("--to", help="Store of the new dataset.", show_default="that of the datasets")
    ] = None,
    codec: Annotated[str | None, codec_option("that of the datasets, unless --to is given")] = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Merge several datasets into one.

    \b
    Examples:
      rlx merge Pong/1 Pong/2 Pong/3 -o pong
      rlx merge monday tuesday -o week --codec zstd-dict --json

    Shards are hard-linked where the file system supports it, and copied otherwise. --to and --codec re-encode shards
    that use another store or codec. Episodes keep their numbers.
    """
    import rlx

    output: Output = ctx.obj
    with resumable(out), showing(output, "merge") as progress:
        report = rlx.merge(datasets, out, to=to, codec=codec, jobs=jobs, overwrite=overwrite, progress=progress)
    show_reports(output, [report], as_list=False)
