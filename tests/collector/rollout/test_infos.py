"""What an environment says in info is kept on request, step by step, in every autoreset mode."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from rlx.collector import Collector, MultiCollector
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError
from tests.collector.memory import says_text
from tests.collector.rollout.test_policy_outputs import MODES, joined
from tests.collector.walks import Talkative, Walk, talkative_lanes, talking


def collected(source: Any, policy: Any = None, **options: Any) -> Any:
    with Collector(source, policy, **{"frames_per_batch": 20, "total_frames": 120, **options}) as collector:
        return joined(list(collector))


@pytest.mark.parametrize("mode", MODES)
def test_what_a_step_says_is_in_that_step(mode: AutoresetMode) -> None:
    batch = collected(partial(talkative_lanes, mode), info_keys=["t", "vector", ("odd", "t"), "last", "who"])
    info = batch["next", "info"]
    expected = torch.zeros(2, 60, dtype=torch.int64)
    for t in range(60):
        expected[:, t] = 1 + torch.where(batch["is_init"][:, t, 0], 0, expected[:, t - 1])
    assert torch.equal(info["t"], expected)
    assert torch.equal(info["vector"], expected[..., None].expand(-1, -1, 2) / 2)
    odd = torch.where(expected % 2 == 1, expected.double(), torch.nan)
    assert torch.equal(info["odd", "t"].nan_to_num(-1), odd.nan_to_num(-1))
    last = torch.where(batch["next", "done"][..., 0], expected.double(), torch.nan)
    assert torch.equal(info["last"].nan_to_num(-1), last.nan_to_num(-1))
    assert info["who"] == [["lane 0"] * 60, ["lane 1"] * 60]


@pytest.mark.parametrize("mode", MODES)
def test_all_that_can_be_kept(mode: AutoresetMode) -> None:
    batch = collected(partial(talkative_lanes, mode), info_keys="all")
    assert set(batch["next", "info"].keys()) == {"t", "vector", "who", "odd", "last"}


def test_returns_of_episodes_are_numbers_before_the_first_ends() -> None:
    batch = collected(lambda: RecordEpisodeStatistics(Talkative()), info_keys=["episode/r"], frames_per_batch=1)
    found, done = batch["next", "info", "episode", "r"], batch["next", "done"][:, 0]
    assert torch.equal(~found.isnan(), done)
    total = 0.0
    for reward, ended, said in zip(batch["next", "reward"][:, 0].tolist(), done, found.tolist(), strict=True):
        total += reward
        if ended:
            assert said == pytest.approx(total)
            total = 0.0


def test_what_cannot_be_kept() -> None:
    with pytest.raises(CollectError, match="info 'object' cannot be kept: expected a number, an array or a text"):
        collected(partial(talkative_lanes, MODES[0]), info_keys=["object"])
    with pytest.raises(CollectError, match="info_keys 't': expected a list of keys, or 'all'"):
        collected(partial(talkative_lanes, MODES[0]), info_keys="t")
    with pytest.raises(CollectError, match="info 'last' appeared after the first batch"):
        collected(lambda: Talkative(3), info_keys="all", frames_per_batch=1)


def test_texts_are_seen_done_and_kept() -> None:
    batch = collected(partial(talking, 2))
    tasks, after = batch["observation", "task"], batch["next", "observation", "task"]
    for lane in range(2):
        for t in range(59):
            assert tasks[lane][t].startswith(f"lane {lane} left ")
            if batch["next", "done"][lane, t]:
                assert after[lane][t] == f"lane {lane} left 0"
            else:
                assert after[lane][t] == tasks[lane][t + 1]
    assert all(isinstance(action, str) and action for row in batch["action"] for action in row)


def test_a_policy_that_writes_text() -> None:
    batch = collected(partial(SyncVectorEnv, [Walk, Walk]), says_text)
    assert batch["plan"] == [["go 0"] * 60, ["go 1"] * 60]


def test_workers_send_texts_and_infos() -> None:
    options: Any = {"frames_per_batch": 40, "total_frames": 80}
    with MultiCollector([partial(talking, 2)], None, **options) as collector:
        found = joined(list(collector))
    expected = collected(partial(talking, 2), frames_per_batch=40, total_frames=80)
    assert np.array_equal(found["action"], [expected["action"]])
    assert found["next", "observation", "task"] == [expected["next", "observation", "task"]]
    with MultiCollector([partial(talkative_lanes, MODES[0])], None, info_keys="all", **options) as collector:
        found = joined(list(collector))
    expected = collected(partial(talkative_lanes, MODES[0]), info_keys="all", frames_per_batch=40, total_frames=80)
    assert torch.equal(found["next", "info", "t"][0], expected["next", "info", "t"])
    assert found["next", "info", "who"] == [expected["next", "info", "who"]]


@pytest.mark.parametrize("keys", ["all", ["t", "vector", ("odd", "t"), "who"]])
def test_an_entry_that_only_some_workers_have(keys: Any) -> None:
    options: Any = {"info_keys": keys, "frames_per_batch": 40, "total_frames": 40}
    with MultiCollector([Walk, Talkative], None, actors=InlineActors(), **options) as collector:
        batch: Any = collector.next()
    silent, talks = batch["next", "info"]
    assert silent["odd", "t"].isnan().all()
    assert silent["vector"].shape == (20, 2)
    assert silent["vector"].isnan().all()
    assert silent["t"].isnan().all()
    assert silent["who"] == [""] * 20
    assert talks["t"].isfinite().all()
    assert talks["vector"].isfinite().all()
    assert talks["who"] == ["lane 0"] * 20


class Telling(Walk):
    """A walk with an info of the test's.

    Args:
        tells: returns the info of a step, by its number.
    """

    def __init__(self, tells: Callable[[int], dict[Any, Any]]) -> None:
        super().__init__()
        self._tells = tells
        self._t = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *outcome, _ = super().step(action)
        self._t += 1
        return (*outcome, self._tells(self._t))


@pytest.mark.parametrize("number", [0, np.int64(0)])
def test_keys_that_are_not_texts(number: Any) -> None:
    def tells(t: int) -> dict[Any, Any]:
        return {"t": t, number: 1.0, "agents": {number: {"x": 1.0}, "y": t}, ("b", 1): 2}

    batch = collected(lambda: Telling(tells), info_keys="all")
    info = batch["next", "info"]
    assert set(info.keys(include_nested=True, leaves_only=True)) == {"t", ("agents", "y")}
    for key in ("0", ("agents", "0", "x")):
        name = "/".join(key)
        with pytest.raises(CollectError, match=f"info '{name}' cannot be kept: .*, under keys that are texts"):
            collected(lambda: Telling(tells), info_keys=[key])
    assert "info" not in collected(lambda: Telling(tells))["next"]


@pytest.mark.parametrize("keys", ["all", ["a/b"]])
@pytest.mark.parametrize("first", [1, 30])
def test_keys_with_the_same_name(keys: Any, first: int) -> None:
    twice = {"a/b": 1, "a": {"b": 2}}

    def tells(t: int) -> dict[str, Any]:
        return twice if t >= first else {"a/b": 1}

    places = r"\['a/b'\] and \['a'\]\['b'\]"
    with pytest.raises(CollectError, match=f"info 'a/b' appears twice: at {places}, expected one of them"):
        collected(lambda: Telling(tells), info_keys=keys)
    batch = collected(lambda: Telling(lambda _: {**twice, "c": 3}), info_keys=["c"])
    assert batch["next", "info", "c"].tolist() == [3] * 120


@pytest.mark.parametrize("keys", ["all", ["a", "a/b"]])
def test_a_key_below_another(keys: Any) -> None:
    expected = r"info 'a/b' is below info 'a': expected a value or keys, not both"
    for tells in (lambda _: {"a": 1, "a/b": 2}, lambda t: {"a": 1} if t % 2 else {"a": {"b": 1}}):
        with pytest.raises(CollectError, match=expected):
            collected(lambda tells=tells: Telling(tells), info_keys=keys)


class Together(VectorEnv[Any, Any, Any]):
    """Two lanes that say what they are told to in each step."""

    num_envs = 2

    def __init__(self, says: Callable[[int], dict[str, Any]], width: int = 1) -> None:
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(0, 9, (1,), np.int64)
        self.single_action_space = spaces.Discrete(2)
        self._says, self._width, self._t = says, width, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        del seed, options
        return np.zeros((2, self._width), np.int64), {}

    def step(self, actions: Any) -> Any:
        self._t += 1
        no = np.zeros(2, bool)
        return np.zeros((2, 1), np.int64), np.zeros(len(actions)), no, no, self._says(self._t)


def test_infos_without_a_value_of_one_kind_in_every_lane_are_left_out() -> None:
    def says(t: int) -> dict[str, Any]:
        return {
            "won": np.array([np.bool_(t % 2), np.bool_((t + 1) % 2)], object),
            "when": np.array([np.datetime64(t, "s")] * 2, object),
            "ragged": [[1], [1, 2]],
            "few": np.zeros(1),
            "mixed": np.array([1, "a"], object),
        }

    batch = collected(lambda: Together(says), info_keys="all", frames_per_batch=6, total_frames=6)
    assert set(batch["next", "info"].keys()) == {"won"}
    assert batch["next", "info", "won"].tolist() == [[True, False, True], [False, True, False]]


def test_an_info_and_an_observation_of_another_shape() -> None:
    with pytest.raises(CollectError, match=r"info 'seen' is float64\[2\], expected float64\[1\] as before"):
        collected(lambda: Together(lambda t: {"seen": np.zeros((2, t))}), info_keys=["seen"])
    with pytest.raises(CollectError, match=r"gave observation of int64\[2, 2\], expected int64\[2, 1\]"):
        collected(lambda: Together(lambda _: {}, width=2))
