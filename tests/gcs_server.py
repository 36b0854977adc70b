"""A loopback HTTP server that answers as Google Cloud Storage does for public objects, with faults on demand.

    with GcsServer(directory) as server:
        server.fault("Pong/*", Fault(cut_after=1000), times=2)   # the next two GETs of these break off
        open_source(server.url).fetch("Pong/run_1-00000-of-00050", ...)
        assert [request.range for request in server.requests] == [None, "bytes=1000-", "bytes=1000-"]

Objects are the files below ``directory``, read afresh for every request. Faults are used up by the requests
that match their pattern and method; a request meets at most one, the oldest.
"""

import base64
import gzip
import hashlib
import re
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

import google_crc32c

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one request.

    Args:
        status: answers this instead of the object.
        headers: set over those of the answer, so that they lie; None takes one away.
        cut_after: the connection ends after that many bytes of the body.
        reset: the connection ends with a reset instead of an orderly close.
        stall_after: falls silent after that many bytes of the body; -1: before the headers.
        stall_s: for so long, or until the server is closed.
        trickle: (bytes, seconds): how much at a time, and the pause after it.
        ignore_range: answers 200 and everything.
        transcode: decompresses the object on the way although the client takes gzip.
        replace_with: what the object is from the next request on.
    """

    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    cut_after: int | None = None
    reset: bool = False
    stall_after: int | None = None
    stall_s: float = 30.0
    trickle: tuple[int, float] | None = None
    ignore_range: bool = False
    transcode: bool = False
    replace_with: bytes | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What one request asked and how it was answered.

    Args:
        method: GET or HEAD.
        path: as it was asked, still quoted.
        name: of the object.
        range: the Range header.
        headers: all headers, names in lower case.
        status: of the answer; 0 if none was given.
        time: when, in seconds of ``time.monotonic``.
    """

    method: str
    path: str
    name: str
    range: str | None
    headers: Mapping[str, str]
    status: int
    time: float


@dataclass(slots=True)
class _Planned:
    pattern: str
    method: str
    fault: Fault
    left: float


class GcsServer:
    """The server, as a context manager.

    Args:
        directory: whose files are the objects.
        bucket: the first part of every path.
        joined_hashes: x-goog-hash is one comma-joined header line instead of two.
        composite: objects have no md5 and an ETag that is none.
        gzip_encoded: patterns of the objects whose metadata has ``Content-Encoding: gzip``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bucket: str = "rl_unplugged",
        joined_hashes: bool = False,
        composite: bool = False,
        gzip_encoded: Collection[str] = (),
    ) -> None:
        self.directory = directory
        self.bucket = bucket
        self.joined_hashes = joined_hashes
        self.composite = composite
        self.gzip_encoded = gzip_encoded
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._planned: list[_Planned] = []
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """URL of the bucket."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self.bucket}"

    @property
    def requests(self) -> list[Request]:
        """All requests so far, in order of their answers."""
        with self._lock:
            return list(self._requests)

    def fault(self, pattern: str, fault: Fault, *, times: int | None = 1, method: str = "GET") -> None:
        """Plans a fault.

        Args:
            pattern: which objects, as a shell pattern over the whole name.
            fault: what goes wrong.
            times: for how many requests; None: for all.
            method: GET, HEAD or ``*`` for both.
        """
        with self._lock:
            left = float("inf") if times is None else times
            self._planned.append(_Planned(pattern, method, fault, left))

    def heal(self) -> None:
        """Forgets all faults that are still planned."""
        with self._lock:
            self._planned.clear()

    def next_fault(self, name: str, method: str) -> Fault:
        """The fault that a request meets, now used up; one that does nothing if none is planned."""
        with self._lock:
            for planned in self._planned:
                fits = fnmatchcase(name, planned.pattern) and planned.method in ("*", method)
                if fits and planned.left > 0:
                    planned.left -= 1
                    return planned.fault
        return Fault()

    def log(self, request: Request) -> None:
        """Remembers a request."""
        with self._lock:
            self._requests.append(request)


