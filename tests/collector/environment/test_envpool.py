import envpool
import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.collector.environment.gym_env import ENVPOOL_ATARI, GymEnv, open_environment
from rlx.collector.environment.space import RandomPolicy
from rlx.collector.policy.protocol import FunctionPolicy
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import Steps
from rlx.errors import CollectError


def collected(env_id: str, seeds: list[int], length: int, limit: int | None = None) -> Steps:
    environment = open_environment(env_id, len(seeds))
    try:
        policy = FunctionPolicy(RandomPolicy(environment.action_space, seeds))
        return Rollout(environment, seeds, limit).run(policy, length)
    finally:
        environment.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_steps_are_those_of_envpool_without_its_resets() -> None:
    steps = collected("envpool/CartPole-v1", [3], 200)
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=1, seed=[3])
    observation, _ = pool.reset()
    was_reset = 0
    for at in range(int(steps.counts[0])):
        np.testing.assert_array_equal(steps.observation["observation"][0, at], observation[0])
        action = steps.step["action"][0, at : at + 1]
        observation, reward, terminated, truncated, _ = pool.step(action)
        assert (steps.next["reward"][0, at], steps.next["terminated"][0, at]) == (reward[0], terminated[0])
        if terminated[0] or truncated[0]:
            np.testing.assert_array_equal(steps.final[0, at]["observation"], observation[0])
            observation, *_ = pool.step(action)
            was_reset += 1
    assert was_reset > 3


def test_an_environments_steps_are_a_function_of_its_seed() -> None:
    def alone(seed: int) -> NDArray[np.uint8]:
        frames: NDArray[np.uint8] = collected("envpool/Pong-v5", [seed], 60).observation["observation"][0]
        return frames

    together = collected("envpool/Pong-v5", [5, 6], 60).observation["observation"]
    assert together.shape == (2, 61, 84, 84)
    np.testing.assert_array_equal(together[0], alone(5))
    np.testing.assert_array_equal(together[1], alone(6))
    assert (together[0] != together[1]).any()
    assert ENVPOOL_ATARI["repeat_action_probability"] == 0.25


def test_long_episodes_are_truncated_one_by_one() -> None:
    steps = collected("envpool/CartPole-v1", [0, 1, 2], 40, limit=12)
    free = collected("envpool/CartPole-v1", [0, 1, 2], 40)
    ends = {env: [at for number, at in steps.final if number == env] for env in range(3)}
    for env, last in ends.items():
        lengths = np.diff([-1, *last])
        assert lengths.max() <= 12
        assert [bool(steps.next["truncated"][env, at]) for at in last] == [length == 12 for length in lengths]
        same = min(12, last[0] + 1)
        np.testing.assert_array_equal(
            steps.observation["observation"][env, :same], free.observation["observation"][env, :same]
        )
    assert steps.next["truncated"].any()


def test_an_unknown_name() -> None:
    with pytest.raises(CollectError, match="'Pnog-v5' is unknown to envpool") as error:
        open_environment("envpool/Pnog-v5", 1)
    assert "envpool/Pong-v5" in (error.value.hint or "")


def test_options_are_refused() -> None:
    with pytest.raises(CollectError, match="envpool/Pong-v5 takes no options, found frameskip"):
        open_environment(GymEnv("envpool/Pong-v5", frameskip=2))
