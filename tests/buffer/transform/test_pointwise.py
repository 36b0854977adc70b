import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.transform import RewardClip, RewardSign, ToDevice, ToDtype, ToFloat
from rlx.errors import TransformError


def batch() -> TensorDictBase:
    pixels = torch.tensor([[0], [255]], dtype=torch.uint8)
    after = {"observation": pixels, "reward": torch.tensor([[-7.0], [0.5]])}
    return TensorDict({"observation": pixels, "action": torch.zeros(2, 1), "next": after}, [2])


def test_rewards_are_clipped_or_reduced_to_their_sign() -> None:
    assert RewardClip()(batch())["next", "reward"].tolist() == [[-1.0], [0.5]]
    assert RewardClip(0, 0.25)(batch())["next", "reward"].tolist() == [[0.0], [0.25]]
    assert RewardSign()(batch())["next", "reward"].tolist() == [[-1.0], [1.0]]
    with pytest.raises(ValueError, match="expected low <= high"):
        RewardClip(1, 0)


@pytest.mark.parametrize("transform", [RewardClip(), RewardSign(), ToFloat(), ToDtype(torch.float16), ToDevice("cpu")])
def test_they_make_do_with_a_part_of_a_batch(transform: RewardClip) -> None:
    part = transform(batch().select("action"))
    assert list(part.keys()) == ["action"]


def test_pixels_become_fractions_at_both_ends() -> None:
    found = ToFloat()(batch())
    assert found["observation"].tolist() == found["next", "observation"].tolist() == [[0.0], [1.0]]
    assert found["observation"].dtype == torch.float32


def test_casting_all_numbers_or_some() -> None:
    every = ToDtype(torch.float64)(batch())
    assert every["next", "reward"].dtype == every["action"].dtype == torch.float64
    assert every["observation"].dtype == torch.uint8
    some = ToDtype(torch.int32, keys=["observation"])(batch())
    assert some["observation"].dtype == some["next", "observation"].dtype == torch.int32
    assert some["action"].dtype == torch.float32


def test_a_text_is_one_key_and_an_unknown_key_is_refused() -> None:
    assert ToFloat(keys="observation")(batch())["next", "observation"].dtype == torch.float32
    assert ToDtype(torch.int32, keys="observation")(batch())["next", "observation"].dtype == torch.int32
    for transform in (ToFloat(keys=["pixels"]), ToDtype(torch.int32, keys="pixels")):
        with pytest.raises(TransformError, match="unknown key 'pixels': expected one of observation, action, next/"):
            transform(batch())


def test_moving_to_a_device() -> None:
    assert ToDevice("meta")(batch()).device == torch.device("meta")
