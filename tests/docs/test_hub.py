"""The page on the hub runs from top to bottom, against a hub on loopback."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.docs.pages import ROOT, run
from tests.hub_server import HubServer


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_page_runs(
    cli: Cli, pong: Path, home: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    monkeypatch.chdir(tmp_path)
    names = run(ROOT / "docs/hub.md", cli)
    assert names["batch"].batch_size == (128,)
    assert hub.files("me/pong-5")["rlx.json"] == (tmp_path / "copy/rlx.json").read_bytes()
