"""No cast changes a value in silence, and what is not as its space declares is said, in all collectors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rlx
from rlx.collector import Collector, MultiCollector, ParallelEnv, SerialEnv
from rlx.collector.environment.intake import cast
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError

BOX = partial(spaces.Box, -np.inf, np.inf, (3,))


class Giving(gymnasium.Env[Any, Any]):
    """Gives the usual observation and reward, and others in step 5; 10 steps an episode."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, usual: Any, fifth: Any, reward: Any = 1.0) -> None:
        self.observation_space = space
        self._usual, self._fifth, self._reward = usual, fifth, reward
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._usual, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        del action
        self._t += 1
        is_fifth = self._t == 5
        return self._fifth if is_fifth else self._usual, self._reward if is_fifth else 1.0, self._t == 10, False, {}


def alone(make: Any) -> Any:
    return Collector(make, frames_per_batch=20, total_frames=20)


def in_turn(make: Any) -> Any:
    return Collector(SerialEnv(2, make), frames_per_batch=40, total_frames=40)


def of_gymnasium(make: Any, mode: AutoresetMode) -> Any:
    return Collector(partial(SyncVectorEnv, [make, make], autoreset_mode=mode), frames_per_batch=40, total_frames=40)


def in_workers(make: Any) -> Any:
    return MultiCollector([make], frames_per_batch=20, total_frames=20, sync=False, actors=InlineActors())


OPEN = [alone, in_turn, in_workers, *(partial(of_gymnasium, mode=mode) for mode in AutoresetMode)]
CHANGED = [
    (spaces.Box(0, 255, (3,), np.uint8), np.uint16, 1, 300, "300 of uint16, which uint8 would change to 44"),
    (spaces.Box(0, 255, (3,), np.uint8), np.int64, 1, -1, "-1 of int64, which uint8 would change to 255"),
    (BOX(np.int32), np.int64, 1, 2**33 + 5, "8589934597 of int64, which int32 would change to 5"),
    (BOX(np.float16), np.float32, 0.5, 1e6, "1000000.0 of float32, which float16 would change to inf"),
    (BOX(np.float32), np.int64, 1, 2**53 + 1, "9007199254740993 of int64, which float32 would change to"),
    (BOX(np.float32), np.float64, 1, 1e300, "1e[+]300 of float64, which float32 would change to inf"),
    (BOX(np.float32), object, 1, None, r"object\[3\], expected float32\[3\] for Box"),
    (BOX(np.float32), str, 1, "a", r"<U1\[3\], expected float32\[3\] for Box"),
]


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.parametrize(("space", "dtype", "usual", "fifth", "said"), CHANGED, ids=str)
def test_an_observation_that_its_space_would_change(
    kind: Callable[[Any], Any], space: Any, dtype: Any, usual: Any, fifth: Any, said: str
) -> None:
    declared = space.dtype
    make = partial(Giving, space, np.full(3, usual, declared), np.full(3, fifth, dtype))
    with kind(make) as collector, pytest.raises(CollectError, match=f"gave observation (of )?{said}") as error:
        list(collector)
    assert "in step 5 of environment 0" in str(error.value)
    assert str(declared) in str(error.value)


@pytest.mark.filterwarnings("ignore:.*Received the following error", "ignore:.*Traceback", "ignore:.*Raising")
def test_an_observation_that_its_space_would_change_in_a_process() -> None:
    space, dtype, usual, fifth, said = CHANGED[0]
    make = partial(Giving, space, np.full(3, usual, np.uint8), np.full(3, fifth, dtype))
    env = ParallelEnv(1, make, mp_start_method="fork")
    expected = f"gave observation {said}, in step 5 of environment 0"
    with (
        Collector(env, frames_per_batch=20, total_frames=20) as collector,
        pytest.raises(CollectError, match=expected),
    ):
        collector.next()


