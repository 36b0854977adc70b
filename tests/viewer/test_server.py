"""The server: the page, any episode and its frames; nothing else, and nobody else."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import SamplingError
from rlx.store.dataset import Dataset
from rlx.viewer.episode import Episode
from rlx.viewer.page import HOST, MAX_CONNECTIONS, ViewServer, _Handler
from tests.viewer import datasets
from tests.viewer.page_data import page_data, strip_frames


@pytest.fixture
def opened(pong: Path) -> Dataset:
    return rlx.open(pong)


@pytest.fixture
def server(opened: Dataset) -> Iterator[ViewServer]:
    yield from serving(ViewServer(opened))


def serving(server: ViewServer) -> Iterator[ViewServer]:
    """A server that answers."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(
    server: ViewServer, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, str | None, bytes]:
    """Status, kind and body of an answer."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"{HOST}:{server.server_port}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def test_the_page(server: ViewServer) -> None:
    status, kind, body = get(server, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert page_data(body.decode())["served"] is True
    assert server.url == f"http://127.0.0.1:{server.server_port}/"
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/", method="HEAD")[2] == b""


def test_any_episode_and_all_its_frames(server: ViewServer, opened: Dataset) -> None:
    for number in range(6):
        status, kind, body = get(server, f"/episodes/{number}.json")
        said = json.loads(body)
        assert (status, kind, said["number"], said["every"]) == (200, "application/json", number, 1)
        frames = []
        for strip in said["frames"]["strips"]:
            status, kind, body = get(server, f"/{strip}")
            assert (status, kind) == (200, "image/png")
            frames += strip_frames(said["frames"], body)[: said["frames"]["count"]]
        wanted = Episode(opened, number).frames("observation", np.arange(len(said["rows"])))
        assert np.array_equal(frames[: len(wanted)], wanted)


@pytest.mark.parametrize(
    "path",
    [
        "/rlx.json",
        "/../rlx.json",
        "/episodes/../../rlx.json",
        "/episodes/6.json",
        "/episodes/-1.json",
        "/episodes/99999999999999999999.json",
        "/episodes/0.json?x=1",
        "/episodes/0/strips/999.png",
        "/episodes/6/strips/0.png",
        "/episodes/0/strips/-1.png",
        "/episodes/%30.json",
        "/episodes/\u0661.json".encode().decode("latin-1"),
        "/favicon.ico",
    ],
)
def test_nothing_else(server: ViewServer, path: str) -> None:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    connection.connect()
    assert connection.sock is not None
    connection.sock.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode("latin-1"))
    status = connection.sock.makefile("rb").readline().split()[1]
    connection.close()
    assert status in (b"404", b"400")


def test_nobody_else(server: ViewServer) -> None:
    assert get(server, "/", host="evil.example")[0] == 403
    assert get(server, "/episodes/0.json", host="evil.example:80")[0] == 403
    assert get(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert get(server, "/", method="POST")[0] == 501


def test_a_damaged_shard_is_said(tmp_path: Path) -> None:
    dataset = datasets.coloured(tmp_path / "set")
    for server in serving(ViewServer(dataset)):
        (dataset.path / "shards/00000/observation/c/0/0/0/0").write_bytes(b"")
        dataset = rlx.open(dataset.path)
        server.dataset = dataset
        server.episode.cache_clear()
        status, _, body = get(server, "/episodes/0.json")
        assert (status, b"expected" in body) == (500, True)


def test_the_episode_that_is_shown_first(opened: Dataset) -> None:
    with ViewServer(opened, first=4) as server:
        assert page_data(server.page.decode())["first"] == 4
    with pytest.raises(SamplingError, match="episode 6: expected 0 to 5"):
        ViewServer(opened, first=6)


def test_numbers_without_pictures(tmp_path: Path) -> None:
    dataset = datasets.numbers(tmp_path / "set")
    for server in serving(ViewServer(dataset)):
        said = json.loads(get(server, "/episodes/1.json")[2])
        assert "frames" not in said
        assert [one["name"] for one in said["lines"]] == [f"observation[{n}]" for n in range(4)]
        assert len(said["lines"][0]["values"]) == 41
        assert get(server, "/episodes/1/strips/0.png")[0] == 404


def test_connections_are_bounded(server: ViewServer) -> None:
    opened = [socket.create_connection((HOST, server.server_port), timeout=20) for _ in range(MAX_CONNECTIONS)]
    try:
        with socket.create_connection((HOST, server.server_port), timeout=20) as refused:
            assert refused.recv(100).startswith(b"HTTP/1.1 503 ")
    finally:
        for connection in opened:
            connection.close()
    for _ in range(100):  # until the threads have seen that nobody is there
        with socket.create_connection((HOST, server.server_port), timeout=20) as again:
            again.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}:{server.server_port}\r\n\r\n".encode())
            if again.recv(12) == b"HTTP/1.1 200":
                return
        time.sleep(0.05)
    pytest.fail("closed connections still count")


def test_idle_connections_are_closed(opened: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.1)
    for server in serving(ViewServer(opened)):
        with socket.create_connection((HOST, server.server_port), timeout=20) as idle:
            assert idle.recv(1) == b""
