"""The map in docs/design.md shows every package and module, and each package says what it is for."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from scripts.package_map import PAGE, ROOT, design, modules, packages

# Of the lower-case names in packages' docstrings: this one, a format and other projects' packages.
OF_OTHERS = {"rlx", "parquet", "datasets", "streaming"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_map_is_the_tree() -> None:
    assert PAGE.read_text() == design(), "run: scripts/docs"
    rows = dict(re.findall(r"^\| `([\w/]+)` \|.*\| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    files = [file for top in ("rlx", "commands") for file in (ROOT / top).rglob("*.py") if file.stem != "__init__"]
    found = {(file.parent.relative_to(ROOT).as_posix(), file.stem) for file in files}
    assert {(package, name) for package, names in rows.items() for name in filter(None, names.split(", "))} == found


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.relative_to(ROOT).as_posix())
def test_a_package_says_what_it_is_for_and_where_to_start(package: Path) -> None:
    """In two sentences or more, of which one names its entry points: they are there."""
    name = ".".join(package.relative_to(ROOT / "commands" if "commands" in package.parts else ROOT).parts)
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert len(re.findall(r"[.;](?:\s|$)", text)) >= 2
    named = re.findall(r"``([\w.]+)``", text)
    assert named, "expected an entry point"
    dotted = [one for one in named if re.fullmatch(r"[a-z]\w*\.\w+", one) and not one.startswith("rlx.")]
    for one in dotted:
        module, _, member = one.partition(".")
        assert module in modules(package), f"{one}: {name} has no module {module}"
        assert hasattr(import_module(f"{name}.{module}"), member), one
    plain = {one for one in named if re.fullmatch(r"[a-z]\w*", one)} - OF_OTHERS
    assert plain <= {*modules(package)}
    assert dotted or plain or any(one.startswith("rlx.") for one in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:rlx|commands|scripts|tests|packaging)/[\w/.-]+)`", page.read_text()))
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []
