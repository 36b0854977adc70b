"""``rlx inspect``, ``cite`` and ``view``: what a dataset holds, which papers describe it, and pictures of it."""

import math
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.api.arguments import with_destination
from rlx.errors import RlxError
from rlx.files.urls import is_url
from rlx.wording import note_in_words, number, pasteable, plural, shape, size, sparkline, without_secrets
from rlx_cli.options import AnyDatasetArgument, complete_datasets
from rlx_cli.output import Output, facts, table
from rlx_cli.progress import showing
from rlx_cli.report import UsageError
from rlx_cli.rows import JsonRows, Listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

    from rlx.store.dataset import Dataset
    from rlx.viewer.files import ViewFile

_TERMINAL_FPS = 15  # what a terminal at the other end of a line keeps up with
_FEWEST_BARS = 3
_TRAJECTORY_COLUMNS = (">trajectory", "shard", ">start", ">length", ">return", "end", "whole")


def inspect(
    ctx: typer.Context,
    dataset: AnyDatasetArgument,
    stats: Annotated[
        bool, typer.Option("--stats", help="Add statistics of returns, lengths, rewards, actions and observations.")
    ] = False,
    trajectories: Annotated[bool, typer.Option("--trajectories", help="Add a table of all trajectories.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Plot returns, lengths, rewards and actions to FILE.png."),
    ] = None,
) -> None:
    """Show what a dataset contains and where it came from.

    \b
    Examples:
      rlx inspect Pong/5
      rlx inspect Pong/5 --stats
      rlx inspect ./pong --trajectories --json
      rlx inspect Pong/5 --plot pong.png
      rlx inspect s3://bucket/pong

    Returns and lengths are of whole episodes, from a reset to the end that the environment gave; pieces of episodes
    are counted separately. Reads only the manifest, unless --trajectories needs the trajectory table, or --plot
    rewards and actions; the table of one or two local shards is always read.
    """
    import rlx

    output: Output = ctx.obj
    found = rlx.inspect(dataset, stats=stats, trajectories=trajectories, plot=plot)
    document = replace(found, trajectory=None).to_json()
    parts: list[str | Table | Listing] = [*_overview(document)]
    if found.stats is not None:
        from rlx.store.statistics import OF_ALL

        shown = found.stats
        if not document["episodes"]["pieces"]:
            shown = {name: figures for name, figures in shown.items() if name not in OF_ALL.values()}
        parts += ["", *_stats_tables(shown)]
    if (rows := found.trajectory) is not None:
        document["trajectory"] = JsonRows(rows.parts())
        parts += ["", Listing(_TRAJECTORY_COLUMNS, lambda: _trajectory_lines(rows.parts()))]
    if plot is not None:
        parts += ["", f"plots in {plot}"]
    output.show(document, *parts)


def _overview(document: dict[str, Any]) -> "list[str | Table]":
    from rlx.store.foreign_types import in_words

    ratio, raw = document["ratio"], size(document["raw_bytes"])
    smaller = f", {ratio:.1f} times smaller than raw ({raw})" if ratio and ratio > 1.05 else f", raw {raw}"
    named = [
        ("path", document["path"]),
        ("steps", f"{document['steps']:,} in {plural(document['trajectories'], 'trajectory')}"),
        ("whole", _whole(document["episodes"])),
        ("shards", _shards(len(document["shards"]), document["missing_shards"])),
        ("size", size(document["bytes"]) + smaller),
        ("store", f"{document['store']}, {document['codec']}, format version {document['format_version']}"),
    ]
    named += [("returns", text)] if (text := _returns(document)) else []
    named += [("dropped", text)] if (text := _dropped(document["shards"])) else []
    rows = [
        (name, field["role"], field["dtype"], shape(field["shape"]), in_words(field.get("space")))
        for name, field in document["schema"].items()
    ]
    parts: list[str | Table] = [
        document["id"],
        facts(named),
        "",
        table(["field", "role", "dtype", "shape", "space"], rows),
    ]
    if document["notes"]:
        parts += [
            "",
            "notes",
            facts((name.replace("_", " "), note_in_words(note)) for name, note in document["notes"].items()),
        ]
    if document["lineage"]:
        made = [
            (f"rlx {step.get('rlx', '?')}", pasteable(str(step.get("command", "")))) for step in document["lineage"]
        ]
        version, command = made[-1]
        if command and "recipe" in document["lineage"][-1]:
            # The command that makes this dataset again, ready to be pasted.
            made[-1] = (version, with_destination(command, Path(document["path"])))
        parts += ["", "lineage", facts(made)]
    return parts


