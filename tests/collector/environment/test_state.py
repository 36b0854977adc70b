"""The state of environments: one in another's state makes the same steps, and what hides state is named."""

import os
import random
from array import array
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers

from rlx.collector import Collector, GymEnv, MultiCollector, SerialEnv
from rlx.collector.environment.gym_env import make
from rlx.collector.environment.state import HiddenStateError, _generator, _same, restore_state, save_state
from rlx.engine.local_actors import InlineActors


class Walk(gymnasium.Env[Any, Any]):
    """An environment of its user's: shared arrays, containers, generators of every kind, functions and methods."""

    last: Any = None

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.trail = np.zeros(2)
        self.seen: Any = {"trail": self.trail, "steps": deque([0], maxlen=3)}
        self.old, self.dice = np.random.RandomState(1), random.Random(2)
        self.memory, self.weights = bytearray(3), torch.zeros(2)
        self.pieces = np.array([[None, "a"]], object)
        self.tools, self.kind, self.choose = [os.system, len], Agent, self.turn

    def turn(self) -> float:
        return float(self.trail[1] + self.np_random.random())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.seen["steps"].clear()
        return self.trail.copy(), {}

    def step(self, action: Any) -> Any:
        self.trail[0] += self.choose() + action + self.action_space.sample()
        self.seen["trail"][1] += self.old.random() + len(self.seen["steps"])
        self.seen["steps"].append(action)
        self.memory[self.dice.randrange(3)] += 1
        self.weights += 0.5
        self.pieces[0, 0] = (self.pieces[0, 0] or 0) + self.memory[0]
        self.trail[1] += float(self.weights.sum()) + self.pieces[0, 0]
        self.last = np.float32(self.trail[0])
        return self.trail.copy(), float(self.last), False, self.dice.random() < 0.1, {}


class Agent:
    """Part of an environment."""

    def __init__(self, trail: Any) -> None:
        self.trail, self.steps = trail, 0

    def rest(self) -> None:
        """Do nothing."""


