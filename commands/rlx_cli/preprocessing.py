"""``rlx preprocess``: transforms of a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.verbs.arguments import FunctionUnit
from rlx.wording import number, plural, shape, size
from rlx_cli.options import (
    CodecOption,
    EngineOption,
    OverwriteOption,
    RayAddressOption,
    StoreOption,
    complete_datasets,
    complete_transforms,
)
from rlx_cli.output import Output, facts, table
from rlx_cli.progress import showing
from rlx_cli.report import USAGE, UsageError, resumable, show_reports

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlx.verbs.preprocess import Preview


def preprocess(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Path of a dataset, or its id below $RLX_HOME.",
            show_default=False,
            autocompletion=complete_datasets,
        ),
    ] = "",
    destination: Annotated[
        Path | None, typer.Argument(metavar="DST", help="Directory of the new dataset.", show_default=False)
    ] = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(
            "--transform",
            metavar="NAME[:k=v,...]",
            help="Transform to apply; repeatable, applied in order.",
            autocompletion=complete_transforms,
        ),
    ] = None,
    fn: Annotated[
        str | None,
        typer.Option("--fn", metavar="NAME", help="module:name or file.py:name of a function of steps, applied last."),
    ] = None,
    per: Annotated[FunctionUnit, typer.Option("--per", help="Unit that the function is called with.")] = "block",
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", min=1, metavar="N", help="Maximum number of steps per block.")
    ] = 1024,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, metavar="N", help="Number of steps to read, from the first.", show_default="all"
        ),
    ] = None,
    num_workers: Annotated[
        int | None,
        typer.Option("--num-workers", min=1, metavar="N", help="Worker processes.", show_default="one per core"),
    ] = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    store: StoreOption = "zarr",
    codec: CodecOption = None,
    overwrite: OverwriteOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first new step and the estimated size; write nothing.")
    ] = False,
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
    if not source and not transform and not fn:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(USAGE)
    if not source or (destination is None and not dry_run):
        missing = "DST" if source else "SRC"
        raise UsageError(f"missing argument {missing!r}", hint="rlx preprocess --help")
    import rlx

    options: dict[str, Any] = {
        "transform": transform,
        "fn": fn,
        "per": per,
        "chunk_size": chunk_size,
        "steps": steps,
        "num_workers": num_workers,
        "engine": engine,
        "ray_address": ray_address,
        "store": store,
        "codec": codec,
        "overwrite": overwrite,
    }
    if dry_run or destination is None:
        _show_preview(output, rlx.preprocess(source, **options, dry_run=True))
        return
    with resumable(destination, overwrite=overwrite), showing(output, f"preprocess {source}") as progress:
        report = rlx.preprocess(source, destination, **options, progress=progress)
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
    from rlx.verbs.preprocess import FEW

    if values.size <= FEW:
        return " ".join(str(value) if isinstance(value, bool) else number(value) for value in values.ravel().tolist())
    return f"{number(values.min().item())} to {number(values.max().item())}"
