import gc
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing

from rlx.collector.collector import Collector
from rlx.collector.environment.gym_env import (
    GymEnv,
    ParallelEnv,
    SerialEnv,
    emulator_seeds,
    open_environment,
    with_options,
)
from rlx.collector.environment.space import RandomPolicy, schema_of
from rlx.collector.environment.vector import VectorEnvironment
from rlx.collector.policy.protocol import FunctionPolicy
from rlx.collector.rollout.loop import Rollout
from rlx.errors import CollectError, MissingExtraError
from tests.collector.environments import Counter, Ending, Rich, kill_without_a_word, leave, make_failing, one

# What three environments see in 9 steps, each its own row of one episode of 3 steps, one of 5 and one of 3.
BEFORE = [0, 1, 2, 100, 101, 102, 103, 104, 200]
AFTER = [1, 2, 3, 101, 102, 103, 104, 105, 201]


def vector(mode: AutoresetMode) -> VectorEnvironment:
    return VectorEnvironment(SyncVectorEnv([Counter] * 3, autoreset_mode=mode), "Counter")


@pytest.mark.parametrize(
    "make",
    [
        lambda: vector(AutoresetMode.NEXT_STEP),
        lambda: vector(AutoresetMode.SAME_STEP),
        lambda: vector(AutoresetMode.DISABLED),
        lambda: open_environment(SerialEnv(3, Counter)),
        lambda: open_environment(ParallelEnv(3, Counter)),
        lambda: open_environment(Counter, 3),
        lambda: open_environment(lambda: SyncVectorEnv([Counter] * 3)),
    ],
    ids=["next step", "same step", "disabled", "serial", "parallel", "copies", "vector"],
)
def test_no_reset_is_a_step_and_every_final_observation_is_real(make: Callable[[], Any]) -> None:
    environment = make()
    try:
        steps = Rollout(environment, [0, 1, 2]).run(FunctionPolicy(one), 9)
    finally:
        environment.close()
    assert steps.counts.tolist() == [9] * 3
    for env in range(3):
        after = steps.observation["observation"][env, 1:, 0].tolist()
        for (ended, at), final in steps.final.items():
            if ended == env:
                after[at] = final["observation"][0]
        assert steps.observation["observation"][env, :9, 0].tolist() == BEFORE
        assert after == AFTER
        assert np.flatnonzero(steps.next["terminated"][env]).tolist() == [2]
        assert np.flatnonzero(steps.next["truncated"][env]).tolist() == [7]
        assert steps.next["reward"][env].tolist() == [1, 2, 3, 1, 2, 3, 4, 5, 1]


def test_environments_that_reset_at_different_times() -> None:
    env = SyncVectorEnv([lambda: Counter((1,)), lambda: Counter((4,))], autoreset_mode=AutoresetMode.NEXT_STEP)
    steps = Rollout(VectorEnvironment(env, "Counter"), [0, 1]).run(FunctionPolicy(one), 8)
    assert steps.counts.tolist() == [5, 8]
    assert steps.observation["observation"][0, :5, 0].tolist() == [0, 100, 200, 300, 400]
    assert steps.observation["observation"][1, :8, 0].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert sorted(steps.final) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 7)]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_long_episodes_are_truncated(mode: AutoresetMode) -> None:
    steps = Rollout(vector(mode), [0, 1, 2], max_episode_steps=2).run(FunctionPolicy(one), 4)
    assert steps.counts.tolist() == [4] * 3
    assert steps.next["truncated"].tolist() == [[False, True] * 2] * 3
    assert not steps.next["terminated"].any()
    assert steps.observation["observation"][0, :, 0].tolist() == [0, 1, 100, 101, 200]
    assert {at: final["observation"][0] for (env, at), final in steps.final.items() if env == 1} == {1: 2, 3: 102}