class Told(gymnasium.Env[Any, Any]):
    """An environment that keeps its state in an object of its own, and gives it when it is asked."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.agent = Agent(np.zeros(1))

    def get_state(self) -> Any:
        return {"trail": self.agent.trail.copy(), "steps": self.agent.steps}

    def set_state(self, state: Any) -> None:
        self.agent.trail, self.agent.steps = state["trail"].copy(), state["steps"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.agent.steps = 0
        return self.agent.trail.copy(), {}

    def step(self, action: Any) -> Any:
        self.agent.steps += 1
        self.agent.trail += action + self.np_random.random() / self.agent.steps
        return self.agent.trail.copy(), 1.0, False, self.agent.steps % 9 == 0, {}


class Pickled(Told):
    """The same, without being asked: its state can only be pickled, by those who trust it."""

    get_state = set_state = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.agent.env = self  # type: ignore[attr-defined]


def _cartpole() -> Any:
    return gymnasium.make("CartPole-v1")


_ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "cartpole": _cartpole,
    "pendulum": lambda: gymnasium.make("Pendulum-v1"),
    "frozen lake": lambda: gymnasium.make("FrozenLake-v1"),
    "blackjack": lambda: gymnasium.make("Blackjack-v1"),
    "pong": lambda: make("ALE/Pong-v5", frameskip=1),
    "wrappers": lambda: wrappers.NormalizeReward(
        wrappers.NormalizeObservation(wrappers.FrameStackObservation(wrappers.RecordEpisodeStatistics(_cartpole()), 3))
    ),
    "function": lambda: wrappers.TransformReward(_cartpole(), lambda reward: float(reward) * 2),
    "own": Walk,
    "told": Told,
    "told, in wrappers": lambda: wrappers.TimeLimit(wrappers.NormalizeReward(Told()), 8),
    "pickled": lambda: wrappers.TimeLimit(Pickled(), 8),
    "mujoco": lambda: gymnasium.make("Hopper-v5"),
}


def _trace(env: Any, steps: int) -> list[Any]:
    trace: list[Any] = []
    for step in range(steps):
        space = env.action_space
        action = step % 2 if hasattr(space, "n") else np.full(space.shape, 0.1 * (step % 7), np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        trace.append((np.asarray(observation).tobytes(), float(reward), terminated, truncated))
        if terminated or truncated:
            trace.append(np.asarray(env.reset()[0]).tobytes())
    return trace


def _loaded(state: Any) -> Any:
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", _ENVIRONMENTS)
def test_an_environment_in_another_ones_state_makes_the_same_steps(name: str) -> None:
    if name == "pong":
        pytest.importorskip("ale_py")
    if name == "mujoco":
        pytest.importorskip("mujoco")
    env, other = _ENVIRONMENTS[name](), _ENVIRONMENTS[name]()
    env.reset(seed=3)
    env.action_space.seed(4)
    _trace(env, 40)
    trust = name == "pickled"
    state = _loaded(save_state(env, trust=trust))
    expected = _trace(env, 60)
    other.reset(seed=5)
    _trace(other, 3)
    restore_state(other, state, trust=trust)
    assert _trace(other, 60) == expected


def _with(**attributes: Any) -> Any:
    env = Walk()
    for name, value in attributes.items():
        setattr(env, name, value)
    return env


def test_hidden_state_is_named() -> None:
    trail, owner, total = np.zeros(4), array("d", [1, 2]), 0

    def count() -> int:
        nonlocal total
        total += 1
        return total

    for env, found in (
        (_with(made=iter([1])), r"Walk\.made is a builtins\.list_iterator, whose state cannot be read"),
        (_with(made={"a": [zip()]}), r"Walk\.made\['a'\]\[0\] is a builtins\.zip"),
        (_with(made=Agent(trail)), r"Walk\.made is a .*Agent, whose state cannot be read"),
        (_with(made=Agent(trail).rest), r"Walk\.made is a .*Agent, whose state cannot be read"),
        (_with(made=count), r"Walk\.made is a function that may keep state in its closure"),
        (_with(made=np.zeros(10 << 20)), r"Walk\.made and what was read before it exceed 64 MiB"),
        (_with(made=np.asarray(owner)), r"Walk\.made is a view of the memory of a array\.array"),
        (_with(made=np.zeros(2, "i4,i4")), r"Walk\.made is an array of \[\('f0', "),
        (_with(one=trail[:3], other=trail[1:]), "TimeLimit has arrays that are views of one memory"),
    ):
        with pytest.raises(HiddenStateError, match=found):
            save_state(wrappers.TimeLimit(env, 10))


def test_what_cannot_even_be_pickled_is_named() -> None:
    for env, found in (
        (_with(made=iter([1]), agent=Agent(lambda: 1)), r"Walk cannot be pickled: "),
        (_with(made=[Agent(_cartpole())]), r"a .*OrderEnforcing|TimeLimit is in an attribute, whose state"),
    ):
        with pytest.raises(HiddenStateError, match=found):
            save_state(env, trust=True)


def test_a_pickled_state_is_not_read_unless_it_is_trusted() -> None:
    env = Pickled()
    with pytest.raises(HiddenStateError, match=r"Pickled\.agent is a .*Agent, whose state cannot be read") as raised:
        save_state(env)
    assert raised.value.hint == "give its environment get_state and set_state, or pass trust=True, which pickles it"
    env.agent.steps = 7
    state = _loaded(save_state(env, trust=True))
    fresh = Pickled()
    with pytest.raises(HiddenStateError, match=r"the state of .*Pickled is pickled"):
        restore_state(fresh, state)
    assert fresh.agent.steps == 0
    restore_state(fresh, state, trust=True)
    assert fresh.agent.steps == 7
    assert fresh.agent.env is fresh  # type: ignore[attr-defined]


def test_a_state_of_another_environment_is_refused() -> None:
    pendulum = _ENVIRONMENTS["pendulum"]()
    pendulum.reset(seed=0)
    state = save_state(pendulum)
    with pytest.raises(HiddenStateError, match="is in the state, but not in its place"):
        restore_state(_cartpole(), state)
    for node in state["nodes"]:
        if node["kind"] == "object" and node["class"].endswith("PendulumEnv"):
            node["class"] = "subprocess.Popen"
    with pytest.raises(HiddenStateError, match=r"a subprocess\.Popen is in the state"):
        restore_state(_ENVIRONMENTS["pendulum"](), state)


def test_code_stays_where_the_fresh_object_has_it() -> None:
    state = save_state(_with(last="other"))
    env = restore_state(Walk(), _loaded(state))
    assert (env.last, env.tools, env.choose) == ("other", [os.system, len], env.turn)
    at = state["nodes"][state["root"]["ref"]]["attributes"]
    code = state["nodes"][at["tools"]["ref"]]["items"][0]  # os.system
    for changes in (
        {"choose": code},  # a function of another attribute
        {"kind": code},
        {"last": code},
        {"new": code},
        {"turn": "text"},  # which hides a method
        {"turn": at["choose"]},
        {"choose": "text"},
        {"tools": {"kind": "list", "items": state["nodes"][at["tools"]["ref"]]["items"][::-1]}},
        {"tools": {"kind": "list", "items": [1, 2]}},
        {"spec": "text"},
        {"__class__": "text"},
        {"new": {"kind": "kept", "name": "os.system"}},
        {"new": {"kind": "object", "class": "subprocess.Popen", "attributes": {}}},
        {"new": {"kind": "build"}},
        {"action_space": 3},
        {"action_space": at["observation_space"]},
        {"trail": at["action_space"]},
        {"trail": 1j},
        {"trail": {"kind": "array", "dtype": "|O", "shape": [1], "raw": torch.zeros(8, dtype=torch.uint8)}},
        {"trail": {"kind": "array", "dtype": "<f8", "shape": [5], "raw": torch.zeros(8, dtype=torch.uint8)}},
        {"old": {"kind": "generator", "class": "Generator", "state": {"ref": 10**6}}},
    ):
        wrong = deepcopy(state)
        for name, value in changes.items():
            if isinstance(value, dict) and "kind" in value:
                wrong["nodes"].append(value)
                value = {"ref": len(wrong["nodes"]) - 1}
            wrong["nodes"][state["root"]["ref"]]["attributes"][name] = value
        env = Walk()
        before = save_state(env)
        with pytest.raises(HiddenStateError):
            restore_state(env, wrong)
        assert _same(save_state(env), before), changes


def test_generators_that_numpy_would_not_check() -> None:
    state = {"bit_generator": "MT19937", "state": {"key": np.zeros(624, np.uint32), "pos": 10_000}}
    with pytest.raises(HiddenStateError, match="MT19937: position 10000, expected at most 624"):
        _generator("RandomState", state)
    with pytest.raises(HiddenStateError, match="generator 'SeedSequence': expected one of"):
        _generator("Generator", {"bit_generator": "SeedSequence"})


class _Sampling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(self.layer(observation).softmax(-1), 1)[:, 0]


_COLLECTORS: dict[str, Callable[[Any], Any]] = {
    "one": lambda policy: Collector("CartPole-v1", policy, frames_per_batch=37),
    "random": lambda policy: Collector("CartPole-v1", policy, frames_per_batch=37, init_random_frames=1_000),
    "lanes": lambda policy: Collector(SerialEnv(3, "CartPole-v1"), policy, frames_per_batch=90, info_keys="all"),
    "episodes": lambda policy: Collector(SerialEnv(3, "CartPole-v1"), policy, trajs_per_batch=4),
    "limit": lambda policy: Collector(SerialEnv(2, "CartPole-v1"), policy, frames_per_batch=40, max_frames_per_traj=9),
    "next step": lambda policy: Collector(
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"), policy, frames_per_batch=90
    ),
    "vector": lambda policy: Collector(
        lambda: gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
        policy,
        frames_per_batch=90,
    ),
    "workers": lambda policy: MultiCollector(
        [GymEnv("CartPole-v1")] * 2, policy, frames_per_batch=40, sync=True, actors=InlineActors()
    ),
}


@pytest.mark.parametrize("name", _COLLECTORS)
def test_a_collector_continues_its_episodes(name: str) -> None:
    policy = _Sampling()
    with _COLLECTORS[name](policy) as collector:
        for _ in range(3):
            collector.next()
        state = _loaded(collector.state_dict(environments=True))
        assert collector.hidden_state is None
        generator = torch.get_rng_state()
        expected = [collector.next() for _ in range(3)]
    with _COLLECTORS[name](policy) as collector:
        collector.load_state_dict(state)
        assert collector.hidden_state is None
        torch.set_rng_state(generator)
        for batch in expected:
            found = collector.next()
            for key in batch.keys(True, True):
                assert torch.equal(found[key].nan_to_num(), batch[key].nan_to_num()), key


def test_workers_that_collect_ahead_begin_new_episodes() -> None:
    workers = ["CartPole-v1"]
    with MultiCollector(workers, frames_per_batch=10, total_frames=-1, sync=False, actors=InlineActors()) as collector:
        collector.next()
        state = collector.state_dict(environments=True)
        assert collector.hidden_state == "workers collect ahead of the learner"
        collector.load_state_dict(state)
        assert collector.hidden_state == "workers collect ahead of the learner"
        batch = collector.next()
        assert batch is not None
        assert batch["is_init"].reshape(-1)[0]
