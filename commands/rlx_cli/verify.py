"""``rlx verify``: verify the checksums of a dataset against its manifest."""

import typer

from rlx.quantities import plural, size
from rlx.secrets_in_urls import without_secrets
from rlx.suggestion import command
from rlx_cli.exit_codes import CORRUPT, ERROR
from rlx_cli.options import AnyDatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output, table
from rlx_cli.progress import showing
from rlx_cli.report import unreadable_error


def verify(
    ctx: typer.Context,
    dataset: AnyDatasetArgument,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Verify the checksums of a dataset against its manifest.

    \b
    Examples:
      rlx verify Pong/5
      rlx verify ./pong --json
      rlx verify s3://bucket/pong

    Exits with 3 if a file is damaged, with 1 if a file cannot be read. Leftovers of
    interrupted commands are counted, not reported as damage.
    """
    import rlx
    from rlx.files.urls import is_url
    from rlx.pipeline.transfers import replacement

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
        output.show(found.to_json(), f"{shown} is whole: {seen}{missing}")
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
