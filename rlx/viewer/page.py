"""The page of a dataset, as one HTML file or served to this machine."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import logging
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from rlx.errors import RlxError
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.store.statistics import Moments
from rlx.viewer.drawing import SERIES, Drawing, svg
from rlx.viewer.episode import Episode, embedded, notable, served, served_strip
from rlx.viewer.overview import Overview
from rlx.viewer.pictures import picture_field, pillow
from rlx.wording import number, plural, shape, size

MAX_FRAME_BYTES = 8 * 2**20  # of all episodes in a page, before base64 makes them a third longer
_MAX_SHARDS = 500
_HEIGHT = 180.0
_WIDTH, _WIDE, _UNDER = 360.0, 560.0, 460.0  # of charts on a phone, beside the player and under it
_BESIDE = 3  # charts that stand beside the player
logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
_EPISODE = re.compile(r"/episodes/(\d{1,12})\.json")
_STRIP = re.compile(r"/episodes/(\d{1,12})/strips/(\d{1,9})\.png")
_KEPT_EPISODES = 16
# A browser opens six connections; each costs a thread.
MAX_CONNECTIONS = 64
IDLE_TIMEOUT_S = 30.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_HTML, _JSON, _PNG, _TEXT = "text/html; charset=utf-8", "application/json", "image/png", "text/plain; charset=utf-8"


def chosen_episodes(dataset: Dataset) -> dict[str, int]:
    """Return the episodes that are in a page: the best, the median, the worst, the first and the last."""
    count = len(dataset.trajectories)
    found = {**notable(dataset), "first": 0, "last": count - 1} if count else {}
    return {name: one for place, (name, one) in enumerate(found.items()) if one not in list(found.values())[:place]}


def asked_first(episodes: Mapping[str, int], asked: int | None) -> dict[str, int]:
    """Return episodes with the one that was asked for before them.

    Example:
        >>> asked_first({"best": 3, "worst": 5}, 5)
        {'asked for': 5, 'best': 3}
    """
    if asked is None:
        return dict(episodes)
    return {"asked for": asked, **{name: one for name, one in episodes.items() if one != asked}}


def page(dataset: Dataset, episodes: Mapping[str, int], *, served: bool = False) -> str:
    """Return the page.

    Args:
        dataset: what it shows.
        episodes: what can be chosen by name; the first is shown first.
        served: whether a server hands out the episodes, any of them; else the chosen ones are in the page.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    listed = dataset.manifest
    room = MAX_FRAME_BYTES // max(len(episodes), 1)
    parts = [] if served else [embedded(Episode(dataset, one), room) for one in episodes.values()]
    data = {
        "served": served,
        "count": listed.trajectories,
        "first": next(iter(episodes.values()), 0),
        "embedded": parts,
    }
    style, script = _style(), _part("page.js")
    overview = Overview.of(dataset)
    narrow, wide, under = (overview.drawings(width, _HEIGHT) for width in (_WIDTH, _WIDE, _UNDER))
    return Template(_part("page.html")).substitute(
        id=_e(listed.id),
        path=_e(dataset.where),
        version=_e(version("rlx")),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        tiles=_tiles(dataset),
        player=_player(dataset, episodes, served=served) if episodes else "",
        beside="".join(map(_chart, narrow[:_BESIDE], wide)),
        charts="".join(map(_chart, narrow[_BESIDE:], under[_BESIDE:])),
        schema=_schema(dataset),
        shards=_shards(dataset),
        notes=_notes(listed.notes),
        lineage=_lineage(listed.lineage),
        # A script element ends at the first "</": nothing in the data may look like that.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _tiles(dataset: Dataset) -> str:
    listed = dataset.manifest
    table = dataset.trajectories
    whole = int(table.whole.sum())
    raw = listed.schema.raw_bytes(listed.steps, listed.trajectories)
    smaller = f"{raw / listed.bytes:.1f} times smaller than raw" if listed.bytes and raw > listed.bytes else "on disk"
    tiles = [
        (f"{listed.steps:,}", "steps"),
        (f"{whole:,}", "whole episode" if whole == 1 else "whole episodes"),
        (f"{len(table) - whole:,}", "piece of an episode" if len(table) - whole == 1 else "pieces of episodes"),
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
    is_picture = picture_field(dataset.schema) is not None
    there = len(dataset.trajectories)
    goto, said = "", f"{len(episodes)} of {plural(there, 'episode')} are in this page; rlx view DATASET shows any."
    if served:
        goto = f'<input type="number" id="goto" min="0" max="{there - 1}" aria-label="Number of the episode">'
        said = f"Any of {plural(there, 'episode')}, by number."
    elif len(episodes) == there:
        said = f"All of {plural(there, 'episode')}." if there > 1 else "The only episode."
    return Template(_part("player.html")).substitute(
        options=options,
        goto=goto,
        said=_e(said),
        stage='<div class="stage"><canvas id="canvas"></canvas></div>'
        if is_picture
        else '<div class="stage plot"><svg id="plot" viewBox="0 0 1000 300" preserveAspectRatio="none" '
        'role="img" aria-label="Observations"></svg></div><div class="legend" id="legend"></div>',
    )


def _chart(narrow: Drawing, wide: Drawing) -> str:
    """Return a chart, drawn for a phone and for a desk: letters must not grow and shrink with it."""
    note = f'<p class="note">{_e(narrow.note)}</p>' if narrow.note else ""
    drawn = f'<div class="narrow">{svg(narrow)}</div><div class="wide">{svg(wide)}</div>'
    return f'<section class="card"><h2>{_e(narrow.title)}</h2>{drawn}{note}</section>'


def _schema(dataset: Dataset) -> str:
    rows = [
        (name, field.role, field.dtype, shape(field.shape), json.dumps(dict(field.space)) if field.space else "")
        for name, field in dataset.schema.fields.items()
    ]
    short = [(*row[:4], row[4] if len(row[4]) <= 160 else f"{row[4][:157]}...") for row in rows]
    return _table(["field", "role", "dtype", "shape", ".space"], short)


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


def _notes(notes: Mapping[str, Any]) -> str:
    if not notes:
        return ""
    rows = "".join(f"<dt>{_e(name.replace('_', ' '))}</dt><dd>{_e(_words(note))}</dd>" for name, note in notes.items())
    return f'<section class="card late"><h2>Notes</h2><dl>{rows}</dl></section>'


def _words(note: object) -> str:
    """Return a note as words, without programming syntax."""
    if isinstance(note, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')}: {_words(value)}" for key, value in note.items())
    if isinstance(note, list):
        return ", ".join(map(_words, note))
    return str(note).lower() if isinstance(note, bool) or note is None else str(note)


def _lineage(lineage: Sequence[Mapping[str, Any]]) -> str:
    if not lineage:
        return ""
    steps = []
    for step in lineage:
        parents = [str(parent.get("id", "?")) for parent in step.get("parents") or () if isinstance(parent, Mapping)]
        of = f", of {', '.join(parents)}" if parents else ""
        made = f'<span class="muted">rlx {_e(str(step.get("rlx", "?")) + of)}</span>'
        steps.append(f"<li><code>{_e(str(step.get('command', '')))}</code><br>{made}</li>")
    return f'<section class="card late"><h2>Lineage</h2><ol>{"".join(steps)}</ol></section>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; ``>`` before a column's name means numbers, ``.`` what may be long."""
    kinds = [{">": ' class="n"', ".": ' class="s"'}.get(column[0], "") for column in columns]
    heads = (f"<th{kind}>{_e(column.lstrip('>.'))}</th>" for kind, column in zip(kinds, columns, strict=True))
    cells = (
        "<tr>" + "".join(f"<td{kind}>{_e(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    head, body = f"<thead><tr>{''.join(heads)}</tr></thead>", f"<tbody>{''.join(cells)}</tbody>"
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _style() -> str:
    patches = "".join(f".tone-{tone}{{background:var(--{tone})}}" for tone in SERIES)
    return _part("page.css") + patches


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of a style or a script for the page's security policy, which forbids others."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _e(text: str) -> str:
    return html.escape(text)


class ViewServer(ThreadingHTTPServer):
    """Server for one dataset that answers requests of this machine only.

    At most ``MAX_CONNECTIONS`` are open at once; others are answered 503. One that sends nothing for
    ``IDLE_TIMEOUT_S`` seconds is closed.

    Args:
        dataset: the dataset to show.
        port: where to listen; 0 for any that is free.
        first: the episode that is shown first; the best by default.

    Raises:
        OSError: the port is taken.
        MissingExtraError: Pillow is not installed.
        SamplingError: the episode does not exist.
    """

    daemon_threads = True

    def __init__(self, dataset: Dataset, port: int = 0, first: int | None = None) -> None:
        self.dataset = dataset
        if first is not None:
            Episode(dataset, first)
        if picture_field(dataset.schema) is not None:
            pillow()  # now, and not when somebody looks
        self.page = page(dataset, asked_first(chosen_episodes(dataset), first), served=True).encode()
        self.episode = lru_cache(_KEPT_EPISODES)(lambda number: Episode(dataset, number))
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless too many connections are open."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(1.0)
            request.sendall(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then let another connection in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  (its base class prints both)
        """Note it in the log: as a rule, a browser that has left before it was answered."""
        logger.debug("a request was not answered", exc_info=sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except RlxError as exc:
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, str(exc).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")  # another dataset may have this port tomorrow
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        # Another site could have its name point here; it must not read what this machine's user looks at.
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            return HTTPStatus.FORBIDDEN, _TEXT, b"this server is for 127.0.0.1 alone"
        if self.path == "/":
            return HTTPStatus.OK, _HTML, self.server.page
        if asked := _EPISODE.fullmatch(self.path):
            episode = self._episode(int(asked[1]))
            if episode is not None:
                return HTTPStatus.OK, _JSON, json.dumps(served(episode), separators=(",", ":")).encode()
        elif asked := _STRIP.fullmatch(self.path):
            episode = self._episode(int(asked[1]))
            strip = served_strip(episode, int(asked[2])) if episode is not None else None
            if strip is not None:
                return HTTPStatus.OK, _PNG, strip
        return HTTPStatus.NOT_FOUND, _TEXT, b"there is no such page"

    def _episode(self, number: int) -> Episode | None:
        dataset = self.server.dataset
        return self.server.episode(number) if number < len(dataset.trajectories) else None

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: whoever looks has a browser."""
