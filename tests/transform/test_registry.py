from dataclasses import is_dataclass

import pytest

from rlx.errors import TransformError
from rlx.transform.registry import TRANSFORMS, described, parse
from rlx.transform.scaling import RewardClip, ScaleReward


def test_parameters_are_typed() -> None:
    assert parse("clip_reward:low=-2,high=5") == RewardClip(-2.0, 5.0)
    assert parse("scale_reward:scale=1e-2") == ScaleReward(0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clip_rewards", "transform 'clip_rewards' is unknown: did you mean clip_reward?"),
        ("", "transform '' is unknown: expected one of "),
        ("clip_reward:lo=1", "transform 'clip_reward:lo=1': parameter 'lo' is unknown: did you mean low?"),
        ("sign_reward:x=1", "transform 'sign_reward:x=1': parameter 'x' is unknown: it takes none"),
        ("clip_reward:low=one", "transform 'clip_reward:low=one': low is 'one', expected a number"),
        ("clip_reward:low=nan", "low is 'nan', expected a number"),
        ("clip_reward:low", "'low': expected low=VALUE, once"),
        ("clip_reward:low=0,low=1", "'low=1': expected low=VALUE, once"),
        ("clip_reward:low=2", "transform 'clip_reward:low=2': low is 2.0 and high is 1.0"),
        ("scale_reward", "transform 'scale_reward': scale is missing: expected scale_reward:scale=..."),
        ("scale_reward:scale=inf", "scale is inf and loc is 0.0, expected finite numbers"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(TransformError) as caught:
        parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["clip_reward", "clip_reward:low=-3.0,high=0.5", "sign_reward"])
def test_a_description_can_be_parsed(text: str) -> None:
    assert described(parse(text)) == text


def test_every_transform_is_a_dataclass_that_says_what_it_does() -> None:
    for kind in TRANSFORMS.values():
        assert is_dataclass(kind)
        assert kind.__doc__
        assert kind.__hash__ is not None  # frozen