@pytest.mark.parametrize("seed", [6, 8, 11])
def test_atari_frames_are_those_of_gymnasium(seed: int) -> None:
    """Three numbers whose seed of the emulator is not negative, which ale-py's vector environment does not take."""
    environment = open_environment("ALE/Pong-v5", 1)
    single = AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1), noop_max=0)
    expected = [single.reset(seed=seed)[0]]
    steps = Rollout(environment, [seed]).run(FunctionPolicy(RandomPolicy(environment.action_space, [seed])), 1200)
    for at in range(1200):
        frame, reward, terminated, truncated, _ = single.step(int(steps.step["action"][0, at]))
        assert (steps.next["reward"][0, at], steps.next["terminated"][0, at], steps.next["truncated"][0, at]) == (
            reward,
            terminated,
            truncated,
        )
        if terminated or truncated:
            np.testing.assert_array_equal(steps.final[0, at]["observation"], frame)
            frame, _ = single.reset()
        expected.append(frame)
    np.testing.assert_array_equal(steps.observation["observation"][0], expected)
    assert steps.final, "an episode ends"
    assert steps.observation["observation"].shape == (1, 1201, 84, 84)
    environment.close()


def test_seeds_of_the_emulator_are_gymnasiums() -> None:
    env = gymnasium.make("ALE/Pong-v5")
    _, info = env.reset(seed=6)
    assert emulator_seeds([6]).tolist() == [info["seeds"][1]]


def test_an_unknown_id() -> None:
    with pytest.raises(CollectError, match="'CartPool-v1' is unknown") as error:
        open_environment("CartPool-v1")
    assert error.value.hint is not None
    assert "CartPole-v1" in error.value.hint
    with pytest.raises(CollectError, match="unknown") as error:
        open_environment("ALE/Pung-v5", 2)
    assert error.value.hint is not None
    assert "ALE/Pong-v5" in error.value.hint


@pytest.mark.parametrize("name", ["Pong-v5", "PongNoFrameskip-v9", "ALE/Pong-v9", "PongDeterministic-v9"])
def test_other_names_of_atari_games(name: str) -> None:
    with pytest.raises(CollectError, match="unknown") as error:
        open_environment(name)
    assert "ALE/Pong-v5" in str(error.value.hint)


def test_a_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: str) -> None:
        raise DependencyNotInstalled(
            'Box2D is not installed, run `pip install swig` and `pip install "gymnasium[box2d]"`'
        )

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(MissingExtraError, match="Box2D is not installed") as error:
        open_environment("LunarLander-v3")
    assert error.value.hint == 'pip install swig && pip install "gymnasium[box2d]"'


