"""``rlx merge`` and ``rlx split``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rlx.verbs.arguments import SplitUnit, Store
from rlx_cli.options import DatasetArgument, JobsOption, OverwriteOption, codec_option, complete_datasets
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports


def merge(
    ctx: typer.Context,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET",
            help="Paths or ids of datasets, in the desired order.",
            autocompletion=complete_datasets,
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory of the new dataset.")],
    to: Annotated[
        Store | None, typer.Option("--to", help="Store of the new dataset.", show_default="that of the datasets")
    ] = None,
    codec: Annotated[str | None, codec_option("that of the datasets, unless --to is given")] = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Merge several datasets into one.

    \b
    Examples:
      rlx merge Pong/1 Pong/2 Pong/3 -o pong
      rlx merge monday tuesday -o week --codec zstd-dict --json

    Shards are hard-linked where the file system supports it, and copied otherwise. --to and --codec re-encode shards
    that use another store or codec. Episodes keep their numbers, which may then repeat.
    """
    import rlx

    output: Output = ctx.obj
    with resumable(out, overwrite=overwrite), showing(output, "merge") as progress:
        report = rlx.merge(datasets, out, to=to, codec=codec, jobs=jobs, overwrite=overwrite, progress=progress)
    show_reports(output, [report], as_list=False)


def parse_fractions(text: str) -> tuple[float, ...]:
    """Return the fractions of a ``--fractions`` value.

    Example:
        >>> parse_fractions("0.9,0.1")
        (0.9, 0.1)
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r}: expected numbers such as 0.9,0.1") from exc


def split(
    ctx: typer.Context,
    dataset: DatasetArgument,
    fractions: Annotated[
        Any,
        typer.Option(
            "--fractions", parser=parse_fractions, metavar="F,F,...", help="Fraction of each part, such as 0.9,0.1."
        ),
    ],
    by: Annotated[
        SplitUnit, typer.Option("--by", help="Unit of the split: trajectories, or whole shards.")
    ] = "trajectory",
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Random seed for the split.")] = 0,
    part: Annotated[
        int | None,
        typer.Option("--part", min=1, metavar="N", help="Number of the only part to write.", show_default="all"),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory of each part, or one name that -1, -2, ... are appended to.",
            show_default="DATASET-1, DATASET-2, ...",
        ),
    ] = None,
    jobs: JobsOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Split the trajectories of a dataset into several datasets.

    \b
    Examples:
      rlx split Pong/5 --fractions 0.9,0.1 -o pong-train -o pong-test
      rlx split pong --fractions 0.8,0.1,0.1 --by shard --seed 1

    Every trajectory goes to one part, determined by the seed and the fractions alone. If the fractions sum to less
    than 1, the remaining fraction is dropped. Shards that go whole to one part, as with --by shard, are
    hard-linked.
    """
    import rlx
    from rlx.verbs.merging import destinations

    output: Output = ctx.obj
    first, *_ = destinations(dataset, len(fractions), part, out)
    with resumable(first, overwrite=overwrite), showing(output, f"split {dataset}") as progress:
        reports = rlx.split(
            dataset,
            fractions,
            by=by,
            seed=seed,
            part=part,
            output=out,
            jobs=jobs,
            overwrite=overwrite,
            progress=progress,
        )
    show_reports(output, reports, as_list=part is None)
