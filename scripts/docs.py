"""Writes docs/commands.md from the commands' own help: ``python scripts/docs.py``; with ``--check`` only compares."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from rlx_cli.app import app

PAGE = Path(__file__).parents[1] / "docs/commands.md"
_HEAD = """# The command line

What every command says of itself; made by `python scripts/docs.py`. Exit codes: 0 done; 1 error; 2 usage; 3 data are
corrupt; 4 forbidden; 5 not found; 6 some shards failed, the rest are safe; 130 interrupted. Results go to stdout,
everything else to stderr; `--json` prints one document, errors as `{"error": {"type", "message", "hint"}}`.
"""


def reference() -> str:
    """The page as it should be."""
    return "\n".join([_HEAD, *(f"## {name}\n\n```text\n{text}\n```\n" for name, text in _helps())])


def _helps() -> Iterator[tuple[str, str]]:
    group: Any = typer.main.get_command(app)
    # Where the help wraps must not depend on whose terminal it is.
    settings = {"terminal_width": 80, "max_content_width": 80}
    root = group.make_context("rlx", [], resilient_parsing=True, **settings)
    yield "rlx", _text(group.get_help(root))
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        context = command.make_context(name, [], parent=root, resilient_parsing=True, **settings)
        yield f"rlx {name}", _text(command.get_help(context))


def _text(help: str) -> str:
    return "\n".join(line.rstrip() for line in help.strip().splitlines())


def main() -> None:
    """Writes the page, or says that it is stale."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(reference())
    elif PAGE.read_text() != reference():
        sys.exit(f"{PAGE} is stale: python scripts/docs.py")


if __name__ == "__main__":
    main()
