"""``rlx preprocess``: transforms of a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import rlx
from rlx.wording import number, plural, shape, size
from rlx_cli.output import Output, facts, table
from rlx_cli.progress import showing
from rlx_cli.report import USAGE, UsageError, resumable, show_reports
from rlx_cli.signature import command_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlx.verbs.recipe import Preview


@command_of(rlx.preprocess)
def preprocess(
    ctx: typer.Context, *, source: str = "", destination: Path | None, overwrite: bool, dry_run: bool, **options: Any
) -> None:
    """Transform a dataset into a new one; run again to resume.

    \b
    Examples:
      rlx preprocess Pong/5 small --transform resize:height=42,width=42
      rlx preprocess Pong/5 good --transform 'filter:return > 10'
      rlx preprocess Pong/5 mine --fn change.py:change --num-workers 2
      rlx preprocess Pong/5 mine --fn change.py:change --dry-run

    Transforms: resize, crop, grayscale, to_float, normalize, clip_reward, sign_reward, scale_reward, frame_skip,
    n_step, return_to_go, select, exclude, rename, cat_tensors, relabel; filter, subsample and trajectories select
    trajectories. A function takes steps as a TensorDict and returns the new ones. The result does not depend on the
    number of workers.
    """
    output: Output = ctx.obj
    if not source and not options["transform"] and not options["fn"]:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(USAGE)
    if not source or (destination is None and not dry_run):
        missing = "DST" if source else "SRC"
        raise UsageError(f"missing argument {missing!r}", hint="rlx preprocess --help")
    if dry_run or destination is None:
        _show_preview(output, rlx.preprocess(source, **options, dry_run=True))
        return
    with resumable(destination, overwrite=overwrite), showing(output, f"preprocess {source}") as progress:
        report = rlx.preprocess(source, destination, overwrite=overwrite, **options, progress=progress)
    show_reports(output, [report], as_list=False)


def _show_preview(output: Output, preview: "Preview") -> None:
    rows = [
        (name, field["role"], field["dtype"], shape(field["shape"]), _value(preview.first.get(name)))
        for name, field in preview.step.items()
    ]
    named = [
        ("read", plural(preview.steps_read, "step")),
        ("written", f"about {plural(preview.steps, 'step')} in {plural(preview.shards, 'shard')}"),
        ("size", f"about {size(preview.bytes)}"),
    ]
    output.show(preview.to_json(), facts(named), "", table(["field", "role", "dtype", "shape", "first step"], rows))


def _value(values: "NDArray[np.generic] | None") -> str:
    if values is None:
        return ""
    from rlx.verbs.recipe import FEW

    if values.size <= FEW:
        return " ".join(str(value) if isinstance(value, bool) else number(value) for value in values.ravel().tolist())
    return f"{number(values.min().item())} to {number(values.max().item())}"
