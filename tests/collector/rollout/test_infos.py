"""What an environment says in info is kept on request, step by step, in every autoreset mode."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers import vector as vector_wrappers

from rlx.collector import Collector, MultiCollector, SerialEnv
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
    with pytest.raises(
        CollectError, match="info 'object', which cannot be kept: expected a number, an array or a text"
    ):
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
        with pytest.raises(CollectError, match=f"info '{name}', which cannot be kept: .*, under keys that are texts"):
            collected(lambda: Telling(tells), info_keys=[key])
    assert "info" not in collected(lambda: Telling(tells))["next"]


@pytest.mark.parametrize("keys", ["all", ["a/b"]])
@pytest.mark.parametrize("first", [1, 30])
def test_keys_with_the_same_name(keys: Any, first: int) -> None:
    twice = {"a/b": 1, "a": {"b": 2}}

    def tells(t: int) -> dict[str, Any]:
        return twice if t >= first else {"a/b": 1}

    places = r"\['a/b'\] and \['a'\]\['b'\]"
    with pytest.raises(CollectError, match=f"gave info 'a/b' twice: at {places}, expected one of them"):
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
    with pytest.raises(CollectError, match=r"info 'seen' of float64\[2\] .*, expected float64\[1\] as before"):
        collected(lambda: Together(lambda t: {"seen": np.zeros((2, t))}), info_keys=["seen"])
    with pytest.raises(CollectError, match=r"gave observation of int64\[2, 2\], expected int64\[2, 1\]"):
        collected(lambda: Together(lambda _: {}, width=2))


RETURNS = [[np.nan, 2.0] * 3, [np.nan, np.nan, 3.0] * 2]  # of episodes of 2 and 3 steps with rewards of 1


class Counted(Walk):
    """Episodes of as many steps as it is told, with rewards of 1.

    Args:
        says: returns the infos of a reset, of a step, and of the last step, by the number of the step.
    """

    def __init__(self, length: int, says: Callable[[int, bool], dict[str, Any]] = lambda *_: {}) -> None:
        super().__init__()
        self._length, self._says, self._t = length, says, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        self._t = 0
        return observation, self._says(0, False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *_ = super().step(action)
        self._t += 1
        ended = self._t == self._length
        return observation, 1.0, ended, False, self._says(self._t, ended)


class Stating(VectorWrapper):
    """Adds the length of an episode that ends, as a wrapper may: in a dict or not, of arrays or lists, with the mask at
    one depth.

    Args:
        layout: of the entry: the depths of the value and of its mask, and whether both are lists.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], layout: tuple[int, int, bool]) -> None:
        super().__init__(env)
        self._layout = layout
        self._t = np.zeros(env.num_envs, int)
        self._ended = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        which = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self._t[which], self._ended[which] = 0, False
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        *outcome, info = super().step(actions)
        is_same = self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        self._t = np.where(self._ended, 0 if not is_same else 1, self._t + 1)
        self._ended = outcome[2] | outcome[3]
        depth, masked, are_lists = self._layout
        entry: Any = {"length": np.where(self._ended, self._t, 0)}
        mask: Any = self._ended.copy()
        if are_lists:
            entry, mask = {"length": entry["length"].tolist()}, mask.tolist()
        for level in reversed(range(depth + 1)):
            if level == masked:
                (key,) = entry
                entry[f"_{key}"] = mask
            if level:
                entry = {f"deep{level}": entry}
        if self._ended.any():
            info |= entry
        return (*outcome, info)


LAYOUTS = [
    (depth, masked, are_lists) for depth in range(3) for masked in range(depth + 1) for are_lists in (False, True)
]


@pytest.mark.parametrize("inner", [{}, {"t": 1}])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MODES)
def test_masks_at_every_depth(mode: AutoresetMode, layout: tuple[int, int, bool], inner: dict[str, Any]) -> None:
    def make() -> Any:
        lanes = [partial(Counted, length, lambda *_: dict(inner)) for length in (2, 3)]
        return Stating(SyncVectorEnv(lanes, autoreset_mode=mode), layout)

    key = "/".join([f"deep{level}" for level in range(1, layout[0] + 1)] + ["length"])
    batch = collected(make, info_keys=[key], frames_per_batch=12, total_frames=12)
    np.testing.assert_array_equal(batch["next", "info", *key.split("/")], RETURNS)


@pytest.mark.parametrize("frames", [2, 12])
@pytest.mark.parametrize("wrap", [lambda env: env, vector_wrappers.DictInfoToList], ids=["dicts", "lists"])
@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_gymnasiums_wrapper(mode: AutoresetMode, wrap: Any, frames: int) -> None:
    def make() -> Any:
        lanes = SyncVectorEnv([partial(Counted, 2), partial(Counted, 3)], autoreset_mode=mode)
        return wrap(vector_wrappers.RecordEpisodeStatistics(lanes))

    batch = collected(make, info_keys=["episode/r", "episode/l"], frames_per_batch=frames, total_frames=12)
    for key in ("r", "l"):
        np.testing.assert_array_equal(batch["next", "info", "episode", key], RETURNS)


