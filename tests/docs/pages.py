"""The code blocks of the pages: what runs, and what is left out for a reason."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Cli

ROOT = Path(__file__).parents[2]
# The pages of docs/reference are built, not committed; doctest runs the examples in their docstrings.
_WRITTEN = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference")
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *_WRITTEN)
_BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page, and why it is not run, if it is not."""

    language: str
    code: str
    reason: str | None

    @property
    def is_code(self) -> bool:
        """Whether it is something to run, and not a picture in letters or what a command prints."""
        return self.language != "text"

    def commands(self) -> Iterator[list[str]]:
        """The words of every ``rlx`` command, without its comment."""
        for line in self.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[0] == "rlx", f"{line!r} is no command of rlx: say why it is not run"
                yield words[1:]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = [Block(match["language"], match["code"], match["reason"]) for match in _BLOCK.finditer(page.read_text())]
    assert page.read_text().count("\n```") == 2 * len(found), f"{page.name}: a block that is not closed, or indented"
    return found


def run(page: Path, cli: Cli) -> dict[str, Any]:
    """Runs a page from top to bottom where the process stands; the names that its Python leaves."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if not block.is_code or block.reason is not None:
            continue
        if block.language == "python":
            exec(compile(block.code, str(page), "exec"), names)
            continue
        assert block.language == "sh", f"{page.name}: a block of {block.language!r}: say why it is not run"
        for words in block.commands():
            result = cli(*words)
            assert result.code == 0, f"rlx {shlex.join(words)}: {result.err}"
    return names
