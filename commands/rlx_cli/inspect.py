"""``rlx inspect``: show the manifest, statistics and trajectories of a dataset."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.api.lineage import pasteable, with_destination
from rlx.errors import DatasetExistsError, UnknownFormatError
from rlx.quantities import number, plural, shape, size
from rlx_cli.options import AnyDatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output, facts, table
from rlx_cli.rows import Listing, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from rich.table import Table

    from rlx.manifest import Manifest
    from rlx.store.trajectories import Trajectories

_TRAJECTORY_COLUMNS = (">trajectory", "shard", ">start", ">length", ">return", "end", "whole")
_PART_ROWS = 4096


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
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
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
    are counted separately. Reads only the manifest; --trajectories also reads the trajectory table, and --plot also
    reads rewards and actions.
    """
    from rlx.store.finding import find_dataset

    output: Output = ctx.obj
    path, manifest = find_dataset(dataset)
    document = _document(str(path), manifest)
    parts: list[str | Table | Listing] = [*_overview(document)]
    if stats:
        from rlx.store.statistics import OF_ALL, summary

        document["stats"] = summary(manifest.shards)
        shown = document["stats"]
        if not document["episodes"]["pieces"]:
            shown = {name: figures for name, figures in shown.items() if name not in OF_ALL.values()}
        parts += ["", *_stats_tables(shown)]
    if trajectories:
        table_parts = _trajectories(dataset)
        document["trajectory"] = Rows(table_parts())
        parts += ["", Listing(_TRAJECTORY_COLUMNS, lambda: _trajectory_lines(table_parts()))]
    if plot is not None:
        _write_plot(dataset, plot)
        document["plot"] = str(plot)
        parts += ["", f"plots in {plot}"]
    output.show(document, *parts)


def _write_plot(dataset: str, path: Path) -> None:
    from rlx.files.atomic import whole
    from rlx.store.dataset import Dataset
    from rlx.viewer.plots import plots_png

    if path.suffix.lower() != ".png":
        raise UnknownFormatError(f"{path.name}: expected a name that ends in .png")
    if path.is_dir():
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    plots = plots_png(Dataset(dataset, partial=True))
    with whole(path) as partial:
        partial.write_bytes(plots)


def _document(path: str, manifest: "Manifest") -> dict[str, Any]:
    from rlx.store.codec import Codec

    raw_bytes = manifest.schema.raw_bytes(manifest.steps, manifest.trajectories)
    shards = [
        {
            "name": shard.name,
            "steps": shard.steps,
            "trajectories": shard.trajectories,
            "bytes": shard.bytes,
            "dropped": dict(shard.dropped),
            "origin": dict(shard.origin),
        }
        for shard in manifest.shards
    ]
    return {
        "id": manifest.id,
        "path": path,
        "format_version": manifest.format_version,
        "store": manifest.store,
        "codec": str(Codec.from_json(manifest.codec)),
        "steps": manifest.steps,
        "trajectories": manifest.trajectories,
        "episodes": _episodes(manifest),
        "shards": shards,
        "missing_shards": manifest.missing,
        "bytes": manifest.bytes,
        "raw_bytes": raw_bytes,
        "ratio": round(raw_bytes / manifest.bytes, 3) if manifest.bytes else None,
        "schema": manifest.schema.to_json(),
        "notes": dict(manifest.notes),
        "lineage": [dict(step) for step in manifest.lineage],
    }


def _overview(document: dict[str, Any]) -> "list[str | Table]":
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
    named += [("dropped", text)] if (text := _dropped(document["shards"])) else []
    rows = [
        (name, field["role"], field["dtype"], shape(field["shape"]), _space(field.get("space")))
        for name, field in document["schema"].items()
    ]
    parts: list[str | Table] = [
        document["id"],
        facts(named),
        "",
        table(["field", "role", "dtype", "shape", "space"], rows),
    ]
    if document["notes"]:
        parts += ["", "notes", facts((name.replace("_", " "), str(note)) for name, note in document["notes"].items())]
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


def _dropped(shards: "Sequence[Mapping[str, Any]]") -> str:
    """Return the number of dropped source rows, by reason."""
    reasons: dict[str, int] = {}
    for shard in shards:
        for reason, count in shard["dropped"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in reasons.items() if count)


def _space(space: "Mapping[str, Any] | None") -> str:
    if space is None:
        return ""
    inner = ", ".join(f"{key}={value}" for key, value in space.items() if key != "type")
    return f"{space.get('type', '')}({inner})" if len(inner) <= 60 else str(space.get("type", ""))


def _episodes(manifest: "Manifest") -> dict[str, Any]:
    """Return the numbers of whole episodes and pieces, and the mean return and length of whole episodes."""
    from rlx.store.statistics import Episodes

    found = Episodes.of(manifest.shards)
    means = (moments.summary()["mean"] if found.whole else None for moments in (found.returns, found.lengths))
    return {
        "whole": found.whole,
        "pieces": found.pieces,
        **dict(zip(("mean_return", "mean_length"), means, strict=True)),
    }


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


def _trajectories(dataset: str) -> "Callable[[], Iterator[dict[str, Any]]]":
    """Return an iterator factory over parts of the trajectory table, after opening it to detect damage."""
    from rlx.store.dataset import Dataset

    opened = Dataset(dataset, partial=True)
    return partial(_parts, opened.trajectories, opened.manifest)


def _parts(rows: "Trajectories", manifest: "Manifest") -> "Iterator[dict[str, Any]]":
    columns: dict[str, NDArray[Any]] = {
        "start": rows.start,
        "length": rows.length,
        "return": rows.returns,
        "terminated": rows.terminated,
        "truncated": rows.truncated,
        "episode": rows.episode,
        "from_reset": rows.from_reset,
        "final_recorded": rows.final_recorded,
        "cut": rows.cut,
        "whole": rows.whole,
    }
    stop = 0
    for shard in manifest.shards:
        first, stop = stop, stop + shard.trajectories
        for low in range(first, stop, _PART_ROWS):
            high = min(low + _PART_ROWS, stop)
            part: dict[str, Any] = {name: column[low:high].tolist() for name, column in columns.items()}
            part["return"] = [value if math.isfinite(value) else None for value in part["return"]]
            yield {"id": list(range(low, high)), "shard": shard.name, **part}


def _trajectory_lines(parts: "Iterable[Mapping[str, Any]]") -> "Iterator[tuple[str, ...]]":
    for part in parts:
        names = ("id", "start", "length", "return", "terminated", "truncated", "whole")
        for id, start, length, returned, terminated, truncated, whole in zip(*map(part.get, names), strict=True):
            end = "terminated" if terminated else "truncated" if truncated else "open"
            shown = (f"{start:,}", f"{length:,}", number(returned))
            yield (str(id), part["shard"], *shown, end, "yes" if whole else "-")
