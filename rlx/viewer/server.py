"""The page of one dataset or of two, served to this machine; it follows a dataset that is being written."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from rlx.errors import DatasetError, RlxError, TransformError
from rlx.files.lock import writer_of
from rlx.manifest import FILE_NAME, Manifest
from rlx.store.dataset import Dataset
from rlx.transform.registry import parse
from rlx.transform.selections import Filter, Subsample, chosen
from rlx.viewer.episode import Episode, served, served_strip
from rlx.viewer.page import asked_first, chosen_episodes, comparison, page, table_rows
from rlx.viewer.pictures import picture_fields, pillow

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
_ADDRESS = re.compile(
    r"(?:/(?P<place>[01]))?(?:/v(?P<edition>\d{1,9}))?/(?:(?P<file>live\.json|table\.json)?|"
    r"episodes/(?P<episode>\d{1,12})(?:\.json|/(?P<field>\d{1,4})/(?P<strip>\d{1,9})\.png))",
    re.ASCII,
)
_KEPT_EPISODES = 16
_KEPT_EDITIONS = 4
_MAX_ROWS = 5000
# A browser opens six connections; each costs a thread.
MAX_CONNECTIONS = 64
IDLE_TIMEOUT_S = 30.0
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_HTML, _JSON, _PNG, _TEXT = "text/html; charset=utf-8", "application/json", "image/png", "text/plain; charset=utf-8"
_SORTS = ("id", "return", "length", "end")
# Of the transforms that ``parse`` knows, ``relabel`` imports what it names: a request must not reach it.
_SELECTIONS = ("filter", "subsample")
# A forwarded port (ssh -L) may have another number; the name is what another site cannot have.
_HERE = re.compile(r"(?:127\.0\.0\.1|localhost)(?::\d{1,5})?", re.ASCII | re.IGNORECASE)
_Answer = tuple[HTTPStatus, str, bytes]


class Shown:
    """The last editions of a dataset, so that pages of an older one still get its episodes."""

    def __init__(self, dataset: Dataset, first: int | None = None) -> None:
        self.edition = 0
        self._first, self._path = first, None
        self._datasets = {0: dataset}
        with contextlib.suppress(DatasetError):
            self._path = dataset.path
        self._stamp: object = self._look()
        self._lock = threading.Lock()
        with contextlib.suppress(RlxError):
            if self._path is not None and Manifest.load(self._path).steps != dataset.manifest.steps:
                self._stamp = 0  # it has changed since it was opened
        self.episode = lru_cache(_KEPT_EPISODES)(Episode)
        self.page = lru_cache(1)(self._page)

    @property
    def writing(self) -> bool:
        """Whether a process is writing it."""
        return self._path is not None and writer_of(self._path) is not None

    def dataset(self, edition: int | None = None) -> Dataset | None:
        """Return an edition, by default the last; None if it is no longer kept."""
        return self._datasets.get(self.edition if edition is None else edition)

    def refresh(self) -> None:
        """Open the dataset again if its manifest has changed."""
        with self._lock:
            if self._path is None or (stamp := self._look()) in (self._stamp, None):
                return
            self._stamp = stamp
            try:
                dataset = Dataset(self._path, partial=True)
            except RlxError:
                logger.debug("the dataset has changed and cannot be opened", exc_info=True)
                return
            self._datasets = {**dict(list(self._datasets.items())[1 - _KEPT_EDITIONS :]), self.edition + 1: dataset}
            self.edition += 1

    def _look(self) -> object:
        with contextlib.suppress(OSError):
            if self._path is not None:
                found = (self._path / FILE_NAME).stat()
                return found.st_ino, found.st_mtime_ns, found.st_size
        return None

    def _page(self, edition: int) -> bytes:
        dataset = self._datasets[edition]
        return page(dataset, asked_first(chosen_episodes(dataset), self._first), served=True, edition=edition).encode()


def table(dataset: Dataset, asked: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return rows of the table of episodes.

    Args:
        asked: ``where``, a condition or a selection of ``preprocess``; ``sort``, a column; ``down``, whether to sort
            descending; ``most``, the number of rows.
    """
    where, sort = (asked.get(key, [default])[0] for key, default in (("where", ""), ("sort", "id")))
    most = asked.get("most", ["200"])[0]
    numbers = np.arange(len(dataset.trajectories))
    if where.strip():
        name, colon, _ = where.strip().partition(":")
        if colon and name not in _SELECTIONS:
            raise TransformError(f"{where!r:.80}: expected a condition, filter:... or subsample:...")
        selection = parse(where.strip()) if colon else Filter(where)
        assert isinstance(selection, Filter | Subsample)
        numbers = chosen(dataset, [selection])
    found, columns = dataset.trajectories.pick(numbers), dataset.trajectories.columns()
    if sort in _SORTS[1:]:
        by = found.terminated * 2.0 + found.truncated if sort == "end" else columns[sort][numbers].astype(np.float64)
        numbers = numbers[np.argsort(-by if "down" in asked else by, kind="stable")]
    elif "down" in asked:
        numbers = numbers[::-1]
    shown = numbers[: min(int(most), _MAX_ROWS) if re.fullmatch(r"[0-9]{1,9}", most) else 200]
    return {"rows": table_rows(dataset, shown), "found": len(numbers), "of": len(dataset.trajectories)}