class _Server(ThreadingHTTPServer):
    # Joined when the server closes, so that no thread outlives its test.
    daemon_threads = False
    # With the default of 5, one of many clients at once waits a second for its second SYN.
    request_queue_size = 128

    def __init__(self, gcs: GcsServer) -> None:
        self.gcs = gcs
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_close(self) -> None:
        for connection in tuple(self._connections):
            _end(connection)
        super().server_close()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        assert isinstance(request, socket.socket)
        self._connections.discard(request)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        # The client has gone, or the server is closing.
        with suppress(ConnectionError):
            super().handle()

    def _answer(self) -> None:
        gcs = self.server.gcs
        bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        fault = gcs.next_fault(name, self.command)
        if fault.stall_after == -1:
            self._log(name, 0)
            self._stall(fault)
            return
        path = gcs.directory / name
        found = bucket == gcs.bucket and ".." not in name.split("/") and path.is_file()
        status, headers, body = _refusal(404 if fault.status is None else fault.status)
        if found and fault.status is None:
            status, headers, body = self._object(path, name, fault)
        headers |= fault.headers
        if fault.replace_with is not None:
            path.write_bytes(fault.replace_with)
        self._log(name, status)
        self._send(status, headers, body, fault)

    def _object(self, path: Path, name: str, fault: Fault) -> tuple[int, dict[str, str | None], bytes]:
        gcs, stored = self.server.gcs, path.read_bytes()
        encoded = any(fnmatchcase(name, pattern) for pattern in gcs.gzip_encoded)
        headers = self._describe(path, stored, encoded)
        if (wanted := self.headers.get("If-Match")) and wanted != headers["ETag"]:
            return _refusal(412)
        if fault.transcode or (encoded and "gzip" not in self.headers.get("Accept-Encoding", "")):
            headers |= {"Content-Length": None, "Transfer-Encoding": "chunked", "Accept-Ranges": None}
            return 200, headers, gzip.decompress(stored)
        if encoded:
            headers["Content-Encoding"] = "gzip"
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked is None or fault.ignore_range:
            return 200, headers, stored
        begin, end = int(asked[1]), min(int(asked[2] or len(stored)), len(stored) - 1)
        if begin > end:
            status, refusal, body = _refusal(416)
            return status, refusal | {"Content-Range": f"bytes */{len(stored)}"}, body
        part = stored[begin : end + 1]
        headers |= {"Content-Length": str(len(part)), "Content-Range": f"bytes {begin}-{end}/{len(stored)}"}
        return 206, headers, part

    def _describe(self, path: Path, stored: bytes, encoded: bool) -> dict[str, str | None]:
        gcs = self.server.gcs
        md5 = hashlib.md5(stored, usedforsecurity=False)
        crc32c = google_crc32c.value(stored).to_bytes(4, "big")
        hashes = [f"crc32c={base64.b64encode(crc32c).decode()}"]
        if not gcs.composite:
            hashes.append(f"md5={base64.b64encode(md5.digest()).decode()}")
        return {
            "Content-Length": str(len(stored)),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": f'"C{crc32c.hex()}=EAE="' if gcs.composite else f'"{md5.hexdigest()}"',
            "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True),
            "x-goog-generation": str(path.stat().st_mtime_ns // 1000),
            "x-goog-stored-content-encoding": "gzip" if encoded else "identity",
            "x-goog-stored-content-length": str(len(stored)),
            # A newline between two values stands for two header lines.
            "x-goog-hash": ("," if gcs.joined_hashes else "\n").join(hashes),
        }

    def _send(self, status: int, headers: Mapping[str, str | None], body: bytes, fault: Fault) -> None:
        self.send_response(status)
        for key, value in headers.items():
            for line in (value or "").splitlines():
                self.send_header(key, line)
        self.end_headers()
        if self.command == "HEAD":
            return
        if headers.get("Transfer-Encoding") == "chunked":
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif int(headers.get("Content-Length") or -1) != len(body):
            self.close_connection = True
        self._send_body(body, fault)

    def _send_body(self, body: bytes, fault: Fault) -> None:
        gcs = self.server.gcs
        if fault.stall_after is not None:
            self.wfile.write(body[: fault.stall_after])
            self._stall(fault)
            return
        cut = len(body) if fault.cut_after is None else min(fault.cut_after, len(body))
        size, pause_s = fault.trickle or (max(cut, 1), 0.0)
        for begin in range(0, cut, size):
            self.wfile.write(body[begin : min(begin + size, cut)])
            if gcs.closing.wait(pause_s):
                break
        if fault.cut_after is not None:
            self.close_connection = True
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                _end(self.connection)

    def _stall(self, fault: Fault) -> None:
        self.server.gcs.closing.wait(fault.stall_s)
        self.close_connection = True

    def _log(self, name: str, status: int) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        asked = Request(self.command, self.path, name, headers.get("range"), headers, status, time.monotonic())
        self.server.gcs.log(asked)


def _refusal(status: int) -> tuple[int, dict[str, str | None], bytes]:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{status}</Code></Error>".encode()
    return status, {"Content-Type": "application/xml", "Content-Length": str(len(body))}, body


def _end(connection: socket.socket) -> None:
    # The client may have been faster.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
