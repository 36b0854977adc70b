"""``rlx verify``, ``rlx repair``, ``rlx doctor`` and ``rlx diff``: checks of the bytes and the meaning of datasets."""

from typing import TYPE_CHECKING, Any

import typer

import rlx
from rlx.wording import command, plural, size, without_secrets
from rlx_cli.output import Output, Part, as_options, table
from rlx_cli.progress import showing
from rlx_cli.report import CORRUPT, ERROR, unreadable_error
from rlx_cli.signature import command_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.checks.check import Finding
    from rlx.verbs.checkup import Checkup


@command_of(rlx.verify)
def verify(ctx: typer.Context, dataset: str) -> None:
    """Verify the checksums of a dataset against its manifest.

    \b
    Examples:
      rlx verify Pong/5
      rlx verify ./pong --json
      rlx verify s3://bucket/pong

    Exits with 3 if a file is damaged, and with 1 if one cannot be read. Leftovers of
    interrupted commands are counted, not reported as damage.
    """
    from rlx.files.urls import is_url
    from rlx.verbs.transfers import replacement

    output: Output = ctx.obj
    shown = without_secrets(dataset)
    with showing(output, f"verify {shown}") as progress:
        found = rlx.verify(dataset, progress=progress)
    seen = f"{plural(found.shards, 'shard')}, {plural(found.files, 'file')}, {size(found.bytes)}"
    if found.leftovers:
        left = plural(len(found.leftovers), "leftover")
        output.say("note", f"{left} of interrupted commands, not damage; the next run of the command removes them")
    if found.ok:
        missing = f"; {plural(len(found.missing_shards), 'shard')} not written yet" if found.missing_shards else ""
        output.show(found.to_json(), f"{shown} is intact: {seen}{missing}")
        return
    rows = [(problem.shard or "-", problem.file or "-", problem.problem) for problem in found.problems]
    output.show(found.to_json(), table(["shard", "file", "problem"], rows))
    if found.unreadable:
        output.complain(unreadable_error(shown, found.unreadable))
    damage = len(found.problems) - len(found.unreadable)
    if not damage:
        raise typer.Exit(ERROR)
    output.say("error", f"{shown} is damaged: {plural(damage, 'problem')} in {seen}")
    output.say("hint", replacement(dataset) if is_url(dataset) else command("rlx", "repair", dataset))
    raise typer.Exit(CORRUPT)


@command_of(rlx.repair)
def repair(ctx: typer.Context, dataset: str, **options: Any) -> None:
    """Drop the damaged shards of a dataset and keep the others.

    \b
    Examples:
      rlx repair Pong/5
      rlx repair ./pong --delete

    Moves damaged shards to .damaged in the dataset's directory, and prints the lost
    steps and the command that restores them. Keeps shards that cannot be
    read (no permission, a failing disk), and then exits with 1.
    """
    output: Output = ctx.obj
    with showing(output, f"repair {dataset}") as progress:
        done = rlx.repair(dataset, **options, progress=progress)
    lost = "" if done.lost_steps is None else f" ({plural(done.lost_steps, 'step')})"
    kept = f"kept {plural(len(done.kept), 'intact shard')}"
    lines = [f"{dataset}: {kept}, dropped {len(done.dropped):,}{lost}"]
    lines += [f"dropped {name}" for name in done.dropped] + [f"removed {name}" for name in done.removed]
    lines += [f"dropped files are in {done.aside}"] if done.aside else []
    output.show(done.to_json(), *lines)
    if done.hint:
        output.say("hint", done.hint)
    if done.unreadable:
        output.complain(unreadable_error(str(done.dataset), done.unreadable))
        raise typer.Exit(ERROR)


@command_of(rlx.doctor)
def doctor(ctx: typer.Context, dataset: str, **options: Any) -> None:
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
    shown: Output = ctx.obj
    name = without_secrets(dataset)
    with showing(shown, f"doctor {name}") as progress:
        checkup = rlx.doctor(dataset, **options, progress=progress)
    parts: list[Part] = [_summary(name, checkup)]
    if (copy := checkup.fixed) is not None:
        parts.append(f"{copy.dataset} keeps {plural(copy.trajectories, 'trajectory')} and leaves out {copy.left_out:,}")
    if checkup.findings:
        advice = [f"{one.check}: {one.why}. Fix: {as_options(one.remedy)}." for one in checkup.findings]
        parts = [_table(checkup.findings), "", *advice, "", *parts]
    shown.show(checkup.to_json(), *parts)
    if not checkup.ok:
        raise typer.Exit(CORRUPT)


def _summary(name: str, checkup: "Checkup") -> str:
    seen = f"{plural(checkup.trajectories, 'trajectory')}, {plural(checkup.steps, 'step')}"
    if checkup.trajectories < checkup.of_trajectories:
        seen += f" of {plural(checkup.of_trajectories, 'trajectory')}"
    counts = {"error": checkup.errors, "warning": checkup.warnings, "note": checkup.notes}
    said = ", ".join(plural(count, word) for word, count in counts.items() if count)
    return f"{name}: {said or 'no problems'} in {seen}"


def _table(findings: "Sequence[Finding]") -> Part:
    rows = [
        (str(one.severity), one.check, f"{one.count:,}", one.what, ", ".join(map(str, one.places[:2])) or "-")
        for one in findings
    ]
    return table(["severity", "check", ">count", "problem", "first found at"], rows)


@command_of(rlx.diff)
def diff(ctx: typer.Context, a: str, b: str) -> None:
    """Compare two datasets, down to every field of every step.

    \b
    Examples:
      rlx diff Pong/5 ./pong
      rlx diff Pong/5 hf://datasets/ORG/pong-5
      rlx diff before after --json

    Compares manifest, lineage, trajectories and steps, and exits with 1 if they differ. A different store, codec
    or number of shards counts as one difference each. Does not read files with equal lengths and checksums in both
    manifests.
    """
    output: Output = ctx.obj
    first, second = without_secrets(a), without_secrets(b)
    with showing(output, f"diff {first} {second}") as progress:
        found = rlx.diff(a, b, progress=progress)
    if found.equal:
        output.show(found.to_json(), f"{first} and {second} are equal")
        return
    rows = [
        (each.part, each.name, _of(each.count, each.first), each.a or "-", each.b or "-") for each in found.differences
    ]
    output.show(found.to_json(), table(["part", "name", ">rows (first)", first, second], rows))
    raise typer.Exit(ERROR)


def _of(count: int | None, first: int | None) -> str:
    return "-" if count is None else f"{count:,} ({first:,})"
