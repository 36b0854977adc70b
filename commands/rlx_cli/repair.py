"""``rlx repair``: drop the damaged shards of a dataset."""

from typing import Annotated

import typer

from rlx.quantities import plural
from rlx_cli.exit_codes import ERROR
from rlx_cli.options import DatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import unreadable_error


def repair(
    ctx: typer.Context,
    dataset: DatasetArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete damaged shards instead of moving them to DATASET/.damaged.")
    ] = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Drop the damaged shards of a dataset and keep the others.

    \b
    Examples:
      rlx repair Pong/5
      rlx repair ./pong --delete

    Moves damaged shards to .damaged in the dataset's directory, and prints the lost
    steps and the command that restores them. Leaves shards alone that cannot be
    read, as without permission or on a failing disk, and then exits with 1.
    """
    import rlx

    output: Output = ctx.obj
    with showing(output, f"repair {dataset}") as progress:
        done = rlx.repair(dataset, delete=delete, progress=progress)
    lost = "" if done.lost_steps is None else f" ({plural(done.lost_steps, 'step')})"
    kept = f"{plural(len(done.kept), 'whole shard')} kept"
    lines = [f"{dataset}: {kept}, {len(done.dropped):,} dropped{lost}"]
    lines += [f"dropped {name}" for name in done.dropped] + [f"removed {name}" for name in done.removed]
    lines += [f"dropped files are in {done.aside}"] if done.aside else []
    output.show(done.to_json(), *lines)
    if done.hint:
        output.say("hint", done.hint)
    if done.unreadable:
        output.complain(unreadable_error(str(done.dataset), done.unreadable))
        raise typer.Exit(ERROR)
