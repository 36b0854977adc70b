"""The command ``rlx longest``."""

from typing import Annotated

import typer

from rlx_cli.output import Output


def longest(ctx: typer.Context, dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Path or id.")]) -> None:
    """Show the length of the longest trajectory of a dataset."""
    import rlx

    output: Output = ctx.obj
    steps = int(rlx.open(dataset).trajectories.length.max())
    output.show({"steps": steps}, f"{steps:,} steps")
