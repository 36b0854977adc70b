"""The pages that come of the code are what the code would make of them, and the site has them all."""

from pathlib import Path

import pytest
import yaml

from rlx import errors
from scripts.docs import DOCS, pages
from scripts.reference import reference
from tests.cli.test_help import COMMANDS

SITE = DOCS.parent / "mkdocs.yml"


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_is_fresh(path: Path) -> None:
    assert path.read_text() == pages()[path], "run: scripts/docs"


def test_every_command_has_a_page_and_no_other_has() -> None:
    found = {path.stem for path in (DOCS / "commands").iterdir()}
    assert found == {"index", *COMMANDS}


def test_every_error_is_explained() -> None:
    text = (DOCS / "errors.md").read_text()
    named = [name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == "rlx.errors"]
    assert [name for name in named if f"`{name}`" not in text] == []


def test_the_site_has_every_page() -> None:
    listed: set[str] = set()
    places = [yaml.safe_load(SITE.read_text())["nav"]]
    while places:
        place = places.pop()
        if isinstance(place, str):
            listed.add(place)
        else:
            places += place.values() if isinstance(place, dict) else place
    assert listed == {str(path.relative_to(DOCS)) for path in {*DOCS.rglob("*.md"), *reference()}}