def _shards(listed: int, missing: "Sequence[str]") -> str:
    if not missing:
        return f"{listed:,}"
    names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    return f"{listed:,} of {listed + len(missing):,}; missing {names}"


def _returns(document: "Mapping[str, Any]") -> str:
    """Return how the returns of whole episodes change; empty where that shows nothing."""
    values = [shard["mean_return"] for shard in document["shards"] if shard["mean_return"] is not None]
    of = "mean of each shard"
    if len(values) < _FEWEST_BARS and not is_url(document["path"]):
        from rlx.store.dataset import Dataset

        with suppress(RlxError):  # a damaged table: the manifest is shown all the same
            table = Dataset(document["path"], partial=True).trajectories
            values, of = table.returns[table.whole].tolist(), "in order of episodes"
    if len(values) < _FEWEST_BARS or not all(map(math.isfinite, values)):
        return ""
    return f"{sparkline(values)} {number(min(values))} to {number(max(values))}, {of}"


def _dropped(shards: "Sequence[Mapping[str, Any]]") -> str:
    reasons: dict[str, int] = {}
    for shard in shards:
        for reason, count in shard["dropped"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in reasons.items() if count)


def _whole(episodes: "Mapping[str, Any]") -> str:
    if episodes["whole"] is None:
        return "unknown: rlx 0.1.0 did not count whole episodes"
    said = f"{plural(episodes['whole'], 'episode')}, {plural(episodes['pieces'], 'piece')}"
    if not episodes["whole"]:
        return said
    return f"{said}; mean return {number(episodes['mean_return'])}, mean length {number(episodes['mean_length'])}"


def _stats_tables(stats: "Mapping[str, Any]") -> "list[str | Table]":
    measured = [
        (name, *(number(figures[key]) for key in ("min", "max", "mean", "std")))
        for name, figures in stats.items()
        if "counts" not in figures
    ]
    parts: list[str | Table] = [table(["", ">min", ">max", ">mean", ">std"], measured)]
    for name, figures in stats.items():
        if counts := figures.get("counts"):
            total = sum(counts.values())
            rows = [(value, f"{count:,}", f"{count / total:.1%}") for value, count in counts.items()]
            parts += ["", table([name, ">steps", ">share"], rows)]
    return parts


def _trajectory_lines(parts: "Iterable[Mapping[str, Any]]") -> "Iterator[tuple[str, ...]]":
    for part in parts:
        names = ("id", "start", "length", "return", "terminated", "truncated", "whole")
        for id, start, length, returned, terminated, truncated, whole in zip(*map(part.get, names), strict=True):
            end = "terminated" if terminated else "truncated" if truncated else "open"
            shown = (f"{start:,}", f"{length:,}", number(returned))
            yield (str(id), part["shard"], *shown, end, "yes" if whole else "-")


def cite(
    ctx: typer.Context,
    dataset: AnyDatasetArgument,
) -> None:
    """Print BibTeX of the papers that a dataset's source names.

    \b
    Examples:
      rlx cite Pong/5 >> references.bib
      rlx cite hf://datasets/ORG/pong-5 --json
    """
    import rlx

    output: Output = ctx.obj
    found = rlx.cite(dataset)
    output.show(found, *"\n\n".join(found).splitlines())
    if not found:
        output.say("hint", f"{without_secrets(dataset)} names no papers")


