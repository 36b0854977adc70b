"""The tables of migrating.md hold every public name of TorchRL with its arguments, against TorchRL and against rlx."""

import inspect
import keyword
import re
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlx.lazy_imports import INSTEAD
from tests.docs import torchrl_api

PAGE = Path(__file__).parents[2] / "docs/migrating.md"
NOT_HERE = "not here"
# A heading of the page, and the modules of TorchRL whose names its table holds.
SECTIONS = {
    "`torchrl.data`": ("torchrl.data", "torchrl.data.replay_buffers", "torchrl.data.replay_buffers.scheduler"),
    "`torchrl.data.datasets`": ("torchrl.data.datasets",),
    "`torchrl.collectors`": ("torchrl.collectors", "torchrl.collectors.distributed", "torchrl.collectors.utils"),
    "`torchrl.envs`": ("torchrl.envs",),
}
# Where a user of TorchRL looks for the names of a section.
PACKAGES = {
    "`torchrl.data`": "rlx.buffer",
    "`torchrl.data.datasets`": "rlx.datasets",
    "`torchrl.collectors`": "rlx.collector",
    "`torchrl.envs`": "rlx.buffer",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: a name of TorchRL, where it is here, and what differs or is to be used instead."""

    section: str
    name: str
    here: str
    text: str

    @property
    def member(self) -> Any:
        """The class or function of rlx."""
        module, _, name = self.here.strip("`").rpartition(".")
        return getattr(import_module(module), name)

    @property
    def api(self) -> dict[str, Any]:
        """What TorchRL's has, as recorded."""
        return next(API[module][self.name] for module in SECTIONS[self.section] if self.name in API[module])


def table(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading of the page."""
    body = PAGE.read_text().split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = re.findall(r"^\| (.*) \|$", body.replace(" | |\n", " |  |\n"), re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if not line.startswith("-")]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


API = torchrl_api.recorded()
ROWS = [
    Row(section, cells[0].strip("`"), *cells[1:])
    for section in SECTIONS
    for cells in table(section)
    if cells[0] != "TorchRL"
]
HERE = [row for row in ROWS if row.here != NOT_HERE]
# Of transforms and environments, the rows name what is called otherwise.
COMPARED = [row for row in HERE if row.section != "`torchrl.envs`"]
NOWHERE = {name for cells in table("Arguments and methods") for name in quoted(cells[0])}


@pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is not installed: what was recorded of it counts")
def test_what_was_recorded_is_what_torchrl_offers() -> None:
    assert version("torchrl") == torchrl_api.VERSION
    assert torchrl_api.installed() == API


@pytest.mark.parametrize("section", SECTIONS)
def test_every_public_name_has_one_row(section: str) -> None:
    public = Counter(name for module in SECTIONS[section] for name in API[module])
    assert Counter(row.name for row in ROWS if row.section == section) == public


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_what_is_here_can_be_imported(row: Row) -> None:
    assert callable(row.member)


def _has(member: Any, name: str) -> bool:
    return hasattr(member, name) or any(name in inspect.get_annotations(above) for above in member.__mro__)


def missing(row: Row) -> set[str]:
    """The arguments and methods that only TorchRL's has; an argument of a method as ``method(argument)``."""
    found = set(row.api["arguments"] or ()) - set(torchrl_api.arguments_of(row.member))
    for method, arguments in (row.api.get("methods") or {}).items():
        if not _has(row.member, method):
            found.add(method)
        elif callable(ours := getattr(row.member, method, None)):
            known = [name for name in torchrl_api.arguments_of(ours) if name != "self"]
            # The first may have another name: it is given by position.
            found |= {f"{method}({name})" for name in set(arguments[min(1, len(known)) :]) - set(known)}
    return found


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row.name)
def test_every_argument_and_method_is_here_or_named(row: Row) -> None:
    assert missing(row) <= quoted(row.text) | NOWHERE


def test_nothing_is_called_missing_that_every_class_has() -> None:
    assert set().union(*(missing(row) for row in COMPARED)) >= NOWHERE


@pytest.mark.parametrize("row", [row for row in ROWS if row not in HERE], ids=lambda row: row.name)
def test_what_is_not_here_says_what_to_use_instead(row: Row) -> None:
    package = PACKAGES[row.section]
    assert row.text == INSTEAD[package][row.name]
    with pytest.raises(ImportError, match=re.escape(f"{package} has no {row.name}: {row.text}")):
        exec(f"from {package} import {row.name}")


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_what_has_another_name_here_is_named_by_an_error(row: Row) -> None:
    package = PACKAGES[row.section]
    if (row.here.startswith("`rlx.collector.") and package == "rlx.buffer") or row.here == f"`{package}.{row.name}`":
        assert row.name not in INSTEAD[package]
        return
    with pytest.raises(ImportError, match=rf"use `[\w.]*\b{row.here.strip('`').rpartition('.')[2]}`"):
        exec(f"from {package} import {row.name}")


def test_no_advice_is_about_a_name_that_is_here() -> None:
    for package, names in INSTEAD.items():
        assert not set(names) & set(import_module(package).__all__)
        assert set(names) <= {row.name for row in ROWS}


@pytest.mark.parametrize("package", INSTEAD)
def test_advice_names_classes_and_arguments_that_are_here(package: str) -> None:
    here = {name: getattr(import_module(each), name) for each in INSTEAD for name in import_module(each).__all__}
    for text in set(INSTEAD[package].values()):
        for code in quoted(text):
            for name, given in re.findall(r"\b([A-Z]\w+)\b(?:\(([^()]*)\))?", code.replace("EXPRESSION", "")):
                if keyword.iskeyword(name):
                    continue
                assert name in here, text
                arguments = set(re.findall(r"(\w+)=", given))
                assert arguments <= set(torchrl_api.arguments_of(here[name])), text
