"""``rlx doctor``: check the contents of a dataset, or of another project's files, for errors that mislead a learner."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.api.lineage import command_line
from rlx.quantities import plural
from rlx.secrets_in_urls import without_secrets
from rlx_cli import completion
from rlx_cli.exit_codes import CORRUPT, UsageError
from rlx_cli.options import DebugOption, FromOption, JsonOption, QuietOption
from rlx_cli.output import Output, table
from rlx_cli.progress import showing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from rlx.checks.finding import Finding
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
    destination: Annotated[
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
    from rlx.pipeline.doctor import doctor as check

    output: Output = ctx.obj
    if fix != (destination is not None):
        raise UsageError("--fix and -o require each other", hint="rlx doctor DATASET --fix -o DIR")
    shown = without_secrets(dataset)
    with showing(output, f"doctor {shown}") as progress:
        checkup = check(dataset, source_format=from_, against=against or (), sample=sample, progress=progress)
    document = checkup.to_json()
    parts = [_summary(shown, checkup, document)]
    if destination is not None:
        command = command_line("doctor", [dataset], {"against": against, "fix": True})
        document["fixed"] = _fix(output, dataset, checkup, destination, command)
        left_out, kept = document["fixed"]["left_out"], document["fixed"]["trajectories"]
        parts.append(f"{destination} keeps {plural(kept, 'trajectory')} and leaves out {left_out:,}")
    findings = checkup.examination.findings
    shown_findings: list[str | Table] = [_table(findings), *_advice(findings), ""] if findings else []
    output.show(document, *shown_findings, *parts)
    if not checkup.examination.ok:
        raise typer.Exit(CORRUPT)


def _fix(output: Output, dataset: str, checkup: "Checkup", destination: Path, command: str) -> dict[str, Any]:
    from rlx.pipeline.doctor import fix
    from rlx.pipeline.options import Options

    with showing(output, f"fix {dataset}") as progress:
        report = fix(dataset, checkup, destination, Options(command=command), progress)
    left_out = len(checkup.examination.to_drop)
    return {"dataset": str(destination), "trajectories": report.trajectories, "left_out": left_out}


def _summary(shown: str, checkup: "Checkup", counts: "Mapping[str, Any]") -> str:
    found = checkup.examination
    seen = f"{plural(found.trajectories, 'trajectory')}, {plural(found.steps, 'step')}"
    if checkup.total is not None and found.trajectories < checkup.total:
        seen += f" of {plural(checkup.total, 'trajectory')}"
    said = ", ".join(plural(counts[key], key[:-1]) for key in ("errors", "warnings", "notes") if counts[key])
    return f"{shown}: {said or 'no problems'} in {seen}"


def _table(findings: "Sequence[Finding]") -> "Table":
    rows = [
        (str(one.severity), one.check, f"{one.count:,}", one.what, ", ".join(map(str, one.places[:2])) or "-")
        for one in findings
    ]
    return table(["severity", "check", ">count", "what", "first places"], rows)


def _advice(findings: "Sequence[Finding]") -> list[str]:
    return ["", *(f"{one.check}: {one.why}. To mend it: {one.remedy}." for one in findings)]
