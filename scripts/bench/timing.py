"""Timing rlx and a peer in turns, so that noise from the rest of the machine hits both."""

import json
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any


def interleaved(rounds: int, *subjects: Callable[[int], object], repeats: int = 1) -> list[list[float]]:
    """Seconds a call of each subject in each round: A A B B, A A B B, ...

    Args:
        rounds: how often each has its turn.
        subjects: called with the number of the call: 0, 1, 2, ...
        repeats: calls a turn; their mean is what is returned. More than one where a call takes less than a few
            milliseconds: threads that the subject before left spinning, and its data in the processor's cache, would
            else be charged to the next.
    """
    seconds: list[list[float]] = [[] for _ in subjects]
    for number in range(rounds):
        for taken, subject in zip(seconds, subjects, strict=True):
            start = time.perf_counter()
            for repeat in range(repeats):
                subject(number * repeats + repeat)
            taken.append((time.perf_counter() - start) / repeats)
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


def parse(parser: ArgumentParser) -> Namespace:
    """The command line of a benchmark, which always has ``--json``."""
    parser.add_argument("--json", action="store_true", help="one compact JSON document instead of an indented one")
    return parser.parse_args()


def report(result: dict[str, Any], options: Namespace) -> None:
    """Prints a benchmark's result."""
    print(json.dumps(result, indent=None if options.json else 2))
