"""The Python reference: every public name is on it, with a signature, its arguments and an example that runs."""

import inspect
import re
from typing import Any

import pytest

from scripts.reference import DIRECTORY, PACKAGES, members, reference

# These need a cluster, a network or a second machine; the others run as doctests.
_NOT_RUN = frozenset(
    {"DistributedCollector", "RPCCollector", "RayCollector", "RayReplayBuffer", "MinariExperienceReplay", "list_runs"}
)
_PUBLIC = [(package, name) for package in PACKAGES for name in members(package)]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {path.relative_to(DIRECTORY).stem: text for path, text in reference().items()}


@pytest.mark.parametrize(("package", "name"), _PUBLIC)
def test_every_public_name_is_described(package: str, name: str, pages: dict[str, str]) -> None:
    assert f"\n## {package}.{name} {{#" in pages[package]
    member = members(package)[name]
    text = inspect.getdoc(member) or ""
    assert text.split("\n")[0].rstrip(":")
    if package in ("rlx.errors", "rlx.results"):  # the functions have the examples
        return
    examples = [line for line in text.splitlines() if line.lstrip().startswith(">>>")]
    assert examples, "expected an example"
    if name not in _NOT_RUN:
        assert not any("+SKIP" in line for line in examples)


@pytest.mark.parametrize(("package", "name"), [one for one in _PUBLIC if one[0] != "rlx.errors"])
def test_every_argument_is_described(package: str, name: str) -> None:
    member: Any = members(package)[name]
    text = inspect.getdoc(member) or ""
    if "Args:" not in text:
        return
    named = set(re.findall(r"^    ([\w, *]+):", text.partition("Args:")[2].partition("\n\n")[0], re.MULTILINE))
    words = {word.strip(" *") for one in named for word in one.split(",")}
    parameters = [one for one in inspect.signature(member).parameters if one not in ("self", "args", "options")]
    if "options" in words:  # those of another class, which is named
        return
    assert not (missing := [one for one in parameters if one not in words]), missing


def test_the_page_of_errors_has_only_errors() -> None:
    assert all(issubclass(member, Exception) for member in members("rlx.errors").values())


def test_a_page_is_valid_markdown(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        assert text.count("```") % 2 == 0, name
        assert "``\n\n#" not in text.replace("```\n\n#", ""), name
        assert len(re.findall(r"^## .*\{#(.*)\}$", text, re.MULTILINE)) == len(
            set(re.findall(r"^## .*\{#(.*)\}$", text, re.MULTILINE))
        ), name
    assert ">>> len(train) + len(test)" in pages["rlx"]
    assert "- `storage`: " in pages["rlx.buffer"]
    assert "### Dataset.trajectory {#rlx-dataset-trajectory}" in pages["rlx"]
    assert "\n    fractions: Iterable[float],\n    *,\n    by: " in pages["rlx"]


def test_integrations_are_described_without_their_projects(pages: dict[str, str]) -> None:
    page = pages["rlx.integrations"]
    modules = sorted(file.stem for file in (DIRECTORY.parents[1] / "rlx/integrations").glob("[a-z]*.py"))
    assert re.findall(r"^## rlx\.integrations\.(\w+)$", page, re.MULTILINE) == modules
    headings = re.findall(r"^### (\w+)\.(\w+) \{#", page, re.MULTILINE)
    assert {module for module, _ in headings} == set(modules)
    assert ("record", "RecordVectorExperience") in headings
    assert ("record", "Recorder") not in headings
    assert page.count("\n**Arguments**\n") == len(headings)
    assert "\n    *,\n    shard_steps: int=100000,\n" in page
