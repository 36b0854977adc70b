"""The HTML page of a dataset, or of two that are compared."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.distribution import version
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.store.foreign_types import in_words
from rlx.store.statistics import Moments, apart
from rlx.transform.selections import columns, shards
from rlx.viewer.drawing import DARK, LIGHT, SERIES, Drawing, svg
from rlx.viewer.episode import Episode, embedded, notable, shortened
from rlx.viewer.overview import Overview
from rlx.viewer.pictures import picture_fields
from rlx.wording import note_in_words, number, plural, shape, size, without_paths

MAX_FRAME_BYTES = 8 * 2**20  # of all episodes in a page, before base64 makes them a third longer
_MAX_SHARDS = 500
_MAX_PARTS = 32  # of a vector: rows of the table of statistics
_MAX_ROWS = 2000  # of the table of episodes in a page without a server
_HEIGHT = 180.0
_NARROW, _WIDE = 360.0, 540.0  # of charts on a phone or three abreast, and two abreast

_SEARCH = (
    '<input id="where" aria-label="Filter" placeholder="return &gt; 10 and length &lt; 500" spellcheck="false" '
    'autocapitalize="off">'
)


def chosen_episodes(dataset: Dataset) -> dict[str, int]:
    """Return the episodes in a page: the best, the median, the worst, the first and the last."""
    count = len(dataset.trajectories)
    found = {**notable(dataset), "first": 0, "last": count - 1} if count else {}
    return {name: one for place, (name, one) in enumerate(found.items()) if one not in list(found.values())[:place]}


def asked_first(episodes: Mapping[str, int], asked: int | None) -> dict[str, int]:
    """Return the episodes with the requested one first.

    Example:
        >>> asked_first({"best": 3, "worst": 5}, 5)
        {'asked for': 5, 'best': 3}
    """
    if asked is None:
        return dict(episodes)
    return {"asked for": asked, **{name: one for name, one in episodes.items() if one != asked}}


def page(dataset: Dataset, episodes: Mapping[str, int], *, served: bool = False, edition: int = 0) -> str:
    """Return the page.

    Args:
        episodes: episodes that can be chosen by name; the first is shown first.
        served: whether a server serves all episodes; otherwise the page contains the chosen ones, and no local path.
        edition: how often the dataset has changed since the server started.
    """
    listed, count = dataset.manifest, len(dataset.trajectories)
    room = MAX_FRAME_BYTES // max(len(episodes), 1)
    listed_here = np.arange(min(count, _MAX_ROWS))
    data = {
        "served": served,
        "edition": edition,
        "count": count,
        "first": next(iter(episodes.values()), 0),
        "embedded": [] if served else [embedded(Episode(dataset, one), room) for one in episodes.values()],
        "rows": [] if served else table_rows(dataset, listed_here),
        "columns": {} if served else _columns(dataset, listed_here),
    }
    overview = Overview.of(dataset)
    lineage, notes = _lineage(listed.lineage, served=served), _notes(listed.notes, served=served)
    details = [_card("Schema", _schema(dataset)), _card("Shards", _shards(dataset)), notes, lineage]
    player = _player(dataset, episodes, served=served) if episodes else ""
    charts = _charts(overview.drawings(_NARROW, _HEIGHT), overview.drawings(_WIDE, _HEIGHT))
    main = (
        f'<div class="tiles" data-live>{_tiles(dataset)}</div>{player}'
        f'<div class="grid" data-live>{charts}</div><div class="grid pairs" data-live>{"".join(details)}</div>'
    )
    return _document(listed.id, dataset.where if served else "", main, data)


def comparison(datasets: Sequence[Dataset], *, served: bool = False, edition: int = 0) -> str:
    """Return the page that shows two datasets side by side, on the same scales; a server has each below ``0`` or ``1``.

    Args:
        served, edition: see ``page``.
    """
    ids = [dataset.manifest.id for dataset in datasets]
    if ids[0] == ids[1]:
        ids = [
            f"{id} ({dataset.where.rstrip('/').rpartition('/')[2]})" for id, dataset in zip(ids, datasets, strict=True)
        ]
    names = [f"{letter}: {id}" for letter, id in zip("AB", ids, strict=True)]
    first, second = (Overview.of(dataset) for dataset in datasets)
    figures = [_figures(dataset) for dataset in datasets]
    rows = [(key, *(one.get(key, "-") for one in figures)) for key in {**figures[0], **figures[1]}]
    drawn = [
        zip_longest(first.drawings(width, _HEIGHT, second), second.drawings(width, _HEIGHT, first))
        for width in (_NARROW, _WIDE)
    ]
    cards = [_card("Statistics", _table(["statistic", *(f">{name}" for name in names)], rows), "full")]
    for narrow, wide in zip(*drawn, strict=True):
        cards += [_chart(*both, letter) for letter, both in zip("AB", zip(narrow, wide, strict=True), strict=True)]
    links = " ".join(f'<a href="{n}/">{_e(name)}</a>' for n, name in enumerate(names)) if served else ""
    main = f'<p class="bar">{links}</p><div class="grid pairs" data-live>{"".join(cards)}</div>'
    where = " and ".join(dataset.where for dataset in datasets) if served else ""
    data = {"served": served, "edition": edition, "embedded": []}
    return _document(" and ".join(names), where, main, data)


def _figures(dataset: Dataset) -> dict[str, str]:
    found = {"steps": f"{len(dataset):,}", "episodes and pieces": f"{len(dataset.trajectories):,}"}
    found["size"] = size(dataset.manifest.bytes)
    for key, one in dataset.stats.items():
        if "counts" in one:
            continue
        for name, part in apart(key.replace("_", " "), one)[:_MAX_PARTS]:
            if part["mean"] is not None:
                found[f"{name}: mean"] = f"{number(part['mean'])} ± {number(part['std'])}"
                found[f"{name}: range"] = f"{number(part['min'])} to {number(part['max'])}"
    return found


def table_rows(dataset: Dataset, numbers: NDArray[np.int64]) -> list[list[Any]]:
    """Return number, return, steps and end of some trajectories."""
    table = dataset.trajectories
    rows: list[list[Any]] = []
    for one in numbers.tolist():
        total = float(table.returns[one])
        end = Episode(dataset, one).end + ("" if table.whole[one] else ", piece")
        rows.append([one, shortened(total), int(table.length[one]), end])
    return rows


def _columns(dataset: Dataset, numbers: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Return the values that the filter of a page without a server compares; null if not finite."""
    found = columns(dataset.trajectories, shards(dataset))
    picked = {name: of[numbers].tolist() for name, of in found.items()}
    return {name: [one if math.isfinite(one) else None for one in of] for name, of in picked.items()}


