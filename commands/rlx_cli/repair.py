"""``rlx repair``: a damaged dataset brought back to a whole one."""

import typer

from rlx_cli.options import DatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.quantities import plural


def repair(
    ctx: typer.Context,
    dataset: DatasetArgument,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Drop what is broken in a dataset and keep what is whole.

    \b
    Examples:
      rlx repair Pong/5
      rlx repair ./pong --json

    It tells what was lost; the command that wrote the dataset gets it again.
    """
    from rlx.home import home, locate
    from rlx.store.repair import repair as repair_dataset

    output: Output = ctx.obj
    path = locate(dataset)
    with showing(output, f"repair {dataset}") as progress:
        done = repair_dataset(path, progress=progress)
    lost = "" if done.lost_steps is None else f" ({plural(done.lost_steps, 'step')})"
    kept = f"{plural(len(done.kept), 'whole shard')} kept"
    lines = [f"{dataset}: {kept}, {len(done.dropped):,} dropped{lost}"]
    lines += [f"dropped {name}" for name in done.dropped] + [f"removed {name}" for name in done.removed]
    document = {
        "dataset": str(path),
        "kept": list(done.kept),
        "dropped": list(done.dropped),
        "removed": list(done.removed),
        "lost_steps": done.lost_steps,
        "hint": done.hint,
    }
    output.show(document, *lines)
    if done.hint:
        output.say("hint", done.hint)
        if not path.is_relative_to(home()):
            # The lineage does not tell where a dataset was put.
            output.say("hint", f"with {path} as its destination")
