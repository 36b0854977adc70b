"""The table of docs/python.md has every command beside the function that does the same."""

import ast
import inspect
import re
import shlex

import typer

import rlx
from rlx_cli.app import app
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/python.md").read_text()
ROWS = re.findall(r"^\| `(rlx .*?)` \| `(rlx\..*?)` \|$", PAGE, re.MULTILINE)


def test_every_command_is_in_the_table() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert sorted(shell.split()[1] for shell, _ in ROWS) == sorted(commands)


def test_both_sides_have_the_same_name_and_options() -> None:
    for shell, python in ROWS:
        _, verb, *words = shlex.split(shell)
        call = ast.parse(python, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        assert call.func.attr == {"list": "list_runs"}.get(verb, verb)
        options = [word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]
        assert [(one.arg or "").removesuffix("_") for one in call.keywords] == options
        function = inspect.signature(getattr(rlx, call.func.attr))
        function.bind(*call.args, **{one.arg or "": one.value for one in call.keywords})
