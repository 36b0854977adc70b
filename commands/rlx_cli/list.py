"""``rlx list``: list local datasets and downloadable runs."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.quantities import number, number_ranges
from rlx_cli import completion
from rlx_cli.options import DebugOption, JsonOption, QuietOption, SourceOption
from rlx_cli.output import Output, table

if TYPE_CHECKING:
    from rich.table import Table

    from rlx.pipeline.catalog import CatalogEntry


def list_runs(
    ctx: typer.Context,
    remote: Annotated[bool, typer.Option("--remote", help="Downloadable runs only.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Datasets below $RLX_HOME only.")] = False,
    game: Annotated[
        str | None,
        typer.Option(
            "--game",
            metavar="GAME",
            help="Runs of this game only.",
            show_default=False,
            autocompletion=completion.games,
        ),
    ] = None,
    source: SourceOption = None,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """List local datasets and downloadable runs.

    \b
    Examples:
      rlx list --local
      rlx list --remote --game Pong
      rlx list --source /data/dqn --json

    With --source, lists the runs of that directory or server; otherwise uses a built-in list of RL Unplugged.
    """
    from rlx.api.transferring import each_once, here_and_there
    from rlx.formats.rl_unplugged.layout import GAMES
    from rlx.home import dataset_ids
    from rlx.suggestion import did_you_mean

    output: Output = ctx.obj
    here, there = here_and_there(remote=remote, local=local, game=game, source=source)
    parts: list[str | Table] = [_here_table(here)] if here else []
    for (base, asked), runs in groupby(there, key=lambda entry: (entry.source, entry.asked)):
        parts += [""] if parts else []
        parts += [f"at {base}" + ("" if asked else " (built-in list)"), _there_table(list(runs))]
    output.show([entry.to_json() for entry in each_once(here, there)], *parts)
    if not here and not there:
        games = {*(id.split("/")[0] for id in dataset_ids()), *GAMES}
        suggestion = did_you_mean(game, games) if game is not None and game not in games else None
        output.say("hint", suggestion or ("nothing to list" if game is None else f"nothing to list for {game}"))


def _here_table(entries: "Sequence[CatalogEntry]") -> "Table":
    rows = [
        (
            entry.id,
            _counted(entry.steps),
            f"{entry.shards:,}",
            _counted(entry.episodes),
            number(entry.mean_return),
            number(entry.mean_length),
            _counted(entry.pieces),
            entry.source,
        )
        for entry in entries
    ]
    columns = ["dataset", ">steps", ">shards", ">whole episodes", ">mean return", ">mean length", ">pieces", "path"]
    return table(columns, rows)


def _counted(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _there_table(entries: "Sequence[CatalogEntry]") -> "Table":
    """Return a table with one line for all runs of a game with the same number of shards."""
    rows = []
    for (game, shards), group in groupby(entries, key=lambda entry: (entry.game, entry.shards)):
        runs = list(group)
        rows.append((game, _numbers(runs), f"{shards:,}", _numbers([run for run in runs if run.local]) or "-"))
    return table(["game", "runs", ">shards", "here"], rows)


def _numbers(entries: "Sequence[CatalogEntry]") -> str:
    """Return the numbers of runs: ``1-5``."""
    return number_ranges(sorted(entry.run for entry in entries if entry.run is not None))
