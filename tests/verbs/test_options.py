"""Declarations of arguments: what is checked and what a lineage records of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import rlx
from rlx.errors import OptionError
from rlx.verbs.options import Argument, Option, check, declared, kinds, recorded
from tests.conftest import SAMPLE_RUN


def paint(
    walls: Annotated[Iterable[str], Argument("Walls.", is_list=True)],
    *,
    colour: Annotated[Literal["red", "blue"] | None, Option("Colour.")] = None,
    coats: Annotated[int, Option("Coats.", least=1, most=3, recorded="always")] = 1,
    gloss: Annotated[float | None, Option("Gloss.", least=0, most=1)] = None,
    dry: Annotated[bool, Option("Wait.", off="wet")] = True,
    ladder_: Annotated[str | None, Option("Ladder.")] = None,
    brush: Annotated[str | None, Option("Brush.", recorded=False)] = None,
    progress: object = None,
) -> dict[str, Any]:
    """Return the arguments, with the command that records them."""
    given = dict(locals())
    check(paint, given)
    return {**given, "command": recorded(paint, given)}


def test_only_annotated_arguments_are_declared() -> None:
    assert list(declared(paint)) == ["walls", "colour", "coats", "gloss", "dry", "ladder_", "brush"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"colour": "rad"}, "`colour` 'rad' is unknown: expected red, blue"),
        ({"coats": 4}, "`coats` 4: expected 1 to 3"),
        ({"coats": None}, "`coats` None: expected a whole number"),
        ({"gloss": 1.5}, "`gloss` 1.5: expected 0 to 1"),
    ],
)
def test_choices_and_bounds(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        paint(["north"], **wrong)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({}, "rlx paint north south --coats 1"),
        ({"colour": "red", "brush": "wide", "progress": 1}, "rlx paint north south --colour red --coats 1"),
        ({"dry": False, "ladder_": "tall"}, "rlx paint north south --coats 1 --wet --ladder tall"),
    ],
)
def test_what_is_not_the_default_is_recorded(options: dict[str, Any], command: str) -> None:
    assert paint(["north", "south"], **options)["command"] == command


def test_the_alternatives_of_an_annotation() -> None:
    assert list(kinds(Annotated[Literal["a"] | int | Iterable[int] | None, 0])) == [Literal["a"], int, Iterable[int]]


def test_a_recorded_command_names_options_as_the_command_line_does(tmp_path: Path) -> None:
    report = rlx.convert(SAMPLE_RUN, tmp_path / "new", on_error="skip", shards=[2, 0], jobs=1)
    command = rlx.open(report.dataset).manifest.lineage[-1]["command"]
    assert command == f"rlx convert {SAMPLE_RUN} --shards 0,2 --on-error skip"
