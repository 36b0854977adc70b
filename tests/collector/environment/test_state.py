"""The state of environments: one in another's state makes the same steps, and what hides state is named."""

import os
import random
from array import array
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers

from rlx.collector import Collector, GymEnv, MultiCollector, SerialEnv
from rlx.collector.environment.gym_id import make
from rlx.collector.environment.state_capture import capture
from rlx.collector.environment.state_restore import _same, restore
from rlx.collector.environment.state_rules import HiddenStateError, check_bits, name_of_class
from rlx.engine.local_actors import InlineActors


class Walk(gymnasium.Env[Any, Any]):
    """An environment of its user's: objects, shared arrays, a closure, generators of every kind."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.trail = np.zeros(2)
        self.agent = Agent(self.trail)
        total = 0

        def count() -> int:
            nonlocal total
            total += 1
            return total

        self.count = count
        self.old = np.random.RandomState(1)
        self.dice, self.noise = random.Random(2), torch.Generator()
        self.memory, self.weights = bytearray(3), torch.zeros(2)
        self.pieces = np.array([[None, "a"]], object)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.agent.friends = [Agent(self.trail), self.agent]
        return self.trail.copy(), {}

    def step(self, action: Any) -> Any:
        self.trail[0] += self.np_random.random() + action + self.action_space.sample()
        self.agent.friends[0].trail[1] += self.old.random() + self.agent.friends[1].steps
        self.agent.steps += 1
        self.memory[self.dice.randrange(3)] += 1
        self.weights += torch.rand(2, generator=self.noise)
        self.pieces[0, 0] = (self.pieces[0, 0] or 0) + self.memory[0]
        self.trail[1] += float(self.weights.sum()) + self.pieces[0, 0]
        return self.trail.copy(), float(self.count()), False, self.agent.steps % 9 == 0, {}


class Agent:
    """Part of an environment, with slots."""

    __slots__ = ("friends", "steps", "trail")

    def __init__(self, trail: Any) -> None:
        self.trail, self.steps = trail, 0
        self.friends: list[Agent] = []


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
    state = _loaded(capture(env))
    expected = _trace(env, 60)
    other.reset(seed=5)
    _trace(other, 3)
    restore(other, state)
    assert _trace(other, 60) == expected


def _with(**attributes: Any) -> Any:
    env = Walk()
    for name, value in attributes.items():
        setattr(env, name, value)
    return env


def test_hidden_state_is_named() -> None:
    trail = np.zeros(4)
    for env, found in (
        (_with(made=iter([1])), r"Walk\.made is a builtins\.list_iterator, whose state cannot be read"),
        (_with(made={"a": [zip()]}), r"Walk\.made\['a'\]\[0\] is a builtins\.zip"),
        (_with(made=np.zeros(10 << 20)), r"Walk\.made and what was read before it exceed 64 MiB"),
        (_with(one=trail[:3], other=trail[1:]), "TimeLimit has arrays that are views of one memory"),
    ):
        with pytest.raises(HiddenStateError, match=found):
            capture(wrappers.TimeLimit(env, 10))


def test_a_state_of_another_environment_is_refused() -> None:
    pendulum = _ENVIRONMENTS["pendulum"]()
    pendulum.reset(seed=0)
    state = capture(pendulum)
    with pytest.raises(HiddenStateError, match="is in the state, but not in"):
        restore(_cartpole(), state)
    for node in state["nodes"]:
        if node["kind"] == "object" and node["class"].endswith("PendulumEnv"):
            node["class"] = "subprocess.Popen"
    with pytest.raises(HiddenStateError, match=r"class subprocess\.Popen is in the state"):
        restore(_ENVIRONMENTS["pendulum"](), state)


def _dangerous(state: Any, marker: Path, attribute: str) -> None:
    """Give the outermost environment an attribute that runs a shell command when it is called."""
    nodes = state["nodes"]
    spec: dict[str, Any] = {
        "entry_point": "os:system",
        "kwargs": {"ref": len(nodes)},
        "additional_wrappers": {"ref": len(nodes) + 1},
        "id": "A-v0",
        "name": "A",
        "namespace": "",
        "version": 0,
        "order_enforce": False,
        "disable_env_checker": True,
    }
    first = len(nodes)
    nodes += [
        {"kind": "dict", "items": [("command", f"touch {marker}")]},
        {"kind": "tuple", "items": []},
        {"kind": "object", "class": "gymnasium.envs.registration.EnvSpec", "attributes": spec},
        {"kind": "method", "of": {"ref": first + 2}, "name": "make"},
    ]
    nodes[state["root"]["ref"]]["attributes"][attribute] = {"ref": first + 3}


@pytest.mark.parametrize("attribute", ["close", "own", "_max_episode_steps", "spec", "__class__"])
def test_a_state_brings_no_code(attribute: str, tmp_path: Path) -> None:
    marker = tmp_path / "touched"
    state = capture(wrappers.TimeLimit(Walk(), 10))
    _dangerous(state, marker, attribute)
    env = wrappers.TimeLimit(Walk(), 10)
    before = capture(env)
    with pytest.raises(HiddenStateError):
        restore(env, _loaded(state))
    env.close()
    assert not marker.exists()
    assert _same(capture(env), before)


class Calls(gymnasium.Env[Any, Any]):
    """An environment that has functions, methods, classes and modules in its attributes."""

    last: Any = None

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Discrete(2)
        self.run, self.tools, self.kind = os.system, [os.system, len], Agent
        self.choose = self.pick
        self.text = "touch"
        self.first, self.second = (lambda: 1), (lambda: 2)
        self.agent = Agent(np.zeros(1))

    def pick(self) -> str:
        return self.text


def test_functions_stay_where_the_fresh_object_has_them() -> None:
    state = capture(_with_text(Calls(), "other"))
    env: Any = restore(Calls(), _loaded(state))
    assert (env.text, env.choose(), env.first(), env.second()) == ("other", "other", 1, 2)
    at = state["nodes"][state["root"]["ref"]]["attributes"]
    agent = {"kind": "object", "class": name_of_class(Agent), "attributes": {}}
    for changes in (
        {"choose": at["run"]},  # a function of another attribute
        {"render": at["run"]},  # one that hides a method
        {"render": at["choose"]},  # a method that is in its place elsewhere
        {"render": "text"},
        {"last": at["run"]},
        {"second": at["first"]},
        {"tools": {"kind": "list", "items": state["nodes"][at["tools"]["ref"]]["items"][::-1]}},
        {"spec": "text"},
        {"new": at["agent"]},
        {"new": {"kind": "method", "of": at["agent"], "name": "steps"}},
        {"new": {"kind": "named", "class": name_of_class(Agent), "items": []}},
        {"agent": {**agent, "attributes": {"steps": at["run"]}}},
        {"agent": {**agent, "class": "rlx.errors.CollectError"}},  # of a package that it has classes of
        {"agent": {**agent, "kind": "build"}},
        {"action_space": 3},
    ):
        wrong = deepcopy(state)
        for name, value in changes.items():
            if isinstance(value, dict) and "kind" in value:
                wrong["nodes"].append(value)
                value = {"ref": len(wrong["nodes"]) - 1}
            wrong["nodes"][state["root"]["ref"]]["attributes"][name] = value
        env = Calls()
        before = capture(env)
        with pytest.raises(HiddenStateError):
            restore(env, wrong)
        assert _same(capture(env), before), changes
    bits = {"bit_generator": "MT19937", "state": {"key": np.zeros(624, np.uint32), "pos": 10_000}}
    with pytest.raises(HiddenStateError, match="MT19937: position 10000, expected at most 624"):
        check_bits("MT19937", bits)


def _with_text(env: Any, text: str) -> Any:
    env.text = text
    return env


class Note:
    """Part of an environment that is made in an episode."""

    def __init__(self) -> None:
        self.target: Any = None
        self.text = "new"


def test_objects_made_in_the_episode_have_their_attributes_that_are_none() -> None:
    env, other = _with(notes=[Note()]), _with(notes=[Note()])
    env.notes += [Note(), Note()]
    env.notes[2].target = env.notes[0]
    restored = restore(other, _loaded(capture(env)))
    assert [note.target for note in restored.notes] == [None, None, restored.notes[0]]


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


def _edited(env: Any, kind: str, **changes: Any) -> Any:
    """The state of an environment, with other entries in its first node of a kind."""
    state = capture(env)
    next(node for node in state["nodes"] if node["kind"] == kind).update(changes)
    return state


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("array", {"dtype": "|O"}, "an array of object is in the state"),
        ("bits", {"name": "SeedSequence"}, "generator 'SeedSequence': expected one of"),
        ("closure", {"name": "os.system"}, r"function os\.system is in the state, but not in its place"),
        ("space", {"class": "subprocess.Popen"}, r"a subprocess\.Popen is in the state, but not in its place"),
        ("object", {"attributes": {"trail": 1j}}, "a complex in the state"),
        ("array", {"shape": [5, 5]}, "state does not fit: ValueError"),
    ],
)
def test_a_damaged_state_is_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    env = Walk()
    env.reset(seed=1)
    state = _edited(env, kind, **changes)
    fresh = Walk()
    before = capture(fresh)
    with pytest.raises(HiddenStateError, match=message):
        restore(fresh, state)
    assert _same(capture(fresh), before)


def test_a_state_of_something_else_than_a_part() -> None:
    state = capture(Agent(np.zeros(1)))
    with pytest.raises(HiddenStateError, match="Agent: the state is of something else"):
        restore(Agent(np.zeros(1)), {**state, "root": 5})


def test_a_space_where_there_is_none() -> None:
    state = capture(Walk())
    at = state["nodes"][state["root"]["ref"]]["attributes"]
    at["trail"] = at["action_space"]
    state["nodes"][state["root"]["ref"]]["attributes"] = {"trail": at.pop("trail"), **at}
    with pytest.raises(HiddenStateError, match="Discrete is in the state, but not in its place"):
        restore(Walk(), state)


def test_arrays_that_cannot_be_read() -> None:
    owner = array("d", [1, 2])
    with pytest.raises(HiddenStateError, match=r"Walk\.made is a view of the memory of a array\.array"):
        capture(_with(made=np.asarray(owner)))
    with pytest.raises(HiddenStateError, match=r"Walk\.made is an array of \[\('f0', "):
        capture(_with(made=np.zeros(2, "i4,i4")))
