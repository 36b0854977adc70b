"""Commands made of the library's functions: their arguments and options are those that the functions declare."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from rlx.verbs.options import Argument, Option, declared, kinds, long_name
from rlx_cli.options import parse_fractions, parse_shards

# Values that are written as lists of numbers.
_PARSERS: dict[Any, Callable[[str], object]] = {Iterable[int]: parse_shards, Iterable[float]: parse_fractions}
# Names of values that are files and directories, which the shell completes.
_PATHS = frozenset({"DIR", "DST", "FILE"})


def command_of(verb: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the declared arguments of a function of the library.

    The command takes by name what it needs itself, and the others as ``**options``, which it hands on to the function.
    A default that it states is its own, and so is an option that it annotates in typer's words.
    """

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(run).parameters
        made = {name: _parameter(name, *one) for name, one in declared(verb).items()}
        made |= {
            name: made[name].replace(default=one.default)
            for name, one in own.items()
            if name in made and one.default is not one.empty
        }
        terminal = {
            name: one.replace(kind=one.KEYWORD_ONLY)
            for name, one in own.items()
            if one.annotation is typer.Context or hasattr(one.annotation, "__metadata__")
        }
        parameters = [terminal.pop("ctx"), *(terminal.pop(name, one) for name, one in made.items()), *terminal.values()]
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(name: str, parameter: inspect.Parameter, declaration: Argument) -> inspect.Parameter:
    """Return the parameter of a command for one of a function."""
    alternatives = list(kinds(parameter.annotation))
    is_required = parameter.default is parameter.empty
    shown: dict[str, Any] = {"help": declaration.help, "metavar": declaration.metavar}
    if declaration.default is not None:
        shown["show_default"] = declaration.default
    if declaration.completes is not None:
        shown["autocompletion"] = _completing(declaration.completes)
    if declaration.least is not None:
        shown |= {"min": declaration.least, "max": declaration.most, "metavar": declaration.metavar or "N"}
    kind: Any = str if declaration.metavar not in _PATHS else Path
    for one in alternatives:
        if get_origin(one) is Literal and declaration.more is not None:  # whose choices other packages add to
            shown["metavar"] = declaration.metavar or f"[{'|'.join(get_args(one))}]"
            shown.setdefault("autocompletion", _completing(partial(_names, one, declaration.more)))
        elif one in (bool, int, float) or get_origin(one) is Literal:
            kind = one
        elif one in _PARSERS:
            kind, shown["parser"] = Any, _PARSERS[one]
    if declaration.is_list:
        kind = list[kind]
    if parameter.default is None and kind is not Any:
        kind = kind | None
    if isinstance(declaration, Option):
        flag = f"--{long_name(name)}" + (f"/--{declaration.off}" if declaration.off else "")
        info = typer.Option(*filter(None, (declaration.short, flag)), **shown)
    else:
        info = typer.Argument(**shown)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=parameter.empty if is_required else parameter.default,
        annotation=Annotated[kind, info],
    )


def _names(choices: Any, more: Callable[[], Iterable[str]]) -> Iterable[str]:
    return dict.fromkeys((*get_args(choices), *more()))


def _completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: beginning(names(), incomplete)


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start with this text, ignoring case."""
    return [name for name in names if name.lower().startswith(incomplete.lower())]
