"""The examples of CONTRIBUTING.md work in the places that it names."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import formats, plugins
from rlx.formats import registry as registry_of_formats
from rlx.transform import registry
from rlx_cli.app import app, with_output_options
from tests.conftest import Cli
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "CONTRIBUTING.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the page's Python defines."""
    found: dict[str, Any] = {}
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.code, str(PAGE), "exec"), found)
    return found


def test_the_transform(names: dict[str, Any], pong: Path, cli: Cli, tmp_path: Path, monkeypatch: Any) -> None:
    transforms = {**registry.TRANSFORMS, "negate_reward": names["NegateReward"]}
    monkeypatch.setattr(registry, "TRANSFORMS", transforms)
    result = cli(*("preprocess", pong, tmp_path / "new", "--transform", "negate_reward", "--num-workers", "1"))
    assert result.code == 0, result.err
    rows = np.arange(200)
    new, old = (rlx.open(path)[rows]["next", "reward"] for path in (tmp_path / "new", pong))
    assert (new == -old).all()
    assert old.any()


def test_the_format(
    pong: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "formats/csv"
    folder.mkdir(parents=True)
    table = {**plugins.OWN, "rlx.formats": {**plugins.OWN["rlx.formats"], "csv": "rlx.formats.csv:FORMAT"}}
    monkeypatch.setattr(plugins, "OWN", table)
    for file, mark in (("__init__", "FORMAT = "), ("writer", "BATCHES = ")):
        (folder / f"{file}.py").write_text(next(block.code for block in blocks(PAGE) if mark in block.code))
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(folder.parent)])
    for cached in (plugins.plugins, registry_of_formats.formats):
        cached.cache_clear()
        request.addfinalizer(cached.cache_clear)
    result = cli("sample", pong, "--batch-size", "5", "-o", tmp_path / "steps.csv")
    assert result.code == 0, result.err
    heading, *lines = (tmp_path / "steps.csv").read_text().splitlines()
    assert "next/reward" in heading.split(",")
    assert len(lines) == 5


def test_the_command(names: dict[str, Any], pong: Path, cli: Cli) -> None:
    app.command("count")(with_output_options(names["count"]))
    try:
        assert cli("count", pong).out == f"{len(rlx.open(pong)):,} steps\n"
        assert json.loads(cli("count", pong, "--json").out) == {"steps": len(rlx.open(pong))}
    finally:
        app.registered_commands.pop()


def test_every_path_that_it_names_is_there() -> None:
    named = set(re.findall(r"`((?:rlx|commands|tests|scripts|docs)/[\w./]+)`", PAGE.read_text()))
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
