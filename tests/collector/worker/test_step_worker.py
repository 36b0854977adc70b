"""A worker that steps an environment, in this process: by value and through shared memory."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlx.collector.environment.gym_env import SerialEnv
from rlx.collector.policy.module import pack_weights
from rlx.collector.worker.shared_steps import MemoryLayout, SharedSteps, Weights
from rlx.collector.worker.step_pool import StepTask, StepWorker, WorkerConfig
from rlx.errors import CollectError
from tests.collector.environments import Counter, Registered
from tests.collector.policies import Constant

LENGTH = 11


class Talking(Counter):
    """Texts beside numbers: what shared memory holds and what it does not."""

    def __init__(self) -> None:
        super().__init__((1, 2))
        self._number = self.observation_space
        self.observation_space = spaces.Dict(number=self._number, text=spaces.Text(20))

    def _observation(self) -> Any:
        return {"number": np.full(2, 100 * self._episode + self._t, np.int32), "text": f"step {self._t}"}


def made(source: Any, policy: Any = None) -> StepWorker:
    config = WorkerConfig(SerialEnv(2, source), policy, None, 3, None, "RANDOM")
    return StepWorker(config)


def assert_same(found: Any, expected: Any) -> None:
    assert found.counts.tolist() == expected.counts.tolist()
    for table in ("observation", "step", "next"):
        one, other = getattr(found, table), getattr(expected, table)
        assert one.keys() == other.keys()
        for name, rows in other.items():
            np.testing.assert_array_equal(one[name], rows)
    assert found.final.keys() == expected.final.keys()
    for end, final in expected.final.items():
        for name, row in final.items():
            np.testing.assert_array_equal(found.final[end][name], row)


@pytest.mark.parametrize("source", [Counter, Talking])
def test_steps_through_shared_memory_are_those_by_value(source: Any) -> None:
    """More episodes end than there is room for last observations."""
    by_value, shared = made(source), made(source)
    layout = MemoryLayout(shared.describe(), LENGTH, 2, 0)
    memory = SharedSteps(layout)
    try:
        shared.share(layout, memory.path)
    finally:
        memory.unlink()
    for number in range(1, 4):
        task = StepTask(number, LENGTH, session=0 if number == 1 else None, slot=number % 2)
        expected = by_value(task)
        assert_same(memory.get(task.slot, shared(task)), expected)
    assert len(expected.final) > 4
    memory.stop(4)
    assert shared(StepTask(4, LENGTH)).counts.tolist() == [0, 0]
    for worker in (by_value, shared):
        worker.close()


def test_weights_come_through_shared_memory() -> None:
    policy = Constant()
    worker = made(Counter, policy)
    packed = pack_weights(Constant(2))
    layout = MemoryLayout(worker.describe(), LENGTH, 1, len(packed))
    memory = SharedSteps(layout)
    worker.share(layout, memory.path)
    memory.unlink()
    memory.put_weights(Weights(7, packed))
    steps = memory.get(0, worker(StepTask(1, 4, session=0)))
    assert (steps.step["action"] == 2).all()
    assert (steps.version == 7).all()
    worker.close()


def test_a_first_task_without_a_session() -> None:
    worker = made(Counter)
    with pytest.raises(ValueError, match="the first task begins no session"):
        worker(StepTask(1, 4))
    worker.close()


def test_an_environment_is_closed_where_the_policy_cannot_be_made() -> None:
    before = Registered.opened["now"]
    with pytest.raises(CollectError, match="policy is of type int"):
        made(Registered, 5)
    assert Registered.opened["now"] == before
