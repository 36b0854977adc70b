"""All recorders write the same dataset of one environment and one policy, and the one that ``rlx.collect`` writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.store.dataset import Dataset

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

import gymnasium
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset

from rlx.errors import CollectError
from rlx.integrations.record import RecordExperience, RecordVectorExperience

BOX: Any = spaces.Box(-100, 100, (2,), np.float32)
PICTURE: Any = spaces.Box(0, 255, (40, 40, 1), np.uint8)
KINDS: dict[str, tuple[Any, Any]] = {
    "box": (BOX, spaces.Discrete(4)),
    "start": (spaces.Discrete(200, start=-100), spaces.Discrete(4, start=3)),
    "dict": (spaces.Dict(place=BOX, seen=PICTURE, door=spaces.Discrete(100)), spaces.Box(-1, 1, (2,), np.float32)),
    "tuple": (spaces.Tuple([BOX, spaces.Text(20, charset="go 0123456789")]), spaces.MultiDiscrete([4, 4])),
    "parts": (BOX, spaces.Dict(arm=spaces.Box(-1, 1, (2,), np.float32), hand=spaces.MultiBinary(3))),
}


class Steps(gymnasium.Env[Any, Any]):
    """Episodes of 3, 4 and 5 steps, the second truncated; each observation is made of the number of all steps so far.

    It uses its arrays and its info again, and gives float64 for float32.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._made, self._episode = 0, -1
        self._info: dict[str, Any] = {}
        self._arrays: dict[int, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._episode, self._time, self._returned = self._episode + 1, 0, 0.0
        return self._value(self.observation_space), {}

    def step(self, action: Any) -> Any:
        reward = float(np.sum([np.sum(part) for part in action.values()] if isinstance(action, dict) else action))
        if isinstance(action, np.ndarray) and action.dtype.kind == "f":
            np.clip(action, 0, 0.25, out=action)
        self._made, self._time = self._made + 1, self._time + 1
        ends = self._time == 3 + self._episode % 3
        self._returned += reward
        self._info["made"] = self._made
        self._info.pop("episode", None)
        if ends:
            self._info["episode"] = {"r": self._returned}
        is_cut = self._episode % 3 == 1
        return self._value(self.observation_space), reward, ends and not is_cut, ends and is_cut, self._info

    def _value(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._value(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._value(part) for part in space.spaces)
        if isinstance(space, spaces.Text):
            return f"go {self._made}"
        if isinstance(space, spaces.Discrete):
            return self._made
        array = self._arrays.setdefault(id(space), np.zeros(space.shape, "float64" if space == BOX else space.dtype))
        array[...] = self._made + self._time / 8
        return array


def act(space: Any, step: int) -> Any:
    """Return the action of a step, made anew."""
    if isinstance(space, spaces.Dict):
        return {key: act(part, step) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return int(space.start) + step % 4
    if isinstance(space, spaces.Box):
        return np.full(space.shape, step % 4 / 4, space.dtype)
    return np.full(space.shape, step % (4 if isinstance(space, spaces.MultiDiscrete) else 2), space.dtype)


def batched(action: Any) -> Any:
    """Return the actions of one environment."""
    return {key: batched(part) for key, part in action.items()} if isinstance(action, dict) else np.array([action])


STEPS = 26  # two episodes of each length, and a running one
OPTIONS: dict[str, Any] = {"info_keys": ["made", "episode/r"], "id": "Steps"}


def one(make: Callable[[], Any], path: Path) -> None:
    with RecordExperience(make(), path, **OPTIONS) as env:
        env.reset(seed=0)
        for step in range(STEPS):
            env.record(action_log_prob=-step / 2)
            *_, terminated, truncated, _ = env.step(act(env.action_space, step))
            if terminated or truncated:
                env.reset()


def autoreset(make: Callable[[], Any], path: Path) -> None:
    with RecordExperience(Autoreset(make()), path, **OPTIONS) as env:
        env.reset(seed=0)
        step, ended = 0, False
        while step < STEPS:
            if not ended:
                env.record(action_log_prob=-step / 2)
            *_, terminated, truncated, _ = env.step(act(env.action_space, step))
            step, ended = step + (not ended), terminated or truncated


def vector(mode: AutoresetMode) -> Callable[[Callable[[], Any], Path], None]:
    def record(make: Callable[[], Any], path: Path) -> None:
        envs = SyncVectorEnv([make], autoreset_mode=mode)
        with RecordVectorExperience(envs, path, **OPTIONS) as env:
            env.reset(seed=0)
            step, ended = 0, False
            while step < STEPS:
                env.record(action_log_prob=np.array([-step / 2]))
                *_, terminated, truncated, _ = env.step(batched(act(env.single_action_space, step)))
                step += not (ended and mode == AutoresetMode.NEXT_STEP)
                ended = bool(terminated[0] or truncated[0])
                if ended and mode == AutoresetMode.DISABLED:
                    env.reset(options={"reset_mask": np.ones(1, bool)})

    return record


def stable_baselines3(make: Callable[[], Any], path: Path) -> None:
    envs = pytest.importorskip("stable_baselines3.common.vec_env")
    from rlx.integrations.stable_baselines3 import RecordVecEnv  # noqa: PLC0415

    if any(isinstance(space, spaces.Tuple | spaces.Dict) for space in (make().action_space, make().observation_space)):
        pytest.skip("Stable-Baselines3 has no such spaces")
    with RecordVecEnv(envs.DummyVecEnv([make]), path, **OPTIONS) as env:
        env.reset()
        for step in range(STEPS):
            env.record(action_log_prob=np.array([-step / 2]))
            env.step(batched(act(env.action_space, step)))


def collect(make: Callable[[], Any], path: Path) -> None:
    made = iter(range(STEPS))
    space = make().action_space

    def policy(_: Any) -> Any:
        step = next(made)
        return batched(act(space, step)), {"action_log_prob": np.array([-step / 2])}

    rlx.collect(
        make,
        policy=policy,
        steps=STEPS,
        envs=1,
        output=path,
        info=OPTIONS["info_keys"],
        reward_dtype="float32",
    )


RECORDERS = {
    "autoreset": autoreset,
    **{mode.name: vector(mode) for mode in AutoresetMode},
    "Stable-Baselines3": stable_baselines3,
    "rlx.collect": collect,
}


def _written(dataset: Dataset) -> Any:
    table = dataset.trajectories
    columns = [getattr(table, name).tolist() for name in ("length", "returns", "terminated", "truncated", "cut")]
    return dataset[:].exclude("collector"), columns, dataset.schema


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_recorders_agree(kind: str, recorder: str, tmp_path: Path) -> None:
    def make() -> Any:
        return Steps(*KINDS[kind])

    one(make, tmp_path / "one")
    RECORDERS[recorder](make, tmp_path / "other")
    (steps, table, schema), (others, other_table, other_schema) = (
        _written(Dataset(tmp_path / name)) for name in ("one", "other")
    )
    assert table == other_table
    assert table[0] == [3, 4, 5, 3, 4, 5, 2]
    assert table[4] == [False] * 6 + [True]
    assert schema == other_schema
    assert steps["next", "info", "made"].flatten().tolist() == list(range(1, STEPS + 1))
    for key in steps.keys(True, True):
        found, expected = others.get(key), steps.get(key)
        if hasattr(expected, "isnan"):
            assert np.array_equal(found.numpy(), expected.numpy(), equal_nan=expected.is_floating_point()), key
        else:
            assert list(found) == list(expected), key


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectors_of_tensors(mode: AutoresetMode, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Tensors(VectorWrapper):
        def step(self, actions: Any) -> Any:
            return (*map(torch.as_tensor, (found := self.env.step(actions))[:4]), found[4])

    def recorded(wrapper: Callable[[Any], Any]) -> Any:
        path = tmp_path / wrapper.__name__
        envs = SyncVectorEnv([lambda: Steps(*KINDS["box"])] * 2, autoreset_mode=mode)
        with RecordVectorExperience(wrapper(envs), path, **OPTIONS) as env:
            env.reset(seed=0)
            for _ in range(20):
                *_, terminated, truncated, _ = env.step(np.full(2, 3))
                ended = np.asarray(terminated | truncated)
                if mode == AutoresetMode.DISABLED and ended.any():
                    env.reset(options={"reset_mask": ended})
        return rlx.open(path)[:].exclude(("next", "info"))

    assert (recorded(Tensors) == recorded(VectorWrapper)).all()


def test_errors_in_environments_of_gymnasium_are_of_the_recorder(tmp_path: Path) -> None:
    class Wrong(Steps):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:2], 0.5, False, {})

    envs = SyncVectorEnv([lambda: Wrong(*KINDS["box"])])
    with RecordVectorExperience(envs, tmp_path / "wrong") as env:
        env.reset(seed=0)
        with pytest.raises(CollectError, match=r"gave terminated 0.5, .*, in step 1 of environment 0"):
            env.step(np.zeros(1, int))
