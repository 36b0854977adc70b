"""Episodes put together from many steps at once, beside those put together step by step."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rlx.collector.environment.space import Arrays, RandomPolicy
from rlx.collector.environment.vector import serial
from rlx.collector.policy.protocol import FunctionPolicy
from rlx.collector.rollout.episodes import Episode, Episodes
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import Infos, Steps
from tests.collector.walks import Talkative

LANES = 4


def one_by_one(steps: Steps) -> list[Steps]:
    """The same steps, a time each."""
    return [
        replace(
            steps,
            observation=_cut(steps.observation, at, at + 2),
            step=_cut(steps.step, at, at + 1),
            next=_cut(steps.next, at, at + 1),
            final={(env, 0): rows for (env, end), rows in steps.final.items() if end == at},
            counts=np.ones_like(steps.counts),
            version=steps.version[:, at : at + 1],
        )
        for at in range(steps.length)
    ]


def _cut(columns: Arrays, start: int, stop: int) -> Arrays:
    return {name: rows[:, start:stop] for name, rows in columns.items()}


@pytest.mark.parametrize("length", [1, 3, 20, 64])
def test_many_steps_give_the_episodes_of_single_ones(length: int) -> None:
    environment = serial([partial(Talkative, lane) for lane in range(LANES)], "walks", is_batched=True)
    infos = Infos(LANES, ["t", "vector", "last", "odd/t"])
    rollout = Rollout(environment, list(range(LANES)), infos=infos)
    policy = FunctionPolicy(RandomPolicy(environment.action_space, list(range(LANES))))
    together, singly = Episodes(LANES), Episodes(LANES)
    count = 0
    for _ in range(100 // length + 2):
        steps = rollout.run(policy, length)
        found = together.add(steps)
        expected = [episode for each in one_by_one(steps) for episode in singly.add(each)]
        assert_same(found, expected)
        for rows in (*steps.observation.values(), *steps.step.values(), *steps.next.values()):
            rows[...] = rows.dtype.type()  # they may be reused: no episode refers to them
        assert_same(found, expected)
        assert together.running_steps == singly.running_steps
        count += len(found)
    assert_same(together.cut(), singly.cut())
    assert count > 10


def assert_same(found: list[Episode], expected: list[Episode]) -> None:
    """Compare episodes, in order, array by array."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.is_cut == other.is_cut
        assert list(one.data) == list(other.data)
        for name, rows in one.data.items():
            assert rows.dtype == other.data[name].dtype
            np.testing.assert_array_equal(rows, other.data[name])
