"""The page of other projects' formats: it runs from top to bottom, and names every format there is."""

import re
import sys
from pathlib import Path

import pytest

from rlx.verbs.export import EXPORT_FORMATS
from tests.conftest import Cli
from tests.docs.pages import ROOT, run

PAGE = ROOT / "docs/formats.md"


def test_the_page_runs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "nowhere"))
    monkeypatch.delitem(sys.modules, "minari", raising=False)
    assert run(PAGE, cli)["dataset"].total_steps == 600


def test_every_format_is_on_the_page() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(EXPORT_FORMATS)
