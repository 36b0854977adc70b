"""Commands that read a dataset at its URL."""

import json
from pathlib import Path

import pytest

from rlx.progress import Silent
from rlx.verbs.push import push
from tests.conftest import Cli


@pytest.fixture
def url(pong: Path, bucket: str) -> str:
    """The sample run in a bucket."""
    push(pong, f"{bucket}/pong", progress=Silent())
    return f"{bucket}/pong"


def test_inspect_tells_the_same(cli: Cli, pong: Path, url: str) -> None:
    for options in ([], ["--stats"], ["--trajectories"]):
        here, there = cli("inspect", pong, *options, "--json"), cli("inspect", url, *options, "--json")
        assert there.code == 0, there.err
        assert json.loads(there.out) == json.loads(here.out) | {"path": url}


def test_sample_draws_the_same(cli: Cli, pong: Path, url: str, tmp_path: Path) -> None:
    for number, dataset in enumerate((pong, url)):
        result = cli("sample", dataset, "--slice-len", 16, "--seed", 3, "-o", tmp_path / f"{number}.pt")
        assert result.code == 0, result.err
    assert (tmp_path / "0.pt").read_bytes() == (tmp_path / "1.pt").read_bytes()


def test_commands_that_need_a_directory_say_how_to_get_one(cli: Cli, url: str, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for arguments in (
        ["repair", url],
        ["convert", url, new],
        ["preprocess", url, new, "--transform", "sign_reward"],
        ["merge", url, "-o", new],
        ["split", url, "--fractions", "0.5,0.5", "-o", new],
    ):
        result = cli(*arguments)
        assert result.code == 5
        assert f"hint: rlx pull {url}\n" in result.err, arguments
    assert not new.exists()
