"""Writes the pages that come of the code, commands and errors: ``scripts/docs``; with ``--check`` only compares."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from rlx import errors
from rlx.errors import RlxError
from rlx_cli.app import app
from rlx_cli.exit_codes import exit_code

DOCS = Path(__file__).parents[1] / "docs"
_INDEX = """# The commands

What every command says of itself; made by `scripts/docs`.

| | |
|---|---|
{rows}

Results go to stdout, everything else to stderr. `--json` prints one document, errors as
`{{"error": {{"type", "message", "hint"}}}}`. What ends a command otherwise than well is told on [the page of
errors](../errors.md).

```text
{help}
```
"""
_ERRORS = """# Errors

Made by `scripts/docs` of the code. An error names the thing, what was expected and what was found, and where there is a
remedy, a command that can be pasted:

```text
error: pong holds a dataset
hint: --resume collects what is missing, --overwrite starts afresh, -o chooses another directory
```

In Python each is a class of `rlx.errors`, below `RlxError`, with the remedy as `hint`. They are what a user or the
world can mend; anything else is a bug of rlx and shows its traceback. `--debug` shows it for these as well.

| exit code | |
|---|---|
| 0 | done |
| 1 | an error without a code of its own |
| 2 | the command was not called as it should be |
| 3 | data are corrupt, or verification failed |
| 4 | forbidden |
| 5 | not found |
| 6 | some shards failed, the rest are safe; run the same command again, or what the hint says |
| 130 | interrupted by Ctrl-C; finished work is kept, and the message says how to resume |
| 141 | whoever read stdout has gone away, as `head` does; nothing is said |
| 129, 131, 143 | the same after SIGHUP, SIGQUIT or SIGTERM |

| error | exit code | |
|---|---|---|
{rows}
"""


def pages() -> Mapping[Path, str]:
    """Every page as it should be, by its path."""
    helps = list(_helps())
    rows = "\n".join(f"| [rlx {name}]({name}.md) | {_summary(text)} |" for name, text in helps if name)
    overview = dict(helps)[""]
    made = {DOCS / "commands" / "index.md": _INDEX.format(rows=rows, help=overview)}
    for name, text in helps:
        if name:
            made[DOCS / "commands" / f"{name}.md"] = f"# rlx {name}\n\n```text\n{text}\n```\n"
    table = "\n".join(f"| `{kind.__name__}` | {exit_code(kind(''))} | {inspect.getdoc(kind)} |" for kind in _kinds())
    return {**made, DOCS / "errors.md": _ERRORS.format(rows=table)}


def _helps() -> Iterator[tuple[str, str]]:
    """The help of ``rlx`` itself, under no name, and of every command."""
    group: Any = typer.main.get_command(app)
    # Where the help wraps must not depend on whose terminal it is.
    settings = {"terminal_width": 80, "max_content_width": 80}
    root = group.make_context("rlx", [], resilient_parsing=True, **settings)
    yield "", _text(group.get_help(root))
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        context = command.make_context(name, [], parent=root, resilient_parsing=True, **settings)
        yield name, _text(command.get_help(context))


def _text(help: str) -> str:
    return "\n".join(line.rstrip() for line in help.strip().splitlines())


def _summary(help: str) -> str:
    """The sentence that follows the usage."""
    _, _, told = help.partition("\n\n")
    return " ".join(told.partition("\n\n")[0].split())


def _kinds() -> Iterator[type[RlxError]]:
    """Every error below the root, in the order in which the module defines them."""
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, RlxError) and kind is not RlxError:
            yield kind


def main() -> None:
    """Writes the pages, or says which are stale."""
    made = pages()
    left = [path for path in (DOCS / "commands").glob("*.md") if path not in made]
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
        if stale + left:
            sys.exit(f"stale: {', '.join(map(str, stale + left))}\nrun: scripts/docs")
        return
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for path in left:
        path.unlink()


if __name__ == "__main__":
    main()
