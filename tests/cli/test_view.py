import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.verbs.push import push
from rlx.viewer.server import ViewServer
from tests.conftest import Cli
from tests.viewer.datasets import numbers


@pytest.mark.parametrize(("suffix", "head"), [("png", b"\x89PNG"), ("gif", b"GIF89a"), ("html", b"<!doctype html>")])
def test_a_file(cli: Cli, pong: Path, tmp_path: Path, suffix: str, head: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    result = cli("view", pong, "-o", path, "--episode", 2, "--json", "--quiet")
    assert (result.code, result.err) == (0, "")
    said = json.loads(result.out)
    assert list(said) == ["file", "format", "episodes", "frames", "every", "bytes"]
    assert (said["file"], said["format"], said["episodes"][0]) == (str(path), suffix, 2)
    assert said["bytes"] == path.stat().st_size
    assert path.read_bytes().startswith(head)


def test_a_film_for_people(cli: Cli, tmp_path: Path) -> None:
    dataset = numbers(tmp_path / "set").path
    result = cli("view", dataset, "-o", tmp_path / "a.mp4", "--fps", 15, "--quiet")
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("Test/1: episode 1, 41 frames; ")
    assert second == str(tmp_path / "a.mp4")


def test_plots(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli("inspect", pong, "--plot", tmp_path / "plots/a.png", "--json")
    assert (result.code, json.loads(result.out)["plot"]) == (0, str(tmp_path / "plots/a.png"))
    with Image.open(tmp_path / "plots/a.png") as image:
        assert (image.size[0], image.mode) == (2 * (2 * 420 + 16 + 2 * 24), "RGB")
    result = cli("inspect", pong, "--plot", tmp_path / "a.jpg")
    assert (result.code, "a.jpg: expected a name that ends in .png" in result.err) == (2, True)


def test_what_is_wrong_is_named(cli: Cli, pong: Path, tmp_path: Path) -> None:
    for arguments, code, problem in [
        ((tmp_path / "nothing",), 5, "no dataset at"),
        ((pong, "-o", tmp_path / "a.avi"), 2, "a.avi: expected a name that ends in .png, .gif, .mp4, .html"),
        ((pong, "-o", tmp_path / "a.png", "--episode", 6), 1, "episode 6: expected 0 to 5"),
        ((pong, "-o", tmp_path / "a.png", "--fps", 15), 2, "--fps requires a video"),
        ((pong, "--episode", 6), 1, "episode 6: expected 0 to 5"),
        ((pong, pong, "-o", tmp_path / "a.png"), 2, "two datasets are compared in a page"),
    ]:
        result = cli("view", *arguments)
        assert (result.code, problem in result.err) == (code, True), result.err
    assert not list(tmp_path.glob("a.*"))


@pytest.mark.parametrize("name", ["pong.png", "pong.gif", "report.html"])
def test_at_a_url_it_is_the_same_file(cli: Cli, pong: Path, bucket: str, tmp_path: Path, name: str) -> None:
    url = f"{bucket}/pong"
    push(pong, url, progress=Silent())
    assert cli("view", pong, "-o", tmp_path / f"here-{name}").code == 0
    assert cli("view", url, "-o", tmp_path / name).code == 0
    here = (tmp_path / f"here-{name}").read_bytes().replace(str(pong).encode(), url.encode())
    assert (tmp_path / name).read_bytes() == here


def test_a_port_that_is_taken(cli: Cli, pong: Path) -> None:
    with ViewServer(Dataset(pong)) as server:
        result = cli("view", pong, "--port", server.server_port)
    assert result.code == 2
    assert f"cannot listen on port {server.server_port} of 127.0.0.1" in result.err


def test_without_a_file_it_serves_until_ctrl_c(pong: Path) -> None:
    program = [sys.executable, "-c", "from rlx_cli.app import main; main()", "view", str(pong), "--json"]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline() + process.stdout.readline() + process.stdout.readline())["url"]
        with urllib.request.urlopen(url) as answer:
            assert b"Pong/5" in answer.read()
        with urllib.request.urlopen(f"{url}episodes/5.json") as answer:
            assert json.load(answer)["number"] == 5
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.wait(20) == 0
        assert process.stderr.read() == "hint: Ctrl-C stops the server\n\n"