def test_a_vector_environment_with_one_seed_for_all() -> None:
    def vector() -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")

    steps = Rollout(open_environment(vector, 3), [7, 8, 9]).run(FunctionPolicy(one), 50)
    again = Rollout(open_environment(vector), [7, 8, 9]).run(FunctionPolicy(one), 50)
    other = Rollout(open_environment(vector), [8, 8, 9]).run(FunctionPolicy(one), 50)
    assert steps.next["terminated"].any()
    rows = [found.observation["observation"][:, :20] for found in (steps, again, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert (rows[0] != rows[2]).any()


def test_what_gymnasium_made_it_of() -> None:
    env = open_environment(lambda: gymnasium.make("CartPole-v1", max_episode_steps=50, sutton_barto_reward=True), 2)
    assert env.spec == {"id": "CartPole-v1", "max_episode_steps": 50, "kwargs": {"sutton_barto_reward": True}}
    assert open_environment(Counter, 2).spec == {}


@pytest.mark.parametrize("source", [5, None, ["CartPole-v1"], {}])
def test_a_source_that_makes_no_environment(source: Any) -> None:
    expected = rf"^environment {re.escape(repr(source))}: expected a Gymnasium id, an environment or a function"
    number: Any = 5
    opens: list[Callable[[], Any]] = [
        lambda: open_environment(source),
        lambda: open_environment(SerialEnv(1, [source])),
        lambda: open_environment(with_options(source, {"render_mode": None})),
    ]
    for opened in opens:
        with pytest.raises(CollectError, match=expected):
            opened()
    with pytest.raises(CollectError, match=r"failed: TypeError: 'int' object is not callable"):
        open_environment(lambda: number())


def test_an_environment_that_fails() -> None:
    rollout = Rollout(open_environment(make_failing, 2), [0, 1])
    with pytest.raises(CollectError, match="failed in step: RuntimeError: the motor is hot"):
        rollout.run(FunctionPolicy(one), 30)


class Forgetful(Counter):
    """Leaves something out of its steps.

    Args:
        value: what its second step has at this place of the results.
    """

    def __init__(self, place: int, value: Any) -> None:
        super().__init__()
        self._place, self._value = place, value

    def step(self, action: Any) -> Any:
        outcome = list(super().step(action))
        if self._t == 2:
            outcome[self._place] = self._value
        return tuple(outcome)


class ForgetfulParts(Forgetful):
    """Forgetful, with an observation that has parts."""

    def __init__(self, place: int, value: Any) -> None:
        super().__init__(place, value)
        self.observation_space = gymnasium.spaces.Dict(a=self.observation_space)

    def _observation(self) -> Any:
        return {"a": super()._observation()}


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (1, None, "reward None, expected a number"),
        (1, "1.5", "reward '1.5', expected a number"),
        (2, None, "terminated None, expected True or False"),
        (2, "no", "terminated 'no', expected True or False"),
        (3, None, "truncated None, expected True or False"),
    ],
)
@pytest.mark.parametrize("kind", [Forgetful, ForgetfulParts])
def test_an_outcome_without_a_value(kind: Any, place: int, value: Any, said: str) -> None:
    environment = open_environment(partial(kind, place, value), 2)
    with pytest.raises(CollectError, match=f"^{kind.__name__} gave {said}, in step 2 of environment 0, at .* in step$"):
        Rollout(environment, [0, 1]).run(FunctionPolicy(lambda _: np.ones(2, np.int64)), 9)


@pytest.mark.filterwarnings("ignore:.*Received the following error", "ignore:.*Traceback", "ignore:.*Raising")
def test_an_outcome_without_a_value_in_a_process() -> None:
    environment = open_environment(ParallelEnv(2, partial(Forgetful, 1, None)))
    with pytest.raises(CollectError, match=r"^Forgetful gave reward None, expected a number, in step 2 of"):
        Rollout(environment, [0, 1]).run(FunctionPolicy(one), 9)
    environment.close()


@pytest.mark.parametrize("reward", [2, True, np.float32(2.5), np.array(3.0), torch.tensor(4.5), np.nan])
@pytest.mark.parametrize("kind", [Forgetful, ForgetfulParts])
def test_rewards_of_other_types(kind: Any, reward: Any) -> None:
    environment = open_environment(partial(kind, 1, reward), 2)
    steps = Rollout(environment, [0, 1]).run(FunctionPolicy(lambda _: np.ones(2, np.int64)), 9)
    np.testing.assert_array_equal(steps.next["reward"][0, :3], [1, float(reward), 3])


@pytest.mark.parametrize("flag", [np.True_, 1, np.array(True), torch.tensor(True)])
def test_flags_of_other_types(flag: Any) -> None:
    environment = open_environment(partial(Forgetful, 2, flag), 2)
    steps = Rollout(environment, [0, 1]).run(FunctionPolicy(one), 4)
    assert steps.next["terminated"].tolist() == [[False, True, False, True]] * 2


def end_of_file() -> None:
    raise EOFError("the simulator closed its socket")


