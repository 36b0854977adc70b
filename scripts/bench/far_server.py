"""A web server some milliseconds away, in a process of its own: a directory over HTTP, with ranges, and little else.

It answers some thousand requests a second, many at a time, each after a delay, as a bucket does.
"""

import asyncio
import multiprocessing
import re
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

_REQUEST = re.compile(rb"(GET|HEAD) /(\S*) HTTP/1.1\r\n")
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)


class FarServer:
    """The server, as a context manager.

    Args:
        directory: whose files it serves.
        delay_s: time before each answer.
    """

    def __init__(self, directory: Path, delay_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(directory), delay_s, there), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self.url = f"http://127.0.0.1:{self._ready.recv()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()


def _serve(directory: str, delay_s: float, ready: Connection) -> None:
    root = Path(directory)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(delay_s)
                writer.write(_answer(root, asked))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def _answer(root: Path, asked: bytes) -> bytes:
    request, wanted = _REQUEST.match(asked), _RANGE.search(asked)
    path = root / unquote(request[2].decode()) if request else root
    if request is None or not path.is_file():
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    size = path.stat().st_size
    first, last = (int(wanted[1]), min(int(wanted[2]), size - 1)) if wanted else (0, size - 1)
    with path.open("rb") as file:
        file.seek(first)
        body = b"" if request[1] == b"HEAD" else file.read(last + 1 - first)
    status = f"206 Partial Content\r\nContent-Range: bytes {first}-{last}/{size}" if wanted else "200 OK"
    head = f'HTTP/1.1 {status}\r\nContent-Length: {last + 1 - first}\r\nETag: "{size}"\r\n\r\n'
    return head.encode() + body
