"""The page of a dataset, served to this machine: any episode, its frames read from the store when they are shown."""

import contextlib
import json
import logging
import re
import sys
import threading
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlx.errors import RlxError
from rlx.store.dataset import Dataset
from rlx.viewer.episode import Episode
from rlx.viewer.page import asked_first, chosen_episodes, page
from rlx.viewer.pictures import picture_field, pillow
from rlx.viewer.player import served, served_strip

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
