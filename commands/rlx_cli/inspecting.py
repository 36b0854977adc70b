"""``rlx inspect`` and ``rlx cite``."""

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import rlx
from rlx.errors import RlxError
from rlx.files.urls import is_url
from rlx.verbs.arguments import with_destination
from rlx.wording import note_in_words, number, pasteable, plural, shape, size, sparkline, without_secrets
from rlx_cli.output import Output, Part, facts, table
from rlx_cli.rows import JsonRows, Listing
from rlx_cli.signature import command_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rlx.results import Inspection


_FEWEST_BARS = 3
_MOST_PARTS = 32  # of a vector: rows of the table
_TRAJECTORY_COLUMNS = (">trajectory", "shard", ">start", ">length", ">return", "end", "whole")


@command_of(rlx.inspect)
def inspect(ctx: typer.Context, dataset: str, plot: Path | None, **options: Any) -> None:
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
    output: Output = ctx.obj
    found = rlx.inspect(dataset, plot=plot, **options)
    document = replace(found, trajectory=None).to_json()
    parts: list[Part] = [*_overview(document)]
    if found.stats is not None:
        from rlx.store.statistics import OF_ALL

        shown = found.stats
        if not document["episodes"]["pieces"]:
            shown = {name: figures for name, figures in shown.items() if name not in OF_ALL.values()}
        parts += ["", *_stats_tables(shown)]
        parts += [f"{name}: one figure for all {count} parts, as rlx 0.1.0 wrote it" for name, count in _joint(found)]
    if (rows := found.trajectory) is not None:
        document["trajectory"] = JsonRows(rows.parts())
        parts += ["", Listing(_TRAJECTORY_COLUMNS, lambda: _trajectory_lines(rows.parts()))]
    if plot is not None:
        parts += ["", f"plots in {plot}"]
    output.show(document, *parts)


def _overview(document: dict[str, Any]) -> list[Part]:
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
    parts: list[Part] = [
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
            # The command that makes this dataset again, to copy and paste.
            made[-1] = (version, with_destination(command, Path(document["path"])))
        parts += ["", "lineage", facts(made)]
    return parts


def _shards(listed: int, missing: "Sequence[str]") -> str:
    if not missing:
        return f"{listed:,}"
    names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    return f"{listed:,} of {listed + len(missing):,}; missing {names}"


def _returns(document: "Mapping[str, Any]") -> str:
    """Return a sparkline of the returns of whole episodes; empty if there are too few."""
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
        return "unknown: an earlier rlx did not count whole episodes"
    said = f"{plural(episodes['whole'], 'episode')}, {plural(episodes['pieces'], 'piece')}"
    if not episodes["whole"]:
        return said
    return f"{said}; mean return {number(episodes['mean_return'])}, mean length {number(episodes['mean_length'])}"


def _stats_tables(stats: "Mapping[str, Any]") -> list[Part]:
    measured = [row for name, figures in stats.items() if "counts" not in figures for row in _measured(name, figures)]
    parts: list[Part] = [table(["", ">min", ">max", ">mean", ">std"], measured)]
    for name, figures in stats.items():
        if counts := figures.get("counts"):
            total = sum(counts.values())
            rows = [(value, f"{count:,}", f"{count / total:.1%}") for value, count in counts.items()]
            parts += ["", table([name, ">steps", ">share"], rows)]
    return parts


def _joint(found: "Inspection") -> "Iterator[tuple[str, int]]":
    """Yield the fields whose manifest has one figure where later versions write one for each part, and the parts."""
    from rlx.store.statistics import parted_axis

    for name, field in found.schema.items():
        figures, axis = (found.stats or {}).get(name, {}), parted_axis(field["shape"])
        if axis is not None and isinstance(figures.get("mean"), float):
            yield name, field["shape"][axis]


def _measured(name: str, figures: "Mapping[str, Any]") -> "Iterator[tuple[str, ...]]":
    """Yield the row of a statistic; of a vector or of channels, one for each, unless they are many."""
    from rlx.store.statistics import apart

    parts = apart(name, figures)
    for part, one in parts[:_MOST_PARTS]:
        yield (part, *(number(one[key]) for key in ("min", "max", "mean", "std")))
    if (more := len(parts) - _MOST_PARTS) > 0:
        yield (f"{more:,} more: --json", "", "", "", "")


def _trajectory_lines(parts: "Iterable[Mapping[str, Any]]") -> "Iterator[tuple[str, ...]]":
    for part in parts:
        names = ("id", "start", "length", "return", "terminated", "truncated", "whole")
        for id, start, length, returned, terminated, truncated, whole in zip(*map(part.get, names), strict=True):
            end = "terminated" if terminated else "truncated" if truncated else "open"
            shown = (f"{start:,}", f"{length:,}", number(returned))
            yield (str(id), part["shard"], *shown, end, "yes" if whole else "-")


@command_of(rlx.cite)
def cite(ctx: typer.Context, dataset: str) -> None:
    """Print BibTeX of the papers that a dataset's source names.

    \b
    Examples:
      rlx cite Pong/5 >> references.bib
      rlx cite hf://datasets/ORG/pong-5 --json
    """
    output: Output = ctx.obj
    found = rlx.cite(dataset)
    output.show(found, *"\n\n".join(found).splitlines())
    if not found:
        output.say("hint", f"{without_secrets(dataset)} names no papers")
