"""Environments stepped in turn, beside gymnasium's own SyncVectorEnv."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rlx.collector.environment.lanes import SerialVectorEnv, made_in_lane
from rlx.collector.environment.vector import VectorEnvironment, serial
from rlx.errors import CollectError
from rlx.integrations.record import RecordVectorExperience
from tests.collector.walks import Talkative, Walk

LANES = 3


class Listed(Walk):
    """A walk whose observations are lists."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation.tolist(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *outcome = super().step(action)
        return (observation.tolist(), *outcome)


class Doubled(Walk):
    """A walk whose observations have two parts."""

    def __init__(self, lane: int = 0) -> None:
        super().__init__(lane)
        self._space = self.observation_space
        self.observation_space = spaces.Dict(a=self._space, b=self._space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return {"a": observation, "b": observation * 2}, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *outcome = super().step(action)
        return ({"a": observation, "b": observation * 2}, *outcome)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [Walk, Talkative, Listed, Doubled])
def test_steps_are_those_of_gymnasium(kind: type[Walk]) -> None:
    makes = [partial(kind, lane) for lane in range(LANES)]
    theirs = SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = SerialVectorEnv(makes, "walks")

    def assert_both(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
        assert_same(found[:-1], expected[:-1])
        assert_same_infos(found[-1], expected[-1])

    assert_both(ours.reset(seed=[1, 2, 3]), theirs.reset(seed=[1, 2, 3]))
    for actions in np.random.default_rng(0).integers(0, 4, (40, LANES)):
        assert_both(ours.step(actions), theirs.step(actions))
    mask = np.array([True, False, True])
    assert_both(ours.reset(options={"reset_mask": mask}), theirs.reset(options={"reset_mask": mask}))


class Reused(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment that writes all its observations into the same arrays."""

    def __init__(self, kind: type[Walk], lane: int) -> None:
        super().__init__(kind(lane))
        self._array: Any = None

    def observation(self, observation: Any) -> Any:
        if self._array is None:
            self._array = deepcopy(observation)
        for array, rows in (
            [(self._array[key], rows) for key, rows in observation.items()]
            if isinstance(observation, dict)
            else [(self._array, observation)]
        ):
            array[...] = rows
        return self._array


@pytest.mark.parametrize("kind", [Walk, Doubled])
def test_last_observations_are_kept_where_a_reset_writes_into_their_array(kind: type[Walk]) -> None:
    makes = [partial(Reused, kind, lane) for lane in range(LANES)]
    reused = serial(makes, "reused", is_batched=True)
    fresh = serial([partial(kind, lane) for lane in range(LANES)], "fresh", is_batched=True)
    alone = made_in_lane(makes[0], 0, "alone")  # as it is in a process of its own
    for env in (reused, fresh):
        env.reset([1, 2, 3])
    alone.reset(seed=1)
    found, expected, lasts, firsts = list[Any](), list[Any](), list[Any](), list[Any]()
    for actions in np.random.default_rng(0).integers(0, 4, (40, LANES)):
        found += (ended := reused.step(actions).final_observation).values()
        expected += fresh.step(actions).final_observation.values()
        last, _, terminated, truncated, _ = alone.step(actions[0])
        if terminated or truncated:
            alone.reset()
            lasts.append(last)
            firsts.append(ended[0])
    assert_same(tuple(found), tuple(expected))
    assert_same(tuple(lasts), tuple(firsts))
    assert lasts


def test_an_observation_of_another_shape_is_refused() -> None:
    class Grown(Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            _, *outcome = super().step(action)
            return (np.zeros(1, np.float32), *outcome)  # type: ignore[return-value]

    env = SerialVectorEnv([Grown], "grown")
    env.reset(seed=[0])
    expected = r"grown gave observation of float32\[1\], expected float32\[3\] for Box.*, in step 1 of environment 0"
    with pytest.raises(CollectError, match=expected):
        env.step(np.zeros(1, np.int64))


class Together(VectorEnv[Any, Any, Any]):
    """Two environments that only end and are only reset together; episodes of two steps."""

    num_envs = 2

    def __init__(self, mode: AutoresetMode) -> None:
        self.metadata: dict[str, Any] = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(0, 9, (1,), np.int64)
        self.single_action_space = spaces.Discrete(2)
        self._t = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        del seed, options
        self._t = 0
        return np.zeros((2, 1), np.int64), {}

    def step(self, actions: Any) -> Any:
        del actions
        self._t += 1
        ended = np.full(2, self._t == 2)
        return np.full((2, 1), self._t), np.zeros(2), ended, np.zeros(2, bool), {}


def test_environments_that_are_reset_together_cut_no_episode_of_one() -> None:
    environment = VectorEnvironment(Together(AutoresetMode.NEXT_STEP), "Together")
    environment.reset([0, 1])
    with pytest.raises(CollectError, match="Together cannot cut episodes: it resets environments only together"):
        environment.reset_some(np.array([True, False]))
    assert environment.reset_some(np.array([True, True])).tolist() == [[0], [0]]


def test_an_environment_without_the_last_observation_of_an_episode() -> None:
    environment = VectorEnvironment(Together(AutoresetMode.SAME_STEP), "Together")
    environment.reset([0, 1])
    environment.step(np.zeros(2, np.int64))
    with pytest.raises(CollectError, match="Together ended an episode without the final_obs that autoreset mode"):
        environment.step(np.zeros(2, np.int64))


def test_environments_of_an_unknown_library_that_cannot_be_made() -> None:
    def broken() -> Any:
        raise ZeroDivisionError("no wheels")

    with pytest.raises(CollectError, match="environment cart cannot be made: ZeroDivisionError: no wheels"):
        serial([broken], "cart", is_batched=False)


def assert_same(found: Any, expected: Any) -> None:
    """Compare trees of arrays, their dtypes too; objects by their text."""
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        for key, value in found.items():
            assert_same(value, expected[key])
    elif isinstance(found, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(found, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def assert_same_infos(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare infos where they are said: gymnasium has zeros elsewhere, and these arrays of objects."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_same_infos(found[key], value)
        elif key.startswith("_"):
            np.testing.assert_array_equal(found[key], value)
        elif key != "object":
            for env in found[f"_{key}"].nonzero()[0]:
                if isinstance(value[env], dict):
                    assert_same(found[key][env], value[env])
                    continue
                np.testing.assert_equal(found[key][env], np.asarray(value[env], np.asarray(found[key][env]).dtype))


def test_environments_are_gymnasiums() -> None:
    env = SerialVectorEnv([partial(gymnasium.make, "CartPole-v1")], "poles")
    env.reset(seed=[3])
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    env.close()


class OneArray(gymnasium.Env[Any, Any]):
    """Episodes of three steps, whose observations are one array that ``reset`` overwrites.

    Args:
        changes: how much a step adds; 0: all observations are alike.
    """

    observation_space: Any = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, *, is_copied: bool = False, changes: float = 1) -> None:
        self._array, self._is_copied, self._changes = np.zeros(2, np.float32), is_copied, changes

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._time, self._array[:] = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self._time += 1
        self._array += self._changes
        return self._seen(), 1.0, self._time == 3, False, {}

    def _seen(self) -> Any:
        return self._array.copy() if self._is_copied else self._array


@pytest.mark.parametrize(("options", "is_said"), [({}, True), ({"is_copied": True}, False), ({"changes": 0}, False)])
def test_final_observations_that_reset_overwrote_are_said_once(
    options: dict[str, Any], is_said: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    makes: list[Any] = [partial(OneArray, **options), lambda: TimeLimit(OneArray(**options), 2)]
    env = AsyncVectorEnv(makes, shared_memory=False, autoreset_mode=AutoresetMode.SAME_STEP)
    with RecordVectorExperience(env, tmp_path / "mine") as envs:
        envs.reset(seed=0)
        for _ in range(30):
            envs.step(np.zeros(2, np.int64))
    assert caplog.text.count("observation of the reset after it") == is_said
