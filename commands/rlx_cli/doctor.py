"""``rlx doctor``: check the contents of a dataset, or of another project's files, for errors that mislead a learner."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.quantities import plural
from rlx.secrets_in_urls import without_secrets
from rlx_cli import completion
from rlx_cli.exit_codes import CORRUPT
from rlx_cli.options import DebugOption, FromOption, JsonOption, QuietOption
from rlx_cli.output import Output, table
from rlx_cli.progress import showing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from rlx.checks.check import Finding
    from rlx.pipeline.doctor import Checkup


def doctor(
    ctx: typer.Context,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET|FILE",
            help="Path, id or URL of a dataset, or a path that rlx convert reads.",
            autocompletion=completion.datasets,
        ),
    ],
    from_: FromOption = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="DATASET", help="Dataset that must not share episodes with this one; repeatable."
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, metavar="N", help="Number of trajectories to check.", show_default="all"),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write a copy without the trajectories that have errors.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Directory of the fixed dataset.")
    ] = None,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Check a dataset for wrong flags, rewards, duplicates and NaN.

    \b
    Examples:
      rlx doctor Pong/5
      rlx doctor ./demos.hdf5 --from robomimic
      rlx doctor train --against test
      rlx doctor ./pong --fix -o pong-fixed

    Finds shifted rewards, wrong flags, joined or duplicate episodes, NaN, actions outside their space, black or
    repeated images, decreasing timestamps and more. Exits with 3 if it finds an error. To verify checksums, use
    rlx verify.
    """
    import rlx

    shown: Output = ctx.obj
    name = without_secrets(dataset)
    with showing(shown, f"doctor {name}") as progress:
        checkup = rlx.doctor(
            dataset, from_=from_, against=against, sample=sample, fix=fix, output=output, progress=progress
        )
    parts = [_summary(name, checkup)]
    if (copy := checkup.fixed) is not None:
        parts.append(f"{copy.dataset} keeps {plural(copy.trajectories, 'trajectory')} and leaves out {copy.left_out:,}")
    found: list[str | Table] = [_table(checkup.findings), *_advice(checkup.findings), ""] if checkup.findings else []
    shown.show(checkup.to_json(), *found, *parts)
    if not checkup.ok:
        raise typer.Exit(CORRUPT)


def _summary(name: str, checkup: "Checkup") -> str:
    seen = f"{plural(checkup.trajectories, 'trajectory')}, {plural(checkup.steps, 'step')}"
    if checkup.trajectories < checkup.of_trajectories:
        seen += f" of {plural(checkup.of_trajectories, 'trajectory')}"
    counts = {"error": checkup.errors, "warning": checkup.warnings, "note": checkup.notes}
    said = ", ".join(plural(count, word) for word, count in counts.items() if count)
    return f"{name}: {said or 'no problems'} in {seen}"


def _table(findings: "Sequence[Finding]") -> "Table":
    rows = [
        (str(one.severity), one.check, f"{one.count:,}", one.what, ", ".join(map(str, one.places[:2])) or "-")
        for one in findings
    ]
    return table(["severity", "check", ">count", "what", "first places"], rows)


def _advice(findings: "Sequence[Finding]") -> list[str]:
    return ["", *(f"{one.check}: {one.why}. To mend it: {one.remedy}." for one in findings)]
