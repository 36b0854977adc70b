"""The server: the page, any episode and its frames; nothing else, and nobody else."""

import html
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import rlx
from rlx import wording
from rlx.errors import SamplingError
from rlx.files.lock import writing
from rlx.store.dataset import Dataset
from rlx.store.statistics import apart
from rlx.viewer.drawing import Label
from rlx.viewer.episode import Episode
from rlx.viewer.overview import Overview
from rlx.viewer.server import HOST, MAX_CONNECTIONS, Shown, ViewServer, _Handler
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
    server: ViewServer, path: str, *, host: str | None = None, method: str = "GET", heads: Mapping[str, str] = {}
) -> tuple[int, str | None, bytes]:
    """Status, kind and body of an answer."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"{HOST}:{server.server_port}")
        for name, value in heads.items():
            connection.putheader(name, value)
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


def test_fifty_clients_at_once(server: ViewServer) -> None:
    paths = ["/", "/table.json?sort=return", *(f"/episodes/{number}.json" for number in range(6))] * 25
    with ThreadPoolExecutor(50) as clients:
        assert {status for status, _, _ in clients.map(lambda path: get(server, path), paths)} == {200}


def test_any_episode_and_all_its_frames(server: ViewServer, opened: Dataset) -> None:
    for number in range(6):
        status, kind, body = get(server, f"/episodes/{number}.json")
        said = json.loads(body)
        assert (status, kind, said["number"], said["every"]) == (200, "application/json", number, 1)
        (layout,), frames = said["frames"], []
        for strip in layout["strips"]:
            status, kind, body = get(server, f"/{strip}")
            assert (status, kind) == (200, "image/png")
            frames += strip_frames(layout, body)[: layout["count"]]
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
        "/episodes/0/0/999.png",
        "/episodes/0/1/0.png",
        "/episodes/6/0/0.png",
        "/episodes/0/0/-1.png",
        "/v1/episodes/0.json",
        "/0/episodes/0.json",
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
    assert get(server, "/", host=f"localhost.evil.example:{server.server_port}")[0] == 403
    assert get(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert get(server, "/", host="localhost:9")[0] == 200  # a port that ssh forwards
    asking = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert get(server, "/table.json", heads=asking)[0] == 403
    assert get(server, "/", heads={**asking, "Sec-Fetch-Mode": "navigate"})[0] == 200
    assert get(server, "/", method="POST")[0] == 501


def test_a_damaged_shard_is_said(tmp_path: Path) -> None:
    dataset = datasets.coloured(tmp_path / "set")
    for server in serving(ViewServer(dataset)):
        (dataset.path / "shards/00000/observation/c/0/0/0/0").write_bytes(b"")
        dataset = rlx.open(dataset.path)
        server.shown = [Shown(dataset)]
        status, _, body = get(server, "/episodes/0.json")
        assert (status, b"expected" in body) == (500, True)


def test_the_episode_that_is_shown_first(opened: Dataset) -> None:
    with ViewServer(opened, first=4) as server:
        assert page_data(server.shown[0].page(0).decode())["first"] == 4
    with pytest.raises(SamplingError, match="episode 6: expected 0 to 5"):
        ViewServer(opened, first=6)


def test_numbers_without_pictures(tmp_path: Path) -> None:
    dataset = datasets.numbers(tmp_path / "set")
    for server in serving(ViewServer(dataset)):
        said = json.loads(get(server, "/episodes/1.json")[2])
        assert said["frames"] == []
        ((name, lines),) = [(one["name"], one["lines"]) for one in said["curves"]]
        assert (name, len(lines), len(lines[0])) == ("observation", 4, 41)
        assert get(server, "/episodes/1/0/0.png")[0] == 404


def test_all_that_a_step_holds_is_in_the_answer(tmp_path: Path) -> None:
    dataset = rlx.open(datasets.everything(tmp_path / "set").path)
    for server in serving(ViewServer(dataset)):
        for place, steps in enumerate(dataset):
            said = json.loads(get(server, f"/v0/episodes/{place}.json")[2])
            curves = {one["name"]: one["lines"] for one in said["curves"]}
            states = [*steps["observation", "state"], steps["next", "observation", "state"][-1]]
            assert list(curves) == ["observation/state", "value", "grip"]
            for row, state in enumerate(states):
                assert [line[row] for line in curves["observation/state"]] == pytest.approx(
                    state[:6].tolist(), rel=1e-5
                )
            assert curves["value"] == [[*steps["value"].flatten().tolist(), None]]
            assert curves["grip"] == [[*map(float, steps["grip"].flatten().tolist()), None]]
            assert said["actions"] == [pytest.approx(one.tolist(), rel=1e-5) for one in steps["action"]]
            (text,) = said["texts"]
            assert [text["table"][at] for at in text["rows"]] == [f"go to <b>{place}</b>  [31m"] * len(states)
            assert (text["name"], said["hidden"]) == ("observation/task", 0)
            assert [one["name"] for one in said["frames"]] == ["observation/front", "observation/wrist"]
            for layout, camera in zip(said["frames"], ("front", "wrist"), strict=True):
                frames = [
                    frame
                    for strip in layout["strips"]
                    for frame in strip_frames(layout, get(server, f"/{strip}")[2])[: layout["count"]]
                ]
                seen = [*steps["observation", camera], steps["next", "observation", camera][-1]]
                for frame, picture in zip(frames, seen, strict=False):
                    wanted = picture.numpy()
                    assert np.array_equal(frame, wanted if wanted.ndim == 3 else np.stack([wanted] * 3, axis=-1))


def rows_of(server: ViewServer, **asked: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server, f"/table.json?{urlencode(asked)}")[2])
    return found


@pytest.mark.parametrize("where", ["", "return > -21", "whole and length < 500 or id == 3", "subsample:every=2", "cut"])
def test_the_table_is_what_filter_leaves(server: ViewServer, opened: Dataset, where: str) -> None:
    chosen = ["filter:True" if not where else where if ":" in where else f"filter:{where}"]
    kept = rlx.preprocess(opened.path, opened.path.parent / "kept", transform=chosen, num_workers=1)
    wanted = rlx.open(kept.dataset).trajectories
    found = rows_of(server, where=where)
    assert [row[1:3] for row in found["rows"]] == [*map(list, zip(wanted.returns, wanted.length, strict=True))]
    assert (found["found"], found["of"]) == (len(wanted), 6)
    for column, name in enumerate(("id", "return", "length")):
        up, down = (rows_of(server, where=where, sort=name, **way)["rows"] for way in ({}, {"down": 1}))
        assert [row[column] for row in up] == sorted(row[column] for row in found["rows"])
        assert [row[column] for row in down] == sorted((row[column] for row in found["rows"]), reverse=True)
    assert len(rows_of(server, most=2)["rows"]) == 2


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("retrun > 1", "name 'retrun' is unknown"),
        ("scale_reward:scale=2", "expected a condition, filter:... or subsample:..."),
        ("filter:", "unexpected end"),
        ("x:y", "expected a condition"),
        ("subsample:every=-1", "expected at least 1"),
    ],
)
def test_what_is_wrong_with_a_filter_is_said(server: ViewServer, where: str, problem: str) -> None:
    status, _, body = get(server, f"/table.json?{urlencode({'where': where})}")
    assert (status, problem in json.loads(body)["error"]) == (200, True), body


def test_a_filter_runs_no_code(server: ViewServer, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef name(): pass\n")
    for where in (f"relabel:{tmp_path}/code.py:name", f" relabel:{tmp_path}/code.py:name"):
        assert b'"error"' in get(server, f"/table.json?{urlencode({'where': where})}")[2]
    assert not (tmp_path / "ran").exists()


def test_a_dataset_that_grows_is_followed(tmp_path: Path) -> None:
    rlx.collect("CartPole-v1", episodes=3, output=tmp_path / "set", seed=0)
    before = rlx.open(tmp_path / "set")
    for server in serving(ViewServer(rlx.open(tmp_path / "set"))):
        assert json.loads(get(server, "/live.json")[2]) == {"edition": 0, "writing": False}
        rlx.collect("CartPole-v1", episodes=5, output=tmp_path / "set", seed=0, resume=True)
        with writing(tmp_path / "set"):
            assert json.loads(get(server, "/live.json")[2]) == {"edition": 1, "writing": True}
        assert (rows_of(server)["of"], page_data(get(server, "/")[2].decode())["count"]) == (5, 5)
        for edition, status in ((0, 404), (1, 200)):
            assert get(server, f"/v{edition}/episodes/4.json")[0] == status
        assert get(server, "/v0/episodes/2.json")[0] == 200
    shown = Shown(before)  # it grew after it was opened
    shown.refresh()
    assert shown.edition == 1


def test_two_datasets_are_compared(tmp_path: Path) -> None:
    both = [datasets.numbers(tmp_path / "a"), datasets.numbers(tmp_path / "b", [[2.0] * n for n in (60, 4)])]
    for server in serving(ViewServer(*both)):
        text = html.unescape(get(server, "/")[2].decode())
        for dataset in both:
            for name in ("return", "length", "reward", "observation"):
                for _, part in apart(name, dataset.stats[name]):
                    assert f"{wording.number(part['mean'])} \N{PLUS-MINUS SIGN} {wording.number(part['std'])}" in text
        assert text.count("A: ") - text.count("B: ") in (0, 1, -1)
        for place in (0, 1):
            assert page_data(get(server, f"/{place}/")[2].decode())["count"] == len(both[place].trajectories)
            assert json.loads(get(server, f"/{place}/table.json")[2])["of"] == len(both[place].trajectories)
            assert get(server, f"/{place}/v0/episodes/1.json")[0] == 200
        assert get(server, "/table.json")[0] == 404
    first, second = (Overview.of(dataset) for dataset in both)
    scales = [
        [label.text for mark in drawing.marks if isinstance(label := mark, Label) and label.anchor != "end"]
        for drawing in (first.drawings(400, 200, second)[1], second.drawings(400, 200, first)[1])
    ]
    assert scales[0] == scales[1]


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
