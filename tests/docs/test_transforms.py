"""The page of transforms runs, and leaves none out."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import rlx
from rlx.transform.registry import TRANSFORMS
from tests.conftest import Cli
from tests.docs.pages import ROOT, run

PAGE = ROOT / "docs/transforms.md"


def test_the_page_runs(cli: Cli, pong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pong.parent)
    run(PAGE, cli)
    made = rlx.open("mine")
    assert (made[:]["action"] != 0).all()
    assert "scored" in made.schema


def test_every_transform_and_parameter_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    found = {name: set(re.findall(r"`(\w+)`", parameters)) for name, parameters in rows}
    assert list(found) == list(TRANSFORMS)
    for name, kind in TRANSFORMS.items():
        parameters = {one.name for one in fields(kind)}
        assert parameters == {"text"} or found[name] == parameters, name