@pytest.mark.filterwarnings("ignore:.*Received the following error", "ignore:.*Traceback", "ignore:.*Raising")
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (kill_without_a_word, "the process of an environment ended"),
        (leave, "the process of an environment ended"),
        (end_of_file, "EOFError: the simulator closed its socket"),
    ],
)
def test_an_environment_that_ends_its_process(
    ends: Callable[[], None], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    env = ParallelEnv(2, partial(Ending, ends, 2, tmp_path / "flag"))
    collector = Collector(env, frames_per_batch=6, total_frames=100)
    with pytest.raises(CollectError, match=f"^Ending failed in step: {said}(, at .*)?$"):
        next(iter(collector))
    del collector
    gc.collect()
    if ends is not end_of_file:  # which gymnasium logs
        assert "Traceback" not in capfd.readouterr().err


def test_a_process_that_was_killed_between_two_steps() -> None:
    environment = open_environment(ParallelEnv(2, Counter))
    environment.reset([0, 1])
    victim, other = environment._env.processes  # type: ignore[attr-defined]
    victim.kill()
    victim.join()
    with pytest.raises(CollectError, match=r"^Counter failed in step: the process of an environment ended$"):
        environment.step(np.zeros(2, np.int64))
    assert not other.is_alive()
    environment.close()


def test_what_is_no_environment() -> None:
    with pytest.raises(CollectError, match=r"^dict gave a dict"):
        open_environment(dict)
    with pytest.raises(CollectError, match="ZeroDivisionError"):
        open_environment(lambda: 1 // 0)
    with pytest.raises(CollectError, match="expected 3") as error:
        open_environment(lambda: SyncVectorEnv([Counter] * 2), 3)
    assert error.value.hint == "`envs` 2"


def test_a_single_environment_is_known_as_one() -> None:
    assert not open_environment(GymEnv("CartPole-v1")).is_batched
    assert not open_environment(Counter()).is_batched
    assert open_environment(GymEnv("CartPole-v1"), 1).is_batched
    assert open_environment(SerialEnv(1, "CartPole-v1")).num_envs == 1


def test_the_schema_of_spaces_with_parts() -> None:
    schema = schema_of(Rich().observation_space, Rich().action_space)
    assert {name: (field.dtype, field.shape) for name, field in schema.fields.items()} == {
        "observation/pair/0": ("int64", ()),
        "observation/pair/1": ("int8", (2,)),
        "observation/picture": ("uint8", (40, 40)),
        "observation/vector": ("float64", (3,)),
        "action": ("int64", (2,)),
        "reward": ("float32", ()),
        "terminated": ("bool", ()),
        "truncated": ("bool", ()),
    }
    assert schema["action"].space == {"type": "MultiDiscrete", "nvec": [2, 3]}
    assert schema["observation/picture"].space == {"type": "Box", "low": 0, "high": 255}
    assert schema_of(gymnasium.spaces.Text(3), Rich().action_space)["observation"].is_text
    with pytest.raises(CollectError, match="Graph"):
        schema_of(gymnasium.spaces.Graph(gymnasium.spaces.Discrete(2), None), Rich().action_space)


def test_errors_of_rlx_in_a_users_function_stay() -> None:
    def make() -> Any:
        raise MissingExtraError("the arena is closed", hint="come back tomorrow")

    with pytest.raises(MissingExtraError, match=r"^the arena is closed$"):
        open_environment(make)
    with pytest.raises(CollectError, match="Counter is one environment, expected a function that makes 3"):
        open_environment(Counter(), 3)
    with pytest.raises(CollectError, match=r"environment 'Cart Pole' cannot be made: .*[Mm]alformed"):
        open_environment("Cart Pole")


def test_packages_of_environments_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match="needs envpool, which is not installed") as error:
        open_environment("envpool/CartPole-v1")
    assert error.value.hint == "pip install 'rlx[envpool]'"
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtraError, match="ALE/Pong-v5 needs ale-py") as error:
        open_environment("ALE/Pong-v5")
    assert error.value.hint == "pip install 'rlx[atari]'"


def test_bounds_of_a_space_are_kept_where_they_are_few() -> None:
    low, high = np.array([0, 1], np.float32), np.array([2, 3], np.float32)
    action = gymnasium.spaces.Discrete(2)
    schema = schema_of(gymnasium.spaces.Box(low, high), action)
    assert schema["observation"].space == {"type": "Box", "low": [0, 1], "high": [2, 3]}


def test_what_an_environment_prints() -> None:
    assert repr(GymEnv("CartPole-v1", max_episode_steps=5)) == "GymEnv('CartPole-v1', max_episode_steps=5)"
