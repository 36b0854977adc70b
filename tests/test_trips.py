"""A call enters no more functions of rlx than its bound, and the counter counts what it says."""

import sys
from pathlib import Path

import rlx
from scripts.trips import BOUNDS, Trip, measured, trips
from tests.kernels import reading

HERE = Path(__file__).parent


def inner(number: int) -> int:
    return number


def outer() -> list[int]:
    return sorted([inner(number) for number in range(3)], key=lambda number: inner(number))


def refused() -> None:
    raise ValueError


def recovering() -> None:
    try:
        refused()
    except ValueError:
        inner(0)


def test_a_function_counts_once_and_one_that_raises_leaves_the_stack() -> None:
    comprehension = sys.version_info < (3, 12)
    assert measured(outer, HERE) == Trip(3 + comprehension, files=1, depth=3)
    assert measured(recovering, HERE) == Trip(functions=3, files=1, depth=2)
    assert measured(outer, Path(rlx.__file__).parent) == Trip(functions=0, files=0, depth=0)


def test_every_trip_enters_no_more_functions_than_its_bound(pong: Path) -> None:
    with reading("compiled"):
        found = {name: measured(call, Path(rlx.__file__).parent) for name, call in trips(rlx.open(pong)).items()}
    assert found.keys() == BOUNDS.keys()
    too_long = {name: trip.functions for name, trip in found.items() if trip.functions > BOUNDS[name]}
    assert too_long == {}, "expected at most the bounds of scripts/trips.py"
