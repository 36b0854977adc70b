"""``rlx repair``: a damaged dataset brought back to a whole one."""

import typer

from rlx.quantities import plural
from rlx_cli.lineage import with_destination
from rlx_cli.options import DatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output
from rlx_cli.progress import showing


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
    from rlx.home import locate
    from rlx.store.repair import repair as repair_dataset

    output: Output = ctx.obj
    path = locate(dataset)
    with showing(output, f"repair {dataset}") as progress:
        done = repair_dataset(path, progress=progress)
    # A lineage does not tell where its dataset was put.
    hint = with_destination(done.hint, path) if done.hint and done.hint.startswith("rlx ") else done.hint
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
        "hint": hint,
    }
    output.show(document, *lines)
    if hint:
        output.say("hint", hint)
