from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx.errors import TransformError
from rlx.schema import Schema
from rlx.transform.multi_step import FrameSkip
from rlx.transform.registry import parse
from rlx.transform.scaling import RewardClip, RewardSign, ScaleReward
from tests.factories import SMALL, make_block

REWARDS = np.array([-3, -0.5, 0, 0.25, 1, 7, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (RewardClip(), [-1, -0.5, 0, 0.25, 1, 1, 1, -1]),
        (RewardClip(0.0, 5.0), [0, 0, 0, 0.25, 1, 5, 5, 0]),
        (RewardSign(), [-1, -1, 0, 1, 1, 1, 1, -1]),
        (ScaleReward(2, 1), [-5, 0, 1, 1.5, 3, 15, np.inf, -np.inf]),
    ],
)
def test_rewards(transform: RewardClip | RewardSign | ScaleReward, expected: list[float]) -> None:
    block = make_block()
    block = replace(block, data={**block.data, "reward": REWARDS})
    (changed,) = transform.blocks(iter([block]), SMALL)
    changed.check(transform.schema(SMALL))
    assert changed.data["reward"].tolist() == expected
    assert block.data["reward"] is REWARDS
    assert changed.data["observation"] is block.data["observation"]


def test_whole_rewards_stay_whole_or_become_fractions() -> None:
    schema = Schema.of(("int32", (2,)), ("int64", ()), reward="int64")
    block = make_block((3,), schema=schema)
    assert RewardClip(0.0, 0.0).apply(block, schema).data["reward"].dtype == np.int64
    half = ScaleReward(0.5)
    half.apply(block, schema).check(half.schema(schema))
    assert half.apply(block, schema).data["reward"].tolist() == [0.5] * 3
    with pytest.raises(TransformError, match="expected integer bounds"):
        RewardClip(0.5).schema(schema)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
def test_whole_rewards_in_a_batch_and_in_a_dataset(dtype: str) -> None:
    schema = Schema.of(("int32", (2,)), ("int64", ()), reward=dtype)
    block = make_block((3,), schema=schema)
    block = replace(block, data={**block.data, "reward": np.array([0, 1, 100], dtype)})
    assert RewardClip(-1, 1).apply(block, schema).data["reward"].tolist() == [0, 1, 1]
    batch = TensorDict({"next": {"reward": torch.from_numpy(block.data["reward"])}}, [3])
    assert RewardClip(-1, 1)(batch)["next", "reward"].tolist() == [0, 1, 1]
    skipped = FrameSkip(3).apply(replace(block, data={**block.data, "reward": np.full(3, 100, dtype)}), schema)
    skipped.check(FrameSkip(3).schema(schema))
    assert skipped.data["reward"].tolist() == [300]


def test_a_range_of_nothing() -> None:
    with pytest.raises(TransformError, match="expected low <= high"):
        parse("clip_reward:low=1,high=0")
