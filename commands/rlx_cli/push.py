"""``rlx push``: copy a dataset to a bucket."""

from typing import Annotated

import typer

from rlx_cli.options import (
    DatasetArgument,
    DebugOption,
    JsonOption,
    QuietOption,
    TargetArgument,
    TransfersOption,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import interruptible, show_transfer


def push(
    ctx: typer.Context,
    dataset: DatasetArgument,
    url: TargetArgument,
    jobs: TransfersOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Send all files again, replacing the dataset at URL.")
    ] = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Copy a dataset to a bucket; run again to resume.

    \b
    Examples:
      rlx push Pong/5 s3://bucket/pong
      rlx push ./pong gs://bucket/pong --jobs 16
      rlx push Pong/5 /mnt/share/pong

    Sends only missing or changed files, and the manifest last, so that a partial push never looks complete. Server and
    credentials come from the environment variables of each cloud's own tools, such as AWS_ENDPOINT_URL and
    AWS_ACCESS_KEY_ID. URLs need rlx[cloud]; directories do not.
    """
    import rlx

    output: Output = ctx.obj
    with interruptible(f"files sent so far stay at {url}, unlisted"), showing(output, f"push {dataset}") as progress:
        report = rlx.push(dataset, url, jobs=jobs, overwrite=overwrite, progress=progress)
    show_transfer(output, report, "sent")