@pytest.mark.parametrize(
    ("space", "usual", "fifth", "remark"),
    [
        (BOX(np.float32), np.zeros(3, np.float32), np.full(3, 0.1), "observation: float64 rounded to float32"),
        (BOX(np.float32), np.zeros(3, np.float32), np.full(3, np.nan, np.float32), "observation: outside its space"),
        (spaces.Box(-1, 1), np.zeros(1, np.float32), np.full(1, 7, np.float32), "observation: outside its space"),
        (spaces.Discrete(3), 0, 3, "observation: outside its space"),
        (spaces.Discrete(3, start=1), np.int64(1), np.int64(0), "observation: outside its space"),
        (spaces.MultiDiscrete([2, 2]), np.zeros(2, int), np.array([0, 2]), "observation: outside its space"),
        (
            spaces.Dict(a=spaces.Discrete(2)),
            {"a": 0},
            {"a": 1, "b": 2},
            "observation: key 'b' is not in its space, and not kept",
        ),
        (
            spaces.Dict(a=spaces.Dict(b=spaces.Box(-1, 1))),
            {"a": {"b": np.zeros(1, np.float32)}},
            {"a": {"b": np.full(1, 2, np.float32), "c": 1}},
            "observation/a/b: outside its space",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", OPEN)
def test_what_is_said_once_and_counted(
    kind: Callable[[Any], Any], space: Any, usual: Any, fifth: Any, remark: str, caplog: Any
) -> None:
    with kind(partial(Giving, space, usual, fifth)) as collector:
        lanes = collector.next().shape[:-1].numel()
        assert collector.remarks[remark] == 2 * lanes
    assert sum(remark in message for message in caplog.messages) == 1


@pytest.mark.parametrize("reward", [np.nan, np.inf])
@pytest.mark.parametrize("kind", OPEN)
def test_rewards_that_are_not_finite(kind: Callable[[Any], Any], reward: float, caplog: Any) -> None:
    with kind(partial(Giving, BOX(np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32), reward)) as collector:
        batch = collector.next()
        assert collector.remarks == {"reward: NaN or infinite": int((~batch["next", "reward"].isfinite()).sum())}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", OPEN)
def test_rewards_that_float32_would_change(kind: Callable[[Any], Any]) -> None:
    make = partial(Giving, BOX(np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32))
    with (
        kind(partial(make, 1e300)) as collector,
        pytest.raises(CollectError, match=r"gave reward 1e\+300 of float64") as e,
    ):
        list(collector)
    assert "in step 5 of environment 0" in str(e.value)
    with kind(partial(make, 0.1)) as collector:
        assert not collector.next()["next", "reward"].isnan().any()
        assert not collector.remarks
    for reward in (2**53 + 1, 1 + 2j, None, "1.5"):
        with kind(partial(make, reward)) as collector, pytest.raises(CollectError, match="reward"):
            list(collector)


def test_remarks_are_in_the_report(tmp_path: Any, caplog: Any) -> None:
    make = partial(Giving, spaces.Box(-1, 1), np.zeros(1, np.float32), np.full(1, 7, np.float32), np.nan)
    report = rlx.collect(make, envs=2, steps=80, output=tmp_path / "set")
    assert report.to_json()["remarks"] == {"observation: outside its space": 8, "reward: NaN or infinite": 8}
    assert len(caplog.messages) == 2


def test_rewards_of_a_dataset_that_is_asked_to_round(tmp_path: Any) -> None:
    make = partial(Giving, BOX(np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32))
    rlx.collect(partial(make, 0.1), envs=1, steps=20, output=tmp_path / "rounded", reward_dtype="float32")
    with pytest.raises(CollectError, match=r"reward 1e\+300 would become inf in float32"):
        rlx.collect(partial(make, 1e300), envs=1, steps=20, output=tmp_path / "changed", reward_dtype="float32")


def test_remarks_of_environments_in_processes() -> None:
    make = partial(Giving, BOX(np.float32), np.zeros(3, np.float32), np.full(3, 0.1))
    env = ParallelEnv(2, make, mp_start_method="fork")
    with Collector(env, frames_per_batch=40, total_frames=40, info_keys="all") as collector:
        batch: Any = collector.next()
        assert collector.remarks == {"observation: float64 rounded to float32": 4}
    assert "info" not in batch["next"]


def test_actions_that_their_space_would_change() -> None:
    class Pushed(Giving):
        action_space: Any = spaces.Box(-1, 1, (1,), np.float32)

    make = partial(Pushed, BOX(np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32))
    for action, said in (
        (1e300, r"1e\+300 of float64, which float32"),
        (2**40 + 1, "1099511627777 of int64, which float32"),
    ):
        policy = partial(lambda observation, value: np.full((len(observation), 1), value), value=action)
        expected = f"policy gave action {said}.*, in step 1 of environment 0"
        with (
            Collector(make, policy, frames_per_batch=4, total_frames=4) as collector,
            pytest.raises(CollectError, match=expected),
        ):
            collector.next()


def test_tensors_are_taken_over() -> None:
    class Tensors(Giving):
        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return (torch.as_tensor(observation), *rest)

    kinds: list[Any] = OPEN
    for kind in kinds:
        with kind(partial(Tensors, BOX(np.float32), np.zeros(3, np.float32), np.full(3, 5, np.float32))) as collector:
            assert collector.next()["next", "observation"].max() == 5


@given(
    hnp.arrays(st.sampled_from(["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?"]), 1),
    st.sampled_from(["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?"]),
)
def test_a_cast_changes_nothing_or_says_so(values: Any, dtype: str) -> None:
    found, changed, rounded = cast(values, np.dtype(dtype))
    before, after = values[0].item(), found[0].item()
    if not changed[0] and not rounded[0]:
        assert before == after or (before != before and after != after)
    if rounded[0]:
        assert values.dtype.kind == found.dtype.kind == "f"
        assert np.isfinite(after)
    if before == after:
        assert not changed[0]
        assert not rounded[0]


@pytest.mark.parametrize("reward", [2**53 + 1, np.int64(2**53 + 1), np.uint64(2**64 - 1), 10**400])
@pytest.mark.parametrize("kind", OPEN)
def test_whole_rewards_that_float64_would_change(kind: Callable[[Any], Any], reward: Any) -> None:
    make = partial(Giving, BOX(np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32), reward)
    with kind(make) as collector, pytest.raises(CollectError, match=r"gave reward .*, in step 5 of environment 0"):
        list(collector)


class Flagging(Giving):
    """Gives another flag in step 5."""

    def __init__(self, flag: Any) -> None:
        super().__init__(BOX(np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32))
        self._flag = flag

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, self._flag if self._t == 5 else truncated, info


@pytest.mark.parametrize("flag", [2, -1, 0.5, np.nan, None, "False", np.array([False, True])])
@pytest.mark.parametrize("kind", OPEN)
def test_flags_that_are_none(kind: Callable[[Any], Any], flag: Any) -> None:
    expected = r"gave truncated .*, expected True or False, in step 5 of environment 0"
    with kind(partial(Flagging, flag)) as collector, pytest.raises(CollectError, match=expected):
        list(collector)


@pytest.mark.parametrize("flag", [1, 1.0, np.int8(1), np.array([True])])
@pytest.mark.parametrize("kind", OPEN)
def test_flags_that_are_numbers(kind: Callable[[Any], Any], flag: Any) -> None:
    with kind(partial(Flagging, flag)) as collector:
        truncated = collector.next()["next", "truncated"].reshape(-1, 20)
    assert truncated.nonzero()[:, 1].unique().tolist() == [4, 9, 14, 19]


def test_what_is_said_of_an_environment_that_is_stepped_by_hand(caplog: Any) -> None:
    make = partial(Giving, spaces.Box(-1, 1), np.full(1, 7, np.float32), np.zeros(1, np.float32), np.nan)
    env = SerialEnv(2, make)
    assert env.rollout(10)["next", "reward"].isnan().sum() == 2
    said = ("observation: outside its space", "reward: NaN or infinite")
    assert [sum(remark in message for message in caplog.messages) for remark in said] == [1, 1]
    assert env._stand.remarks.counts == {said[0]: 20, said[1]: 2}
