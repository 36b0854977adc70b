"""Several steps as one, beside loops over single steps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.transform.multi_step import FrameSkip, NStep
from tests.factories import SMALL, cut, make_block

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
CUTS = st.lists(st.integers(1, 7), max_size=8)
# What a step leads to, beside the reward.
MORE = Schema({**SMALL.fields, "lives": Field("int64", (), Role.NEXT)})


def rewarded(lengths: list[int]) -> Block:
    """Trajectories whose rewards and lives tell the steps apart."""
    block = make_block(lengths)
    step = np.arange(block.steps)
    data = {**block.data, "reward": (2.0**step % 1009).astype(np.float32), "lives": step + 100}
    recorded = np.arange(len(lengths)) % 2 == 0
    return Block(data, block.lengths, block.episodes, np.arange(len(lengths)) % 3 > 0, recorded)


def trajectories(block: Block) -> list[dict[str, Any]]:
    """The trajectories of a block, each as lists."""
    found, step, row = [], 0, 0
    for number, length in enumerate(block.lengths.tolist()):
        one: dict[str, Any] = {
            name: rows[step : step + length].tolist() for name, rows in block.data.items() if name != "observation"
        }
        one["observation"] = block.data["observation"][row : row + length + 1, 0].tolist()
        one |= {"episode": int(block.episodes[number]), "from_reset": bool(block.from_reset[number])}
        found.append({**one, "final_recorded": bool(block.final_recorded[number])})
        step, row = step + length, row + length + 1
    return found


def applied(transform: FrameSkip | NStep, blocks: list[Block]) -> list[dict[str, Any]]:
    made = list(transform.blocks(iter(blocks), MORE))
    for block in made:
        block.check(transform.schema(MORE))
    return trajectories(join(made))


@given(LENGTHS, CUTS, st.integers(1, 6))
def test_frame_skip(lengths: list[int], cuts: list[int], k: int) -> None:
    expected = []
    for one in trajectories(rewarded(lengths)):
        starts = range(0, len(one["reward"]), k)
        last = [min(start + k, len(one["reward"])) - 1 for start in starts]
        expected.append(
            {
                **one,
                "observation": [one["observation"][i] for i in starts] + one["observation"][-1:],
                "action": [one["action"][i] for i in starts],
                "reward": [sum(one["reward"][i : j + 1]) for i, j in zip(starts, last, strict=True)],
                **{name: [one[name][j] for j in last] for name in ("terminated", "truncated", "lives")},
            }
        )
    assert applied(FrameSkip(k), cut(rewarded(lengths), cuts)) == expected


@given(LENGTHS, CUTS, st.integers(1, 6), st.sampled_from([1.0, 0.5, 0.0]))
def test_n_step(lengths: list[int], cuts: list[int], n: int, gamma: float) -> None:
    expected = []
    for one in trajectories(rewarded(lengths)):
        count = len(one["reward"])
        for i in range(count):
            last = min(i + n, count) - 1
            expected.append(
                {
                    "observation": [one["observation"][i], one["observation"][last + 1]],
                    "action": [one["action"][i]],
                    "reward": [sum(gamma**ahead * one["reward"][i + ahead] for ahead in range(last - i + 1))],
                    "original_reward": [[one["reward"][i]]],
                    "steps_to_next_obs": [[last - i + 1]],
                    "gamma": [[gamma ** (last - i + 1)]],
                    **{name: [one[name][last]] for name in ("terminated", "truncated", "lives")},
                    "episode": one["episode"],
                    "from_reset": one["from_reset"] and i == 0,
                    "final_recorded": one["final_recorded"] or last < count - 1,
                }
            )
    assert applied(NStep(n, gamma), cut(rewarded(lengths), cuts)) == expected


def test_what_cannot_be() -> None:
    for transform in (lambda: FrameSkip(0), lambda: NStep(0), lambda: NStep(1, 1.5)):
        with pytest.raises(TransformError, match="expected"):
            transform()
    whole = Schema.of(("int32", (2,)), ("int64", ()), reward="int64")
    with pytest.raises(TransformError, match="rewards are int64"):
        NStep().schema(whole)
    with pytest.raises(TransformError, match="field 'steps_to_next_obs' already exists"):
        NStep().schema(NStep().schema(SMALL))