class ViewServer(ThreadingHTTPServer):
    """Server for one dataset, or for two and their comparison, that answers requests of this machine only.

    At most ``MAX_CONNECTIONS`` are open at once; others are answered 503. One that sends nothing for
    ``IDLE_TIMEOUT_S`` seconds is closed.

    Args:
        datasets: the dataset to show, or two.
        port: port to listen on; 0 is any free port.
        first: episode to show first; the best by default.
    """

    daemon_threads = True

    def __init__(self, *datasets: Dataset, port: int = 0, first: int | None = None) -> None:
        for dataset in datasets:
            if first is not None:
                Episode(dataset, first)
            if picture_fields(dataset.schema):
                pillow()  # raise now, not at the first request
        self.shown = [Shown(dataset, first) for dataset in datasets]
        self.page_lock = threading.Lock()
        self.comparison = lru_cache(1)(self._comparison)
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((HOST, port), _Handler)

    def _comparison(self, editions: Sequence[int]) -> bytes:
        datasets = [shown.dataset(edition) for shown, edition in zip(self.shown, editions, strict=True)]
        return comparison([one for one in datasets if one is not None], served=True, edition=sum(editions)).encode()

    @property
    def url(self) -> str:
        """Address of the page."""
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
        """Log it: usually a browser disconnected early."""
        logger.debug("a request was not answered", exc_info=sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True  # else a body waits 40 ms until its head is acknowledged

    def do_GET(self) -> None:
        try:
            status, kind, body = self._answer()
        except RlxError as exc:
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, str(exc).encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")  # another dataset may have this port tomorrow
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _answer(self) -> _Answer:
        # Another site could have its name point here, or a page of it ask for this address; it must neither read nor
        # set to work what this machine's user looks at. A link to the page is fine.
        asks = self.headers.get("Sec-Fetch-Site") == "cross-site" and self.headers.get("Sec-Fetch-Mode") != "navigate"
        if asks or not _HERE.fullmatch(self.headers.get("Host", "")):
            return HTTPStatus.FORBIDDEN, _TEXT, b"this server answers only pages of 127.0.0.1 and localhost"
        address = urlsplit(self.path)
        asked = _ADDRESS.fullmatch(address.path)
        shown = self.server.shown
        if asked is None or (asked["place"] is not None) != (
            len(shown) > 1 and address.path not in ("/", "/live.json")
        ):
            return _MISSING
        if asked["place"] is not None:
            shown = [shown[int(asked["place"])]]
        if asked["file"] == "live.json":
            return _json(self._live(shown))
        if asked["file"] is None and asked["episode"] is None and not address.query:
            return HTTPStatus.OK, _HTML, self._page(shown)
        dataset = shown[0].dataset(int(asked["edition"]) if asked["edition"] else None)
        if dataset is None:
            return _MISSING
        if asked["file"]:
            try:
                return _json(table(dataset, parse_qs(address.query)))
            except TransformError as exc:
                return _json({"error": str(exc)})  # with 400, a browser would log an error for each letter typed
        return _MISSING if address.query else self._episode(shown[0], dataset, asked)

    def _page(self, shown: Sequence[Shown]) -> bytes:
        for one in shown:
            one.refresh()
        with self.server.page_lock:
            if len(shown) > 1:
                return self.server.comparison(tuple(one.edition for one in shown))
            return shown[0].page(shown[0].edition)

    def _live(self, shown: Sequence[Shown]) -> dict[str, Any]:
        for one in shown:
            one.refresh()
        return {"edition": sum(one.edition for one in shown), "writing": any(one.writing for one in shown)}

    def _episode(self, shown: Shown, dataset: Dataset, asked: re.Match[str]) -> _Answer:
        number, edition = int(asked["episode"] or 0), int(asked["edition"] or shown.edition)
        if asked["episode"] is None or number >= len(dataset.trajectories):
            return _MISSING
        episode = shown.episode(dataset, number)
        if asked["strip"] is None:
            return _json(served(episode, f"v{edition}/"))
        strip = served_strip(episode, int(asked["field"]), int(asked["strip"]))
        return _MISSING if strip is None else (HTTPStatus.OK, _PNG, strip)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the user has a browser."""


_MISSING: _Answer = (HTTPStatus.NOT_FOUND, _TEXT, b"page not found")


def _json(document: Mapping[str, Any]) -> _Answer:
    return HTTPStatus.OK, _JSON, json.dumps(document, separators=(",", ":")).encode()