def view(
    ctx: typer.Context,
    dataset: AnyDatasetArgument,
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="Dataset to compare it with.", autocompletion=complete_datasets),
    ] = None,
    episode: Annotated[
        int | None,
        typer.Option("--episode", min=0, metavar="N", help="Episode to show.", show_default="best, median and worst"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file: .png, .gif, .mp4 or .html.",
            show_default="open a browser",
        ),
    ] = None,
    fps: Annotated[
        int | None,
        typer.Option(
            "--fps", min=1, max=100, metavar="N", help="Frames per second.", show_default="30; 15 with --term"
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to serve on; 0 is any free port.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the URL without opening a browser.")] = False,
    term: Annotated[bool, typer.Option("--term", help="Play the episode in this terminal.")] = False,
) -> None:
    """Show one or two datasets in a browser, or write images.

    \b
    Examples:
      rlx view Pong/5
      rlx view Pong/5 -o pong.png
      rlx view Pong/5 --episode 7 -o pong.mp4 --fps 15
      rlx view Pong/5 -o report.html
      rlx view Pong/5 --term --fps 15
      rlx view Pong/5 Pong/4

    Without -o, serves a page on 127.0.0.1 until Ctrl-C. A PNG is a contact sheet of
    the best, the median and the worst episode. An HTML file works offline and
    contains some episodes with all their frames. The page of a dataset that
    rlx collect is writing shows new episodes as they come.
    """
    import rlx
    from rlx.store.dataset import Dataset

    shown: Output = ctx.obj
    opened = Dataset(dataset, partial=output is None)
    beside = None if other is None else Dataset(other, partial=output is None)
    name = opened.manifest.id if beside is None else f"{without_secrets(dataset)} and {without_secrets(other or '')}"
    if term:
        if output is not None or other is not None:
            raise UsageError("--term shows one dataset, and excludes --output")
        _play(opened, episode, fps or _TERMINAL_FPS)
        return
    if output is not None:
        with showing(shown, f"view {output.name}") as progress:
            written = rlx.view(opened, beside, episode=episode, output=output, fps=fps, port=port, progress=progress)
        _show_file(shown, name, written)
        return
    # A browser in this terminal would not help, and a program that reads the URL has none.
    no_browser = no_browser or not sys.stdout.isatty()
    with rlx.view(opened, beside, episode=episode, fps=fps, port=port, no_browser=no_browser) as viewer:
        shown.say("hint", "Ctrl-C stops the server")
        try:
            shown.show(viewer.to_json(), f"{name}: {viewer.url}")
            sys.stdout.flush()
            viewer.wait()
        except KeyboardInterrupt:
            shown.stderr.print()


def _play(dataset: "Dataset", episode: int | None, fps: int) -> None:
    """Draw the frames of an episode over each other; Ctrl-C stops it."""
    from rlx.viewer.episode import Episode, notable
    from rlx.viewer.terminal import asked_terminal, drop_late_answer, terminal_frames

    if not sys.stdout.isatty():
        raise UsageError("--term requires a terminal", hint="-o FILE.gif writes a film")
    chosen = Episode(dataset, next(iter(notable(dataset).values()), 0) if episode is None else episode)
    size, terminal = shutil.get_terminal_size(), asked_terminal()
    due, unfinished, back = time.monotonic(), 0, ""
    try:
        for lines in terminal_frames(chosen, lambda: size, terminal):  # noqa: B023  (the size of this turn)
            unfinished = len(lines)
            sys.stdout.write(back + "".join(f"{line}\x1b[K\n" if line else "\n" for line in lines))
            sys.stdout.flush()
            unfinished = 0
            now = time.monotonic()
            due = max(due + 1 / fps, now)
            time.sleep(due - now)
            before, size = size, shutil.get_terminal_size()
            # A terminal that changes its width breaks lines anew.
            back = f"\x1b[{len(lines)}F" if size == before else "\x1b[H\x1b[2J"
    except KeyboardInterrupt:
        pass
    finally:
        # Ctrl-C drops what is on its way: the end of a graphic or of a colour, and the cursor's way down.
        sys.stdout.write("\x1b\\\x1b[0m" + (f"\x1b[{unfinished}E" if unfinished else ""))
        sys.stdout.flush()
        if terminal.is_late:
            drop_late_answer()


def _show_file(output: Output, name: str, written: "ViewFile") -> None:
    shown = ", ".join(f"{one:,}" for one in written.episodes)
    what = (
        f"{'episode' if len(written.episodes) == 1 else 'episodes'} {shown}"
        if shown
        else "compared"
        if " and " in name
        else "no episode"
    )
    frames = "" if written.frames is None else f", {plural(written.frames, 'frame')}"
    frames += f", one for every {written.every} steps" if written.every > 1 else ""
    output.show(written.to_json(), f"{name}: {what}{frames}; {size(written.bytes)}", str(written.file))
