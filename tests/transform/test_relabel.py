import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.schema import Schema
from rlx.transform.protocol import fitted
from rlx.transform.registry import described, parse
from tests.factories import SMALL, cut, make_block

LENGTHS = (3, 5, 1, 4)


def distance(data: dict[str, Any]) -> dict[str, Any]:
    """The reward of a goal: how far the final observation is away."""
    assert data["observation"].shape == (len(data["reward"]) + 1, 2)
    left = data["observation"][-1, 0] - data["observation"][1:, 0]
    data["observation"][:] = 0  # what is given is the function's own
    return {"reward": -left.astype(np.float32)}


def noisy(data: dict[str, Any]) -> dict[str, Any]:
    return {"action": np.random.random(len(data["action"])) < 0.5}  # noqa: NPY002


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda _: None,
    "number": lambda _: 3,
    "short": lambda data: {"reward": data["reward"][:-1]},
    "unknown": lambda data: {"rewards": data["reward"]},
    "observation": lambda data: {"observation": data["observation"]},
    "flag": lambda data: {"terminated": data["terminated"]},
    "nan": lambda data: {"reward": data["reward"] * np.nan},
    "raises": lambda data: data["nothing"],
    "exits": lambda _: sys.exit(3),
    "type": lambda data: {"reward": data["reward"].astype(np.float64)},
}


def bad(data: dict[str, Any]) -> Any:
    """Goes wrong from the fourth trajectory on, as ``which`` says."""
    return BAD[which](data) if data["observation"][0, 0] == 3000 else {"reward": data["reward"]}


which = ""


def applied(name: str, blocks: Sequence[Block]) -> tuple[Block, Schema]:
    transform = parse(f"relabel:tests.transform.test_relabel:{name}")
    chain = fitted([("relabel", transform)], SMALL, lambda: iter(blocks), {}, np.zeros(4, np.int64))  # type: ignore[list-item]
    made = join(list(chain.blocks(iter(blocks), Counter())))
    made.check(chain.schema)
    return made, chain.schema


def test_rewards_of_whole_trajectories() -> None:
    block = make_block(LENGTHS)
    made, schema = applied("distance", cut(block, [2, 4, 3, 1]))
    assert schema == SMALL
    assert made.data["reward"].tolist() == [-2, -1, 0, -4, -3, -2, -1, 0, 0, -3, -2, -1, 0]
    assert made.data["observation"].tolist() == block.data["observation"].tolist()


def test_other_types_and_randomness_by_trajectory() -> None:
    block = make_block(LENGTHS)
    first, schema = applied("noisy", cut(block, [2, 4]))
    second, _ = applied("noisy", [block])
    assert schema["action"].dtype == "bool"
    assert first.data["action"].tolist() == second.data["action"].tolist()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "it returns nothing, expected a dict of arrays"),
        ("number", "it returns a value of type int, expected a dict"),
        ("short", r"it returns reward \[3\], expected 4 rows"),
        ("unknown", "it returns 'rewards', expected some of action, reward"),
        ("observation", "it returns 'observation', expected some of"),
        ("flag", "it returns 'terminated', expected some of"),
        ("nan", "it returns NaN in reward"),
        ("raises", "KeyError: 'nothing'"),
        ("exits", "SystemExit: 3"),
        ("type", r"it returns reward float64\[\], expected float32\[\]"),
    ],
)
def test_bad_functions_are_named_with_the_trajectory(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr("tests.transform.test_relabel.which", name)
    with pytest.raises(TransformError, match=message) as caught:
        applied("bad", [make_block(LENGTHS)])
    assert "trajectory 3" in str(caught.value)
    assert "tests.transform.test_relabel:bad" in str(caught.value)


def test_names() -> None:
    assert (
        described(parse("relabel:tests.transform.test_relabel:noisy")) == "relabel:tests.transform.test_relabel:noisy"
    )
    for text in ("relabel:", "relabel:noisy", "relabel:tests.transform.nothing:noisy", "relabel:os:sep"):
        with pytest.raises(TransformError):
            parse(text)
