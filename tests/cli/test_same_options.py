"""A command and the function of the same name have the same options and defaults."""

import inspect
from typing import Any

import pytest
import typer

import rlx
from rlx_cli.app import app

FUNCTION = {"list": "list_runs"}
COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
OF_THE_TERMINAL = {"json", "quiet", "debug", "help", "term"}
OF_THE_LIBRARY = {"progress"}
# These commands print their help where the function must have an argument.
OPTIONAL = {"preprocess": {"source": ""}}


def options_of_the_command(name: str) -> dict[str, Any]:
    """Defaults by name; ``...`` for what must be given."""
    root: Any = typer.main.get_command(app)
    found = {}
    for option in root.commands[name].params:
        long = max(option.opts, key=len).removeprefix("--") if option.param_type_name == "option" else option.name
        found[long.replace("-", "_")] = ... if option.required else option.default
    return {option: default for option, default in found.items() if option not in OF_THE_TERMINAL}


def options_of_the_function(name: str) -> dict[str, Any]:
    parameters = inspect.signature(getattr(rlx, FUNCTION.get(name, name))).parameters.values()
    found = {
        one.name.removesuffix("_"): ... if one.default is inspect.Parameter.empty else one.default for one in parameters
    }
    return {option: default for option, default in found.items() if option not in OF_THE_LIBRARY}


def test_every_command_is_a_function_and_every_function_but_open_a_command() -> None:
    functions = {name for name in dir(rlx) if inspect.isfunction(getattr(rlx, name))}
    assert functions == {"open", *(FUNCTION.get(name, name) for name in COMMANDS)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_has_the_options_and_defaults_of_its_command(name: str) -> None:
    assert options_of_the_function(name) | OPTIONAL.get(name, {}) == options_of_the_command(name)
