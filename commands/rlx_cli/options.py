"""What only a terminal has: options of every command, and lists of numbers as texts."""

import re
from typing import Annotated

import typer

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_shards(text: str) -> tuple[int, ...]:
    """Return shard numbers, ascending and each once.

    Example:
        >>> parse_shards("0-2,49")
        (0, 1, 2, 49)
    """
    numbers: set[int] = set()
    for part in text.split(","):
        matched = _RANGE.fullmatch(part.strip())
        low, high = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if low > high:
            raise typer.BadParameter(f"{part!r}: expected numbers and ranges such as 0-4,49")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def parse_fractions(text: str) -> tuple[float, ...]:
    """Return the fractions of a ``--fractions`` value.

    Example:
        >>> parse_fractions("0.9,0.1")
        (0.9, 0.1)
    """
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r}: expected numbers such as 0.9,0.1") from exc


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")]