@pytest.mark.parametrize("form", ["dicts", "array", "list"])
def test_infos_of_last_steps_beside_those_of_resets(form: str) -> None:
    """What the last step says wins over the reset, and what only a reset says is in no step."""

    class Both(Stating):
        def step(self, actions: Any) -> Any:
            *outcome, info = super().step(actions)
            if "final_info" in info and form != "dicts":
                ended = outcome[2] | outcome[3]
                own = info["final_info"]
                listed = [{"score": own["score"][env]} if ended[env] else None for env in range(2)]
                info["final_info"] = listed if form == "list" else np.array(listed, object)
            return (*outcome, info)

    def says(t: int, ended: bool) -> dict[str, Any]:
        return {"begun": 1.0, "score": -1.0} if not t else {"score": float(t)} if ended else {}

    def make() -> Any:
        lanes = [partial(Counted, length, says) for length in (2, 3)]
        return Both(SyncVectorEnv(lanes, autoreset_mode=AutoresetMode.SAME_STEP), (1, 0, False))

    batch = collected(make, info_keys=["score", "begun", "deep1/length"], frames_per_batch=12, total_frames=12)
    info = batch["next", "info"]
    np.testing.assert_array_equal(info["score"], RETURNS)
    np.testing.assert_array_equal(info["deep1", "length"], RETURNS)
    assert info["begun"].isnan().all()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, torch.float64),
        (True, torch.float64),
        (np.array([1, 2], np.int8), torch.float64),
        (np.float32(2), torch.float32),
    ],
)
def test_a_step_without_an_entry_has_nan(value: Any, dtype: torch.dtype) -> None:
    says = partial(Telling, lambda t: {"k": value} if t % 2 else {"k": None} if t == 4 else {})
    found = collected(says, info_keys=["k"], frames_per_batch=6, total_frames=12)["next", "info", "k"]
    assert found.dtype == dtype
    assert found[1::2].isnan().all()
    np.testing.assert_array_equal(found[::2], [value] * 6)


@pytest.mark.parametrize("frames", [2, 4])
def test_a_whole_number_that_is_missing_later(frames: int) -> None:
    says = partial(Telling, lambda t: {"k": 3} if t != 6 else {})
    with pytest.raises(CollectError, match=r"no info 'k'.* stored as int64.*, in step 6 of environment 0"):
        collected(says, info_keys=["k"], frames_per_batch=frames, total_frames=12)


@pytest.mark.parametrize(
    ("first", "later", "found"),
    [
        (np.int32(1), np.int64(2**40 + 7), "1099511627783 of int64, which int32 would change to 7"),
        (np.uint8(1), np.uint16(300), "300 of uint16, which uint8 would change to 44"),
        (np.float32(1), np.float64(1e300), "1e[+]300 of float64, which float32 would change to inf"),
        (np.zeros(2, np.int8), np.array([300, 1], np.int16), "300 of int16, which int8 would change to 44"),
        (np.float32(1), np.int64(2**53 + 1), "9007199254740993 of int64, which float32 would change to"),
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda make: make, lambda make: partial(SyncVectorEnv, [make, make])], ids=["alone", "vector"]
)
def test_an_entry_that_was_narrower_at_first(first: Any, later: Any, found: str, wrap: Any) -> None:
    make = partial(Telling, lambda t: {"k": later if t == 5 else first})
    with pytest.raises(CollectError, match=f"gave info 'k' {found}.*, in step [5-9] of environment [01]"):
        collected(wrap(make), info_keys=["k"])


@pytest.mark.parametrize("keys", ["all", ["k"]])
@pytest.mark.parametrize(("first", "later"), [(True, 5), (1, 2.5), ("a", 5), (1, 10**25)])
def test_an_entry_of_another_kind(first: Any, later: Any, keys: Any) -> None:
    make = partial(Telling, lambda t: {"k": later if t == 5 else first})
    with pytest.raises(CollectError, match=r"info 'k'( of|, which cannot be kept).*, in step 5 of environment 0"):
        collected(make, info_keys=keys)


def test_entries_of_different_dtypes_in_one_step() -> None:
    makes = [partial(Telling, lambda _: {"k": 1}), partial(Telling, lambda _: {"k": 2.5})]
    batch = collected(SerialEnv(2, makes), info_keys=["k"])
    assert batch["next", "info", "k"].unique(dim=1).tolist() == [[1.0], [2.5]]
