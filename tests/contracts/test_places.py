"""An error about a wrong value names the environment's or the policy's own file and line, whoever steps them."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlx.collector import Collector, MultiCollector
from rlx.collector.environment.gym_env import SerialEnv
from rlx.errors import CollectError
from rlx.integrations.record import RecordExperience, RecordVectorExperience
from rlx.traces import definition

_RIGHT = np.zeros(2, np.float32)


class Wrong(gymnasium.Env[Any, Any]):
    """Gives a wrong value in step 2, or in a reset."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, kind: str) -> None:
        self.kind, self.steps = kind, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        if self.kind == "reset without info":
            return _RIGHT
        return np.zeros(3) if self.kind == "reset" else _RIGHT, {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self.steps += 1
        if self.steps < 2:
            return _RIGHT, 0.0, False, False, {"speed": 1}
        return {
            "reset": (_RIGHT, 0.0, False, False, {}),
            "four values": (_RIGHT, 0.0, False, {}),
            "shape": (np.zeros((2, 2), np.float32), 0.0, False, False, {}),
            "reward": (_RIGHT, "much", False, False, {}),
            "flag": (_RIGHT, 0.0, 0.5, False, {}),
            "info": (_RIGHT, 0.0, False, False, {"speed": np.zeros(3)}),
        }[self.kind]


class Scaled(gymnasium.RewardWrapper[Any, Any]):
    """A wrapper of the user, without a step of its own."""

    def reward(self, reward: Any) -> Any:
        return [reward, reward]


KINDS = ("reset", "reset without info", "four values", "shape", "reward", "flag")


def made(kind: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Wrong(kind), 50)


def collect(kind: str, path: Path) -> None:  # noqa: ARG001
    with Collector(partial(made, kind), frames_per_batch=4, total_frames=8) as collector:
        list(collector)


def collect_several(kind: str, path: Path) -> None:  # noqa: ARG001
    with Collector(SerialEnv(2, partial(made, kind)), frames_per_batch=4, total_frames=8) as collector:
        list(collector)


def collect_in_workers(kind: str, path: Path) -> None:  # noqa: ARG001
    with MultiCollector([partial(made, kind)], frames_per_batch=4, total_frames=8) as collector:
        list(collector)


def collect_vector(kind: str, path: Path) -> None:  # noqa: ARG001
    env = SyncVectorEnv([partial(made, kind)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    with Collector(env, frames_per_batch=4, total_frames=8) as collector:
        list(collector)


def roll_out(kind: str, path: Path) -> None:  # noqa: ARG001
    SerialEnv(1, partial(made, kind)).rollout(8)


def record(kind: str, path: Path) -> None:
    with RecordExperience(made(kind), path / "data") as env:
        env.reset()
        for _ in range(4):
            env.step(0)


def record_vector(kind: str, path: Path) -> None:
    with RecordVectorExperience(SyncVectorEnv([partial(made, kind)] * 2), path / "data") as env:
        env.reset()
        for _ in range(4):
            env.step(np.zeros(2, np.int64))


ALL = (collect, collect_several, collect_in_workers, collect_vector, roll_out, record, record_vector)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", ALL, ids=lambda one: one.__name__)
def test_environments(steps: Callable[[str, Path], None], kind: str, tmp_path: Path) -> None:
    if steps in (record, record_vector) and kind in ("four values", "reset without info"):
        return  # gymnasium's wrappers unpack them
    if steps is collect_in_workers and kind not in ("shape", "four values"):
        return  # each starts a process
    with pytest.raises(CollectError) as caught:
        steps(kind, tmp_path)
    method = Wrong.reset if kind.startswith("reset") else Wrong.step
    code = method.__code__
    assert f"at {__file__}:{code.co_firstlineno} in {code.co_name}" in str(caught.value)
    assert "expected" in str(caught.value)


def test_infos() -> None:
    with (
        Collector(partial(made, "info"), frames_per_batch=1, total_frames=8, info_keys=["speed"]) as collector,
        pytest.raises(CollectError, match=rf"gave info 'speed' .*, at {re.escape(__file__)}:\d+ in step"),
    ):
        list(collector)


def floats(observation: Any) -> Any:  # noqa: ARG001
    return np.array([0.5])


class Choosing:
    """A policy that is no function."""

    def __call__(self, observation: Any) -> Any:  # noqa: ARG002
        return np.array([7])


@pytest.mark.parametrize(("policy", "name"), [(floats, "floats"), (Choosing(), "__call__")])
def test_policies(policy: Any, name: str) -> None:
    with (
        Collector("CartPole-v1", policy, frames_per_batch=4, total_frames=8) as collector,
        pytest.raises(CollectError, match=rf"policy gave action .*, at {re.escape(__file__)}:\d+ in {name}"),
    ):
        list(collector)


def test_the_outermost_that_is_no_library() -> None:
    wrapped = gymnasium.wrappers.TimeLimit(Scaled(Wrong("reward")), 5)
    assert definition(wrapped, "step").endswith("in Scaled")
    assert definition(gymnasium.wrappers.TimeLimit(Wrong("reward"), 5), "step").endswith("in step")
    library = gymnasium.make("CartPole-v1")
    assert re.search(r"cartpole\.py:\d+ in step$", definition(library, "step"))
    assert definition(lambda: None).endswith("in <lambda>")
    assert definition(5, "step") == definition(None) == ""
