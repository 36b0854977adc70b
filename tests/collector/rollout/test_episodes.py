"""Episodes put together from many steps at once, beside those put together step by step."""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlx.collector.environment.space import Arrays, RandomPolicy
from rlx.collector.environment.vector import serial
from rlx.collector.policy.protocol import FunctionPolicy
from rlx.collector.rollout.episodes import Ended, Episodes
from rlx.collector.rollout.infos import Infos
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import Steps
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
        count += sum(len(ended.lengths) for ended in found)
    assert_same(together.cut(), singly.cut())
    assert count > 10


def test_observations_may_be_empty() -> None:
    environment = serial([Blind], "blind", is_batched=False)
    policy = FunctionPolicy(RandomPolicy(environment.action_space, [0]))
    (ended,) = Episodes(1).add(Rollout(environment, [0]).run(policy, 64))
    assert ended.observation["observation"].shape == (ended.steps + len(ended.lengths), 0)


class Blind(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A walk that shows nothing."""

    def __init__(self) -> None:
        super().__init__(Talkative(0))
        self.observation_space = spaces.Box(0, 1, (0,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.zeros_like(observation, shape=0)


def assert_same(together: list[Ended], singly: list[Ended]) -> None:
    """Compare episodes, in order, array by array."""
    found, expected = ([one for some in ended for one in some.each()] for ended in (together, singly))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.is_cut == other.is_cut
        for table, others in ((one.observation, other.observation), (one.step, other.step), (one.next, other.next)):
            assert list(table) == list(others)
            for name, rows in table.items():
                assert rows.dtype == others[name].dtype
                np.testing.assert_array_equal(rows, others[name])
