"""Findings that no reader can know: flags, limits, repeated blocks and clipped rewards, in any order of blocks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.block import Block
from rlx.checks.examination import examine
from rlx.schema import Schema
from tests.factories import cut as cut_at

SCHEMA = Schema.of(observation=("float32", (2,)), action=("int64", ()))


def walks(lengths: list[int], **columns: NDArray[Any]) -> Block:
    """Random walks that begin near zero, terminated."""
    random, count = np.random.default_rng(0), len(lengths)
    steps = sum(lengths)
    ends = np.zeros(steps, bool)
    ends[np.cumsum(lengths) - 1] = True
    rows = [np.cumsum(random.normal(0.2, 0.05, (length + 1, 2)), axis=0) for length in lengths]
    data = {
        "observation": np.concatenate(rows).astype("f4"),
        "action": np.arange(steps) % 3,
        "reward": random.normal(size=steps).astype("f4"),
        "terminated": ends,
        "truncated": ends & False,
    } | columns
    always = np.ones(count, bool)
    return Block(data, np.array(lengths), np.arange(count), always, always)


def found(block: Block, notes: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The count of every finding, the same whatever the blocks."""
    counts = []
    for size in (None, 1, 5, 64):
        blocks = [block] if size is None else cut(block, size)
        examination = examine(blocks, SCHEMA, name="Toy", notes=notes or {})
        counts.append({one.check: one.count for one in examination.findings})
    assert all(one == counts[0] for one in counts), counts
    return counts[0]


def cut(block: Block, size: int) -> list[Block]:
    return list(cut_at(block, list(range(size, block.steps, size))))


LENGTHS = [33, 47, 60, 25, 38, 51, 29, 44]


def test_good_walks_have_no_findings() -> None:
    assert found(walks(LENGTHS)) == {}


def test_flags_a_step_late() -> None:
    block = walks(LENGTHS)
    rows = block.data["observation"].copy()
    rows[np.cumsum(np.array(LENGTHS) + 1) - 1] = 0.1  # the next episode's first observation
    assert found(walks(LENGTHS, observation=rows)) == {"late-flag": len(LENGTHS)}


def test_flags_a_step_late_where_final_observations_are_not_recorded() -> None:
    block = walks(LENGTHS)
    rows, finals = block.data["observation"].copy(), np.cumsum(np.array(LENGTHS) + 1) - 1
    rows[finals] = 0
    unseen = replace(block, final_recorded=np.zeros(len(LENGTHS), bool))
    assert found(replace(unseen, data={**block.data, "observation": rows})) == {}
    rows[finals - 1] = 0.1
    assert found(replace(unseen, data={**block.data, "observation": rows})) == {"late-flag": len(LENGTHS)}


@pytest.mark.parametrize("limit", [60, None])
def test_lengths_at_the_limit_without_a_flag(limit: int | None) -> None:
    notes = {"environment_spec": {"max_episode_steps": limit}}
    assert found(walks([60, 33, 60, 47, 60, 60, 25, 60]), notes) == {"unflagged-limit": 5}
    truncated = walks([60, 33, 60, 47])
    flags = np.zeros(200, bool)
    flags[[59, 152]] = True
    terminated = truncated.data["terminated"] & ~flags
    assert found(walks([60, 33, 60, 47], terminated=terminated, truncated=flags), notes) == {}


def test_truncations_before_the_limit() -> None:
    block = walks(LENGTHS)
    flags = {"terminated": block.data["truncated"], "truncated": block.data["terminated"]}
    assert found(walks(LENGTHS, **flags), {"environment_spec": {"max_episode_steps": 500}}) == {"early-truncation": 8}


@pytest.mark.parametrize(("start", "again"), [(0, 70), (3, 40), (16, 200)])
def test_blocks_that_are_stored_twice(start: int, again: int) -> None:
    block = walks([300])
    data = {name: rows.copy() for name, rows in block.data.items()}
    for name in ("observation", "action", "reward"):
        data[name][again : again + 40] = data[name][start : start + 40]
    assert set(found(walks([300], **data))) & {"repeated-steps"}


def test_the_same_beginning_is_no_repetition() -> None:
    block = walks([50, 60])
    data = {name: rows.copy() for name, rows in block.data.items()}
    data["observation"][51:91] = data["observation"][:40]
    for name in ("action", "reward"):
        data[name][50:90] = data[name][:40]
    assert found(walks([50, 60], **data)) == {}


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (-0.5, 2), (-9, 0.3)])
def test_rewards_that_pile_up_at_a_bound(low: float, high: float) -> None:
    rewards = walks(LENGTHS).data["reward"]
    assert "clipped" in found(walks(LENGTHS, reward=np.clip(rewards, low, high)))


def test_a_reward_for_the_goal_is_no_bound() -> None:
    block = walks([20] * 30)
    rewards = np.where(block.data["terminated"], 10, np.random.default_rng(0).uniform(-1, 0, 600)).astype("f4")
    assert "clipped" not in found(walks([20] * 30, reward=rewards))
