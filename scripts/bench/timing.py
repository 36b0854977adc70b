"""Timing rlx and a peer in turns, so that noise from the rest of the machine hits both."""

import json
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def interleaved(
    rounds: int,
    *subjects: Callable[[int], object],
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds a call of each subject in each round: A A B B, A A B B, ...

    Args:
        rounds: how often each has its turn.
        subjects: called with the number of the call: 0, 1, 2, ...
        repeats: calls a turn; their mean is what is returned. More than one where a call takes less than a few
            milliseconds: threads that the subject before left spinning, and its data in the processor's cache, would
            else be charged to the next.
        clock: what gives the seconds, of the wall by default.
    """
    seconds: list[list[float]] = [[] for _ in subjects]
    for number in range(rounds):
        for taken, subject in zip(seconds, subjects, strict=True):
            start = clock()
            for repeat in range(repeats):
                subject(number * repeats + repeat)
            taken.append((clock() - start) / repeats)
    return seconds


def median_ms(seconds: Sequence[float] | None) -> float | None:
    """The median in milliseconds; none of nothing."""
    return None if seconds is None else round(statistics.median(seconds) * 1e3, 4)


def times_faster(ours: Sequence[float], theirs: Sequence[float] | None) -> dict[str, float | None]:
    """How many times as long a peer takes: of the medians, and the median over the rounds.

    Example:
        >>> times_faster([1.0, 2.0, 4.0], [2.0, 8.0, 8.0])
        {'ratio': 4.0, 'ratio_by_round': 2.0}
    """
    if theirs is None:
        return {"ratio": None, "ratio_by_round": None}
    by_round = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    ratio = statistics.median(theirs) / statistics.median(ours)
    return {"ratio": round(ratio, 2), "ratio_by_round": round(by_round, 2)}


def grid(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A table in Markdown of rows with the same columns, without the columns that no row fills.

    Example:
        >>> print(grid({"add": {"rlx": 1200, "peer": 2.5}, "sample": {"rlx": None, "peer": 1}}))
        |  | rlx | peer |
        |---|---|---|
        | add | 1,200 | 2.5 |
        | sample | - | 1 |
    """
    named = dict.fromkeys(column for row in rows.values() for column in row)
    columns = [column for column in named if any(row[column] is not None for row in rows.values())]
    cells = [["", *columns], *([name, *(shown(row[column]) for column in columns)] for name, row in rows.items())]
    head, *body = (f"| {' | '.join(line)} |" for line in cells)
    return "\n".join([head, "|---" * len(cells[0]) + "|", *body])


def shown(value: Any) -> str:
    """A cell of a table; what could not be measured, for want of the peer, is a dash."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def parse(parser: ArgumentParser) -> Namespace:
    """The command line of a benchmark, which always has ``--json``."""
    parser.add_argument("--json", action="store_true", help="one compact JSON document instead of an indented one")
    return parser.parse_args()


def report(result: dict[str, Any], options: Namespace) -> None:
    """Prints a benchmark's result; ``tables`` as tables."""
    if "tables" in result and not options.json:
        print("\n\n".join(map(grid, result["tables"].values())))
        return
    print(json.dumps(result, indent=None if options.json else 2))
