"""``rlx repair``: drop the damaged shards of a dataset."""

from dataclasses import asdict
from typing import Annotated

import typer

from rlx.quantities import plural
from rlx_cli.exit_codes import ERROR
from rlx_cli.lineage import with_destination
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
    from rlx.home import locate
    from rlx.store.repair import repair as repair_dataset

    output: Output = ctx.obj
    path = locate(dataset)
    with showing(output, f"repair {dataset}") as progress:
        done = repair_dataset(path, delete=delete, progress=progress)
    # Commands of a lineage leave out the destination.
    hint = done.hint
    if hint and hint.startswith("rlx "):
        hint = with_destination(hint, path)
    lost = "" if done.lost_steps is None else f" ({plural(done.lost_steps, 'step')})"
    kept = f"{plural(len(done.kept), 'whole shard')} kept"
    lines = [f"{dataset}: {kept}, {len(done.dropped):,} dropped{lost}"]
    lines += [f"dropped {name}" for name in done.dropped] + [f"removed {name}" for name in done.removed]
    lines += [f"dropped files are in {done.aside}"] if done.aside else []
    document = {
        "dataset": str(path),
        "kept": list(done.kept),
        "dropped": list(done.dropped),
        "removed": list(done.removed),
        "lost_steps": done.lost_steps,
        "hint": hint,
        "aside": None if done.aside is None else str(done.aside),
        "unreadable": [asdict(problem) for problem in done.unreadable],
    }
    output.show(document, *lines)
    if hint:
        output.say("hint", hint)
    if done.unreadable:
        output.complain(unreadable_error(str(path), done.unreadable))
        raise typer.Exit(ERROR)
