"""``rlx list``, ``rlx download``, ``rlx push`` and ``rlx pull``: datasets from and to other places."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import rlx
from rlx.wording import duration, number, number_ranges, plural, size
from rlx_cli.output import Output, Part, table
from rlx_cli.progress import showing
from rlx_cli.report import interruptible, resumable, show_reports, show_transfer
from rlx_cli.signature import command_of

if TYPE_CHECKING:
    from rlx.verbs.fetching import DownloadPlan
    from rlx.verbs.runs import CatalogEntry
    from rlx.verbs.transfers import TransferPlan


@command_of(rlx.list_runs)
def list_runs(ctx: typer.Context, game: str | None, sources: bool, **options: Any) -> None:
    """List local datasets and downloadable runs.

    \b
    Examples:
      rlx list --local
      rlx list --remote --game Pong
      rlx list --source /data/dqn --json
      rlx list hf://datasets/ORG
      rlx list --remote --source minari --search door
      rlx list --sources

    With a URL or a directory, lists only what is there: runs, rlx's datasets in the directory, or those that rlx has
    pushed to an organisation (hf://datasets/ORG) or into a repository (hf://datasets/ORG/NAME) of the Hugging Face hub.
    With --source, lists local datasets first; it may also be minari, lerobot or hf (the whole hub). By default,
    downloadable runs are those of a built-in list of RL Unplugged. --sources asks each base that rlx download tries, in
    order, for run 1 of --game; RLX_SOURCES or ~/.config/rlx/sources.toml configures them.
    """
    if sources:
        _show_sources(ctx.obj, game=game, **options)
        return
    from rlx.formats.rl_unplugged import GAMES
    from rlx.home import dataset_ids
    from rlx.verbs.catalog import each_once, here_and_there
    from rlx.wording import did_you_mean

    output: Output = ctx.obj
    here, there = here_and_there(game=game, **options)
    parts: list[Part] = [_here_table(here)] if here else []
    if pushed := [entry for entry in there if entry.steps is not None]:
        parts += ["", _here_table(pushed)] if parts else [_here_table(pushed)]
    if others := [entry for entry in there if entry.shards is None]:
        parts += ["", _others_table(others)] if parts else [_others_table(others)]
    runs_there = [entry for entry in there if entry.steps is None and entry.shards is not None]
    for (base, asked), runs in groupby(runs_there, key=lambda entry: (entry.source, entry.asked)):
        parts += [""] if parts else []
        parts += [f"at {base}" + ("" if asked else " (built-in list)"), _there_table(list(runs))]
    output.show([entry.to_json() for entry in each_once(here, there)] if output.json else None, *parts)
    if not here and not there:
        games = {*(id.split("/")[0] for id in dataset_ids()), *GAMES}
        suggestion = did_you_mean(game, games) if game is not None and game not in games else None
        said = "nothing to list" if game is None else f"no run or dataset of game {game}"
        output.say("hint", f"{said}; {suggestion}" if suggestion else said)


def _show_sources(output: Output, **options: Any) -> None:
    found = rlx.list_runs(**options, sources=True)
    rows = [(one.source, one.layout or "?", one.state, duration(one.seconds), one.configured) for one in found]
    shown = table(["source", "layout", "state", ">answered in", "configured by"], rows)
    said = [one.message for one in found if one.state == "unreachable" and one.message]
    output.show([one.to_json() for one in found], shown, *(["", *said] if said else []))


def _here_table(entries: "Sequence[CatalogEntry]") -> Part:
    rows = [
        (
            entry.id if entry.version is None else f"{entry.id} {entry.version}",
            _counted(entry.steps),
            _counted(entry.shards),
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


def _others_table(entries: "Sequence[CatalogEntry]") -> Part:
    rows = [(entry.id, "yes" if entry.local else "-", entry.source) for entry in entries]
    return table(["dataset", "local", "files"], rows)


def _counted(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _there_table(entries: "Sequence[CatalogEntry]") -> Part:
    """Return a table with one line for all runs of a game with the same number of shards."""
    rows = []
    for (game, shards), group in groupby(entries, key=lambda entry: (entry.game, entry.shards)):
        runs = list(group)
        rows.append((game, _numbers(runs), _counted(shards), _numbers([run for run in runs if run.local]) or "-"))
    return table(["game", "runs", ">shards", "local"], rows)


def _numbers(entries: "Sequence[CatalogEntry]") -> str:
    return number_ranges(sorted(entry.run for entry in entries if entry.run is not None))


@command_of(rlx.download)
def download(
    ctx: typer.Context,
    run: list[str],
    output: Path | None,
    overwrite: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Download runs into datasets; run again to resume.

    \b
    Examples:
      rlx download Pong/5
      rlx download Pong/5 --shards 0-4,49 -o pong
      rlx download Breakout/{1..5} --dry-run
      rlx download Pong/5 --source /data/dqn --layout dopamine
      rlx download minari:D4RL/door/human-v2 lerobot:pusht

    The default source is RL Unplugged: 46 Atari games, five runs of 50 million steps each. --source takes a URL
    (https, s3, gs, az, file) or a directory in the layout of RL Unplugged or of Dopamine's replay logs.
    """
    from rlx.home import home
    from rlx.verbs.fetching import DownloadPlan
    from rlx.verbs.hosted_datasets import hosted

    shown: Output = ctx.obj
    names = [one if (other := hosted(one)) is None else other.id for one in run]
    places = [output if output is None or len(run) == 1 else output / name for name in names]
    options["overwrite"] = overwrite
    if dry_run:
        plans = [
            rlx.download(one, output=place, **options, dry_run=True) for one, place in zip(run, places, strict=True)
        ]
        _show_plan(shown, DownloadPlan([file for plan in plans for file in plan.files]))
        return
    reports = []
    for one, name, place in zip(run, names, places, strict=True):
        with resumable(place or home() / name, overwrite=overwrite), showing(shown, f"download {one}") as progress:
            reports.append(rlx.download(one, output=place, **options, progress=progress))
    show_reports(shown, reports, as_list=len(run) > 1)


def _show_plan(output: Output, plan: "DownloadPlan") -> None:
    rows = [
        (file.state, "-" if file.bytes is None else size(file.bytes), file.crc32c or "-", file.url)
        for file in plan.files
    ]
    shown = table(["state", ">size", "crc32c", "file"], rows)
    output.show(plan.to_json(), shown, f"{plural(len(plan.files), 'file')}, {size(plan.bytes)}")


def _show_transfer_plan(output: Output, plan: "TransferPlan", verb: str) -> None:
    rows = [(file.state, size(file.bytes), file.file) for file in plan.to_transfer]
    parts = [table(["state", ">size", "file"], rows)] if rows else []
    there = len(plan.files) - len(rows)
    said = f"would {verb} {plural(len(rows), 'file')}, {size(plan.bytes)}; {plural(there, 'file')} already there"
    removed = [f"would remove {plural(len(plan.unwanted), 'file')} that the dataset lacks"] if plan.unwanted else []
    output.show(plan.to_json(), *parts, said, *removed, plan.url)


@command_of(rlx.push)
def push(ctx: typer.Context, dataset: str, url: str, dry_run: bool, **options: Any) -> None:
    """Copy a dataset to a bucket or the hub; run again to resume.

    \b
    Examples:
      rlx push Pong/5 s3://bucket/pong
      rlx push ./pong gs://bucket/pong --jobs 16
      rlx push Pong/5 /mnt/share/pong
      rlx push Pong/5 hf://datasets/ORG/pong-5 --version v2
      rlx push Pong/5 s3://bucket/pong --dry-run

    Sends only missing or changed files, and the manifest last, so that a partial push never looks complete. Server and
    credentials come from the environment variables of each cloud's own tools, such as AWS_ENDPOINT_URL and
    AWS_ACCESS_KEY_ID. A push to the hub is one commit, with a dataset card and croissant.json; its token comes from
    HF_TOKEN or hf auth login. Buckets need rlx[cloud], the hub rlx[hub], directories neither.
    """
    output: Output = ctx.obj
    if dry_run:
        _show_transfer_plan(output, rlx.push(dataset, url, **options, dry_run=True), "send")
        return
    with interruptible(f"files sent so far stay at {url}, unlisted"), showing(output, f"push {dataset}") as progress:
        report = rlx.push(dataset, url, **options, progress=progress)
    show_transfer(output, report, "sent")


@command_of(rlx.pull)
def pull(ctx: typer.Context, url: str, overwrite: bool, dry_run: bool, **options: Any) -> None:
    """Copy a dataset from a bucket or the hub; run again to resume.

    \b
    Examples:
      rlx pull s3://bucket/pong
      rlx pull https://example.org/data/pong -o pong
      rlx pull gs://bucket/pong --jobs 16
      rlx pull hf://datasets/ORG/pong-5@main

    Verifies the checksum of every file. Credentials, which public data do not need, come from the environment
    variables of each cloud's own tools. Buckets need rlx[cloud], the hub rlx[hub], directories neither. To read a few
    steps without a copy, use rlx sample URL.
    """
    output: Output = ctx.obj
    if dry_run:
        _show_transfer_plan(output, rlx.pull(url, overwrite=overwrite, **options, dry_run=True), "fetch")
        return
    kept = "the previous dataset is unchanged" if overwrite else "received files are kept"
    with interruptible(kept), showing(output, f"pull {url}") as progress:
        report = rlx.pull(url, overwrite=overwrite, **options, progress=progress)
    show_transfer(output, report, "fetched")
