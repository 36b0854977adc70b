"""Which trajectories stay: by a condition, every so many-th, or a fraction of them."""

import numpy as np
import pytest

from rlx.errors import TransformError
from rlx.store.trajectories import Trajectories
from rlx.transform.protocol import Selection
from rlx.transform.registry import described, parse


def table(count: int = 10) -> Trajectories:
    """Trajectory i has i + 1 steps and returns -i."""
    number, always = np.arange(count), np.ones(count, bool)
    ends = number % 2 == 0
    return Trajectories(number + 1, -number.astype(np.float64), number + 100, ends, ~always, always, always, ~ends)


def kept(text: str, count: int = 10) -> list[int]:
    selection = parse(text)
    assert isinstance(selection, Selection)
    return np.flatnonzero(selection.keeps(table(count), np.arange(count) // 3)).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("filter:return > -3", [0, 1, 2]),
        ("filter: 2 <= length < 5 and not terminated", [1, 3]),
        ("filter:id % 4 == 1 or episode == 100", [0, 1, 5, 9]),
        ("filter:truncated", []),
        ("filter:shard == 1 or shard > 2", [3, 4, 5, 9]),
        ("filter:whole", [0, 2, 4, 6, 8]),
        ("filter:not cut and id > 3", [4, 6, 8]),
        ("subsample:every=4", [0, 4, 8]),
        ("subsample:every=1", list(range(10))),
        ("subsample:fraction=1", list(range(10))),
    ],
)
def test_what_stays(text: str, expected: list[int]) -> None:
    assert kept(text) == expected


def test_a_fraction_is_a_function_of_the_seed() -> None:
    samples = [kept(f"subsample:fraction=0.25,seed={seed}", 1000) for seed in range(3)]
    assert [len(sample) for sample in samples] == [250] * 3
    assert samples[0] != samples[1] != samples[2]
    assert samples[0] == kept("subsample:fraction=0.25", 1000)
    assert kept("subsample:fraction=0.01", 10) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("filter:", "expression ''"),
        ("filter:retrun > 1", "did you mean return"),
        ("filter:__import__(1)", "name '__import__' is unknown"),
        ("subsample", "expected either every=N or fraction=F"),
        ("subsample:every=2,fraction=0.5", "expected either every=N or fraction=F"),
        ("subsample:every=-1", "every -1: expected at least 1"),
        ("subsample:fraction=1.5", "fraction 1.5: expected 0 to 1"),
        ("subsample:fraction=0.5,seed=-1", "seed -1: expected at least 0"),
        ("subsample:fraction=x", "fraction is 'x', expected a number"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(TransformError) as raised:
        parse(text)
    assert problem in str(raised.value)


@pytest.mark.parametrize("text", ["filter:return > 10 and length < 5000", "subsample:fraction=0.5,seed=3"])
def test_they_are_described_as_they_are_written(text: str) -> None:
    assert described(parse(text)) == text
