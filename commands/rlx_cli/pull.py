"""``rlx pull``: a dataset out of a bucket."""

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
        typer.Option(
            "--output", "-o", metavar="DIR", help="The dataset's directory.", show_default="its id below $RLX_HOME"
        ),
    ] = None,
    jobs: TransfersOption = None,
    overwrite: OverwriteOption = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Copy a dataset from a bucket. Run again, it goes on where it stopped.

    \b
    Examples:
      rlx pull s3://bucket/pong
      rlx pull https://example.org/data/pong -o pong
      rlx pull gs://bucket/pong --jobs 16

    Every file is checked on its way. Public data need no credentials; others take them from the environment, as
    each cloud's own tools do. Needs rlx[cloud]. To read a few steps, rlx sample URL copies nothing.
    """
    from rlx.pipeline.pull import pull as pull_dataset
    from rlx.pipeline.transfers import JOBS

    output: Output = ctx.obj
    with interruptible("what arrived is kept"), showing(output, f"pull {url}") as progress:
        report = pull_dataset(url, out, jobs=jobs or JOBS, overwrite=overwrite, progress=progress)
    show_transfer(output, report, "fetched")
