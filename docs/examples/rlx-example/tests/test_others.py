"""The transform and the command."""

from pathlib import Path

from rlx_example.transforms import ShiftReward

import rlx
from rlx.testing import TransformContract, make_block, write_dataset


class TestShiftReward(TransformContract):
    transform, text = ShiftReward(by=2.0), "shift_reward:by=2"


def test_preprocess_knows_it(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [[make_block([2, 3])]])
    new = rlx.preprocess(tmp_path / "data", tmp_path / "new", transform="shift_reward:by=-1")
    assert not rlx.open(new.dataset)[:]["next", "reward"].any()
