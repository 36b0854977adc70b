"""``rlx preprocess``: transform a dataset into another, with named transforms or a user's function."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.api.arguments import write_options
from rlx.api.lineage import command_line
from rlx.quantities import number, plural, shape, size
from rlx_cli import completion
from rlx_cli.exit_codes import USAGE, UsageError
from rlx_cli.options import (
    CodecOption,
    DebugOption,
    EngineOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RayAddressOption,
    StoreOption,
)
from rlx_cli.output import Output, facts, table
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlx.pipeline.preview import Preview
    from rlx.pipeline.recipe import Recipe

_FEW = 8


class Per(StrEnum):
    """The unit that a user's function is called with."""

    BLOCK = "block"
    TRAJECTORY = "trajectory"
    STEP = "step"


def preprocess(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Path of a dataset, or its id below $RLX_HOME.",
            show_default=False,
            autocompletion=completion.datasets,
        ),
    ] = "",
    destination: Annotated[
        Path | None, typer.Argument(metavar="DST", help="Directory of the new dataset.", show_default=False)
    ] = None,
    transforms: Annotated[
        list[str] | None,
        typer.Option(
            "--transform",
            metavar="NAME[:k=v,...]",
            help="Transform to apply; repeatable, applied in order.",
            autocompletion=completion.transforms,
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option("--fn", metavar="NAME", help="module:name or file.py:name of a function of steps, applied last."),
    ] = None,
    per: Annotated[Per, typer.Option("--per", help="Unit that the function is called with.")] = Per.BLOCK,
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", min=1, metavar="N", help="Maximum number of steps per block.")
    ] = 1024,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, metavar="N", help="Number of steps to read, from the first.", show_default="all"
        ),
    ] = None,
    workers: Annotated[
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
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Transform a dataset into a new one; run again to resume.

    \b
    Examples:
      rlx preprocess Pong/5 small --transform resize:height=42,width=42
      rlx preprocess Pong/5 good --transform 'filter:return > 10'
      rlx preprocess Pong/5 mine --fn change.py:change --num-workers 2
      rlx preprocess Pong/5 mine --fn change.py:change --dry-run

    Transforms: resize, crop, grayscale, to_float, normalize, clip_reward, sign_reward, scale_reward, frame_skip,
    n_step, return_to_go, select, exclude, rename, cat_tensors, relabel; filter and subsample select trajectories. A
    function takes steps as a TensorDict and returns the new ones. The result does not depend on the number of workers.
    """
    output: Output = ctx.obj
    if not source and not transforms and not function:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(USAGE)
    if not source or (destination is None and not dry_run):
        missing = "DST" if source else "SRC"
        raise UsageError(f"missing argument {missing!r}", hint="rlx preprocess --help")
    if not transforms and not function:
        raise UsageError("no transform given: expected --transform or --fn", hint="rlx preprocess --help")

    from rlx.home import locate

    recipe = _recipe(transforms or [], function, per, chunk_size, steps)
    chosen = {
        "transform": transforms,
        "fn": function,
        "per": per if function and per != Per.BLOCK else None,
        "chunk-size": chunk_size if function and per == Per.BLOCK and chunk_size != 1024 else None,
        "steps": steps,
        "store": None if store == "zarr" else store,
        "codec": codec,
    }
    command = command_line("preprocess", [source], chosen)
    options = write_options(
        store=store,
        codec=codec,
        shards=None,
        jobs=workers,
        overwrite=overwrite,
        command=command,
        engine=engine,
        ray_address=ray_address,
    )
    if dry_run or destination is None:
        from rlx.pipeline.preview import preview

        _show_preview(output, preview(locate(source), recipe, options))
        return

    from rlx.pipeline.preprocess import preprocess as preprocess_dataset

    with resumable(destination), showing(output, f"preprocess {source}") as progress:
        report = preprocess_dataset(locate(source), destination, recipe, options, progress=progress)
    show_reports(output, [report], as_list=False)


def _recipe(transforms: "list[str]", function: str | None, per: Per, chunk_size: int, steps: int | None) -> "Recipe":
    from rlx.errors import TransformError
    from rlx.pipeline.recipe import Recipe
    from rlx.transform.code import Code
    from rlx.transform.function import Function
    from rlx.transform.function import Per as LibraryPer
    from rlx.transform.registry import parse

    try:
        changes: list[Any] = [parse(text) for text in transforms]
        if function is not None:
            changes.append(Function(Code.named(function), LibraryPer(per), chunk_size))
        return Recipe(changes, steps)
    except TransformError as exc:
        # Only the command line was parsed so far, so this is a usage error.
        raise UsageError(str(exc), hint=exc.hint or "rlx preprocess --help") from exc


def _show_preview(output: Output, preview: "Preview") -> None:
    fields = preview.schema.to_json()
    for name, values in preview.first.items():
        fields[name] |= _values(values)
    document = {
        "steps_read": preview.steps_read,
        "steps": preview.steps,
        "bytes": preview.bytes,
        "shards": preview.shards,
        "step": fields,
    }
    rows = [
        (name, field["role"], field["dtype"], shape(field["shape"]), _told(preview.first.get(name)))
        for name, field in fields.items()
    ]
    named = [
        ("read", plural(preview.steps_read, "step")),
        ("written", f"about {plural(preview.steps, 'step')} in {plural(preview.shards, 'shard')}"),
        ("size", f"about {size(preview.bytes)}"),
    ]
    output.show(document, facts(named), "", table(["field", "role", "dtype", "shape", "first step"], rows))


def _values(values: "NDArray[np.generic]") -> dict[str, Any]:
    if values.size <= _FEW:
        return {"value": [_finite(value) for value in values.ravel().tolist()]}
    return {"min": _finite(values.min().item()), "max": _finite(values.max().item())}


def _finite(value: Any) -> Any:
    return value if value - value == 0 else None


def _told(values: "NDArray[np.generic] | None") -> str:
    if values is None:
        return ""
    if values.size <= _FEW:
        return " ".join(str(value) if isinstance(value, bool) else number(value) for value in values.ravel().tolist())
    return f"{number(values.min().item())} to {number(values.max().item())}"
