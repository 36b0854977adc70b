"""``rlx pull``: copy a dataset from a bucket."""

from pathlib import Path
from typing import Annotated

import typer

from rlx_cli.options import (
    DebugOption,
    JsonOption,
    LocationArgument,
    OverwriteOption,
    QuietOption,
    TransfersOption,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import interruptible, show_transfer


def pull(
    ctx: typer.Context,
    url: LocationArgument,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Dataset directory.", show_default="its id below $RLX_HOME"),
    ] = None,
    jobs: TransfersOption = None,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Copy a dataset from a bucket; run again to resume.

    \b
    Examples:
      rlx pull s3://bucket/pong
      rlx pull https://example.org/data/pong -o pong
      rlx pull gs://bucket/pong --jobs 16

    Verifies the checksum of every file. Credentials, which public data do not need, come from the environment
    variables of each cloud's own tools. URLs need rlx[cloud]; directories do not. To read a few steps without a copy,
    use rlx sample URL.
    """
    import rlx

    output: Output = ctx.obj
    with interruptible("received files are kept"), showing(output, f"pull {url}") as progress:
        report = rlx.pull(url, out, jobs=jobs, overwrite=overwrite, progress=progress)
    show_transfer(output, report, "fetched")
