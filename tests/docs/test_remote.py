"""The page on datasets at a URL runs from top to bottom, against a server of S3."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.docs.pages import ROOT, run
from tests.s3_server import S3Server


def test_the_page_runs(
    cli: Cli, pong: Path, home: Path, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    s3_server.make_bucket("experience")
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    monkeypatch.chdir(tmp_path)
    names = run(ROOT / "docs/remote.md", cli)
    assert names["steps"].batch_size == (64,)
    assert names["batch"]["observation"].shape == (32, 84, 84)
