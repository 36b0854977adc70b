"""``rlx merge`` and ``rlx split``."""

from pathlib import Path
from typing import Any

import typer

import rlx
from rlx.verbs.merge import destinations
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_reports
from rlx_cli.signature import command_of


@command_of(rlx.merge)
def merge(ctx: typer.Context, datasets: list[str], output: Path, overwrite: bool, **options: Any) -> None:
    """Merge several datasets into one.

    \b
    Examples:
      rlx merge Pong/1 Pong/2 Pong/3 -o pong
      rlx merge monday tuesday -o week --codec zstd-dict --json

    Shards are hard-linked where the file system supports it, and copied otherwise. --to and --codec re-encode shards
    that use another store or codec. Episodes keep their numbers, which may then repeat.
    """
    shown: Output = ctx.obj
    with resumable(output, overwrite=overwrite), showing(shown, "merge") as progress:
        report = rlx.merge(datasets, output, overwrite=overwrite, **options, progress=progress)
    show_reports(shown, [report], as_list=False)


@command_of(rlx.split)
def split(
    ctx: typer.Context,
    dataset: str,
    fractions: tuple[float, ...],
    part: int | None,
    output: list[Path] | None,
    overwrite: bool,
    **options: Any,
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
    shown: Output = ctx.obj
    first, *_ = destinations(dataset, len(fractions), part, output)
    with resumable(first, overwrite=overwrite), showing(shown, f"split {dataset}") as progress:
        reports = rlx.split(
            dataset, fractions, part=part, output=output, overwrite=overwrite, **options, progress=progress
        )
    show_reports(shown, reports, as_list=part is None)
