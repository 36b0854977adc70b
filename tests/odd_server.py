"""A loopback HTTP server whose answers are written byte by byte, so that any of their headers can be odd.

with OddServer(directory, lambda answer: answer.set("Content-Length", "-1")) as server:
    rlx.open(f"{server.url}/data")
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

_MAX_REQUEST_BYTES = 2**16


@dataclass
class Answer:
    """What a well-behaved server would answer, to be made odd.

    Args:
        path: what was asked for, unquoted.
        is_range: whether the request asked for a part.
        status: code and reason.
        headers: names and values, in the order in which they are sent.
        body: sent after the headers, but not for HEAD.
    """

    path: str
    is_range: bool
    status: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def set(self, name: str, value: str | bytes) -> None:
        """Replace a header, or add it."""
        self.drop(name)
        self.add(name, value)

    def add(self, name: str, value: str | bytes) -> None:
        """Add a header, even a second of its name."""
        self.headers.append((name.encode(), value if isinstance(value, bytes) else value.encode()))

    def drop(self, name: str) -> None:
        """Leave a header out."""
        self.headers = [(known, value) for known, value in self.headers if known.lower() != name.lower().encode()]

    def head(self) -> bytes:
        """Return the bytes before the body."""
        lines = [b"HTTP/1.1 " + self.status, *(name + b": " + value for name, value in self.headers)]
        return b"\r\n".join([*lines, b"", b""])


class OddServer:
    """The files below a directory; every connection serves one request.

    Args:
        directory: where they lie.
        odd: changes each answer before it is sent.
    """

    def __init__(self, directory: Path, odd: Callable[[Answer], None]) -> None:
        self._directory = directory
        self._odd = odd
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client may go
            request = b""
            while b"\r\n\r\n" not in request and len(request) < _MAX_REQUEST_BYTES:
                received = connection.recv(2**16)
                if not received:
                    return
                request += received
            method, target, _ = request.split(b"\r\n")[0].split(b" ")
            answer = self._good(unquote(target.decode()).partition("?")[0], request)
            self._odd(answer)
            connection.sendall(answer.head() + (b"" if method == b"HEAD" else answer.body))
            connection.shutdown(socket.SHUT_WR)

    def _good(self, path: str, request: bytes) -> Answer:
        file = self._directory / path.lstrip("/")
        if not file.is_file():
            return Answer(path, False, b"404 Not Found", [(b"Content-Length", b"0"), (b"Connection", b"close")])
        content = file.read_bytes()
        headers = [
            (b"Date", b"Sun, 22 Nov 2026 07:00:00 GMT"),
            (b"Last-Modified", b"Sun, 22 Nov 2026 06:00:00 GMT"),
            (b"ETag", b'"%x"' % len(content)),
            (b"Accept-Ranges", b"bytes"),
            (b"Connection", b"close"),
        ]
        asked = next((line for line in request.split(b"\r\n") if line.lower().startswith(b"range: bytes=")), None)
        if asked is None:
            return Answer(path, False, b"200 OK", [*headers, (b"Content-Length", b"%d" % len(content))], content)
        first, _, last = asked.partition(b"=")[2].partition(b"-")
        start, stop = int(first), min(int(last) + 1 if last else len(content), len(content))
        part = content[start:stop]
        told = [
            (b"Content-Range", b"bytes %d-%d/%d" % (start, stop - 1, len(content))),
            (b"Content-Length", b"%d" % len(part)),
        ]
        return Answer(path, True, b"206 Partial Content", [*headers, *told], part)
