"""``rlx list``: which datasets are here, and which runs can be downloaded."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from rlx_cli.options import DebugOption, JsonOption, QuietOption, SourceOption
from rlx_cli.output import Output, table

if TYPE_CHECKING:
    from rich.table import Table

    from rlx.pipeline.catalog import CatalogEntry


def list_runs(
    ctx: typer.Context,
    remote: Annotated[bool, typer.Option("--remote", help="Only runs that can be downloaded.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Only datasets below $RLX_HOME.")] = False,
    game: Annotated[
        str | None, typer.Option("--game", metavar="GAME", help="Only this game.", show_default=False)
    ] = None,
    source: SourceOption = None,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """List the datasets that are here and the runs to download.

    \b
    Examples:
      rlx list --local
      rlx list --remote --game Pong
      rlx list --source /data/dqn --json
    """
    from rlx.pipeline.catalog import local_runs, remote_runs

    output: Output = ctx.obj
    if remote and local:
        raise typer.BadParameter("--remote and --local exclude each other")
    here = [] if remote else _of_game(local_runs(), game)
    names = {entry.id for entry in here}
    there = [] if local else [entry for entry in _of_game(remote_runs(source), game) if entry.id not in names]
    parts: list[str | Table] = []
    if here:
        parts += [_here_table(here)]
    if there:
        parts += ["", _there_table(there)] if here else [_there_table(there)]
    output.show([asdict(entry) for entry in (*here, *there)], *parts)
    if not here and not there:
        output.say("hint", "nothing to list" if game is None else f"nothing to list of {game}")


def _of_game(entries: "Sequence[CatalogEntry]", game: str | None) -> "list[CatalogEntry]":
    return [entry for entry in entries if game is None or entry.game.lower() == game.lower()]


def _here_table(entries: "Sequence[CatalogEntry]") -> "Table":
    rows = [
        (entry.id, "?" if entry.steps is None else f"{entry.steps:,}", f"{entry.shards:,}", entry.source)
        for entry in entries
    ]
    return table(["dataset", ">steps", ">shards", "path"], rows)


def _there_table(entries: "Sequence[CatalogEntry]") -> "Table":
    """One line for all runs of a game that differ in nothing but their number."""
    rows = []
    for (game, shards, source, local), runs in groupby(
        entries, key=lambda entry: (entry.game, entry.shards, entry.source, entry.local)
    ):
        names = [entry.id.removeprefix(f"{game}/") for entry in runs]
        # As a shell would take it: rlx download Pong/{1,2}
        run = f"{game}/{names[0]}" if len(names) == 1 else f"{game}/{{{','.join(names)}}}"
        rows.append((run, f"{shards:,}", "yes" if local else "", source))
    return table(["run", ">shards", "here", "source"], rows)