def _document(title: str, path: str, main: str, data: Mapping[str, Any]) -> str:
    style, script = _style(), _part("page.js")
    return Template(_part("page.html")).substitute(
        id=_e(title),
        path=_e(path),
        version=_e(version()),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        main=main,
        # A script element ends at the first "</": nothing in the data may look like that.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _tiles(dataset: Dataset) -> str:
    listed = dataset.manifest
    table = dataset.trajectories
    whole = int(table.whole.sum())
    raw = listed.schema.raw_bytes(listed.steps, listed.trajectories)
    smaller = f"{raw / listed.bytes:.1f} times smaller than raw" if listed.bytes and raw > listed.bytes else "on disk"
    pieces = len(table) - whole
    beside = f", {plural(pieces, 'piece')}" if pieces else ""
    tiles = [
        (f"{len(dataset):,}", "steps"),
        (f"{whole:,}", ("whole episode" if whole == 1 else "whole episodes") + beside),
        (size(listed.bytes), smaller),
        (f"{len(listed.shards):,}", f"{'shard' if len(listed.shards) == 1 else 'shards'}, {listed.store}"),
    ]
    of = "" if whole else " of pieces"
    shown = table.whole if whole else np.ones_like(table.whole)
    for column, unit in ((table.returns, "mean return"), (table.length, "mean length")):
        figures = Moments.of(column[shown]).summary()
        span = "" if figures["min"] is None else f", {number(figures['min'])} to {number(figures['max'])}"
        tiles.append((number(figures["mean"]), unit + of + span))
    return "".join(f'<div class="tile"><b>{_e(value)}</b><span>{_e(name)}</span></div>' for value, name in tiles)


def _player(dataset: Dataset, episodes: Mapping[str, int], *, served: bool) -> str:
    options = "".join(f'<option value="{one}">{_e(name)}: {one:,}</option>' for name, one in episodes.items())
    there = len(dataset.trajectories)
    goto, said = "", f"{len(episodes)} of {plural(there, 'episode')} are in this page; rlx view DATASET shows any."
    if served:
        goto = f'<input type="number" id="goto" min="0" max="{there - 1}" aria-label="Number of the episode">'
        said = ""
    elif len(episodes) == there:
        said = f"All of {plural(there, 'episode')}." if there > 1 else "The only episode."
    if there > _MAX_ROWS and not served:
        said += f" The table has the first {_MAX_ROWS:,}."
    stage = '<div class="stage" id="stage"></div>' if picture_fields(dataset.schema) else ""
    return Template(_part("player.html")).substitute(
        options=options, goto=goto, said=_e(said), stage=stage, search=_SEARCH
    )


def _charts(narrow: Sequence[Drawing], wide: Sequence[Drawing]) -> str:
    """Return cards in full rows: the first four, two or none are two abreast, the others three."""
    pairs = {0: 0, 1: 4, 2: 2}[len(narrow) % 3]
    return "".join(
        _chart(*both, half=n < max(pairs, 1), third=n >= pairs) for n, both in enumerate(zip(narrow, wide, strict=True))
    )


def _chart(
    narrow: Drawing | None, wide: Drawing | None, letter: str = "", *, half: bool = True, third: bool = False
) -> str:
    """Return a chart in two sizes, for phones and desktops, so that its text keeps its size."""
    if narrow is None or wide is None:
        return _card(letter, '<p class="note">nothing to compare</p>')
    note = f'<p class="note">{_e(narrow.note)}</p>' if narrow.note else ""
    drawn = f'<div class="narrow">{svg(narrow)}</div>'
    if half:
        drawn += f'<div class="wide">{svg(wide)}</div>'
    title = f"{letter}: {narrow.title}" if letter else narrow.title
    return _card(title, drawn + note, "half" if half and not third else "third")


def _card(title: str, inner: str, kind: str = "") -> str:
    return f'<section class="card {kind}"><h2>{_e(title)}</h2>{inner}</section>'


def _schema(dataset: Dataset) -> str:
    rows = [
        (name, field.role, field.dtype, shape(field.shape), in_words(field.space))
        for name, field in dataset.schema.fields.items()
    ]
    return _table(["field", "role", "dtype", "shape", ".values"], rows)


def _shards(dataset: Dataset) -> str:
    listed = dataset.manifest
    codec = Codec.from_json(listed.codec)
    said = f"{plural(len(listed.shards), 'shard')}, store {listed.store}, codec {codec}"
    said += f"; {plural(len(listed.missing), 'shard')} still missing" if listed.missing else ""
    left_out = len(listed.shards) - _MAX_SHARDS
    said += f"; the first {_MAX_SHARDS} are shown" if left_out > 0 else ""
    rows = [
        (shard.name, f"{shard.steps:,}", f"{shard.trajectories:,}", size(shard.bytes))
        for shard in listed.shards[:_MAX_SHARDS]
    ]
    return _table(["shard", ">steps", ">trajectories", ">size"], rows) + f'<p class="note">{_e(said)}</p>'


def _notes(notes: Mapping[str, Any], *, served: bool) -> str:
    if not notes:
        return ""
    said = str if served else without_paths
    rows = "".join(
        f"<dt>{_e(name.replace('_', ' '))}</dt><dd>{_e(said(note_in_words(note)))}</dd>" for name, note in notes.items()
    )
    return _card("Notes", f"<dl>{rows}</dl>")


def _lineage(lineage: Sequence[Mapping[str, Any]], *, served: bool) -> str:
    if not lineage:
        return ""
    steps = []
    for step in lineage:
        parents = [str(parent.get("id", "?")) for parent in step.get("parents") or () if isinstance(parent, Mapping)]
        of = f", of {', '.join(parents)}" if parents else ""
        made = f'<span class="muted">rlx {_e(str(step.get("rlx", "?")) + of)}</span>'
        command = str(step.get("command", ""))
        steps.append(f"<li><code>{_e(command if served else without_paths(command))}</code><br>{made}</li>")
    return _card("Lineage", f"<ol>{''.join(steps)}</ol>")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a column's prefix ``>`` marks numbers, ``.`` long text."""
    kinds = [{">": ' class="n"', ".": ' class="s"'}.get(column[0], "") for column in columns]
    heads = (f"<th{kind}>{_e(column.lstrip('>.'))}</th>" for kind, column in zip(kinds, columns, strict=True))
    cells = (
        "<tr>" + "".join(f"<td{kind}>{_e(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    head, body = f"<thead><tr>{''.join(heads)}</tr></thead>", f"<tbody>{''.join(cells)}</tbody>"
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>{head}{body}</table></div>'


def _style() -> str:
    light, dark = ("".join(f"--{tone}: {colour};" for tone, colour in theme.items()) for theme in (LIGHT, DARK))
    tones = f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
    patches = "".join(f".tone-{tone}{{background:var(--{tone})}}" for tone in SERIES)
    return tones + _part("page.css") + patches


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of a style or a script for the page's security policy, which forbids others."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _e(text: str) -> str:
    """Return text as HTML; invisible and direction-changing characters become spaces."""
    return html.escape("".join(character if character.isprintable() else " " for character in text))
