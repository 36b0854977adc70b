"""gymnasium's environments side by side, one after the other or each in a process, with what they give taken over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from rlx.collector.environment.autoreset import SAME_STEP, AutoresetMode
from rlx.collector.environment.intake import RESETS, SCALARS, STEPS, At, Intake, copied
from rlx.collector.environment.space import Space, leaves
from rlx.traces import definition

# An entry of ``info``: the remarks of an environment in another process.
REMARKS = "rlx_remarks"
FINAL_OBS = ("final_obs", "final_observation")
MakeEnv = Callable[[], Any]
_RESULTS = 5  # of a step


class Lane(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of several, whose values are copied and checked when it gives them.

    Args:
        number: of the environment.
        intake: takes its values over.
        sends: whether the remarks of the intake, which is in another process, are sent in ``info``.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], number: int, intake: Intake, *, sends: bool = False) -> None:
        super().__init__(env)
        self._number = number
        self._intake = intake
        self._take = intake.taker(env.observation_space, "observation")
        self._plain = plain_of(env.observation_space)
        self._sends = sends
        self._steps = 0

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """The environment's own: this is no wrapper that a user has chosen."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return gymnasium's two results."""
        observation, info = reset_results(self.env.reset(seed=seed, options=options), self.env)
        return self._take(observation, At(0, self._number)), self._said(info) if self._sends else info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Return gymnasium's five results."""
        observation, reward, terminated, truncated, info = step_results(self.env.step(action), self.env)
        self._steps += 1
        if not (isinstance(reward, float) and type(terminated) is type(truncated) is bool):
            at = At(self._steps, self._number)
            reward, terminated, truncated = self._intake.outcome(reward, terminated, truncated, at)
        if terminated or truncated:
            info = copied(info)  # a reset may write into it
        dtype, shape = self._plain
        if type(observation) is np.ndarray and observation.dtype == dtype and observation.shape == shape:
            observation = observation.copy()
        else:
            observation = self._take(observation, At(self._steps, self._number))
        return observation, reward, terminated, truncated, self._said(info) if self._sends else info

    def _said(self, info: dict[str, Any]) -> dict[str, Any]:
        if not self._intake.remarks:
            return info
        return {**info, REMARKS: tuple(self._intake.drain().items())}


def plain_of(space: Space) -> tuple[Any, Any]:
    """Return dtype and shape of observations that are one array; None of others."""
    return (space.dtype, space.shape) if isinstance(space, spaces.Box) else (None, None)


def reset_results(results: Any, env: Any, *, of_several: bool = False) -> tuple[Any, Any]:
    """Return observation and info of a reset; raise TypeError if they are something else, such as old gym's.

    Args:
        results: as the environment returned them.
        env: the environment, for the message.
        of_several: whether it is a vector environment, whose info may be a list.
    """
    kinds = (Mapping, list, tuple, np.ndarray) if of_several else Mapping
    if isinstance(results, tuple) and len(results) == 2 and isinstance(results[1], kinds):
        return results
    raise TypeError(
        f"reset returned {_kind(results)}, expected (observation, info): "
        "without info it is the API of old gym; convert the environment, for example by the package shimmy"
        + definition(env, *RESETS)
    )


def step_results(results: Any, env: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the five results of a step; raise TypeError, which names where the environment's ``step`` is, if they are
    something else, such as old gym's four.
    """
    if isinstance(results, tuple | list) and len(results) == _RESULTS:
        return tuple(results)
    old = ""
    if isinstance(results, tuple) and len(results) == _RESULTS - 1:
        old = ": four are the API of old gym, whose done does not tell termination from truncation; convert the "
        old += "environment, for example by the package shimmy"
    expected = f"expected (observation, reward, terminated, truncated, info){old}"
    raise TypeError(f"step returned {_kind(results)}, {expected}{definition(env, *STEPS)}")


def _kind(results: Any) -> str:
    return f"{len(results)} values" if isinstance(results, tuple) else f"a {type(results).__name__}"


def in_lanes(envs: Sequence[gymnasium.Env[Any, Any]], intake: Intake) -> list[Lane]:
    """Return the environments of this process, each with an intake that they share."""
    return [Lane(env, number, intake) for number, env in enumerate(envs)]


def made_in_lane(make: MakeEnv, number: int, name: str) -> Any:
    """Return the environment that a function makes, in the process that calls it."""
    env = make()
    return Lane(env, number, Intake(name, env), sends=True) if isinstance(env, gymnasium.Env) else env


def add_info(infos: dict[str, Any], info: Mapping[Any, Any], env: int, num_envs: int) -> None:
    """Add the info of an environment to those of several, which are as gymnasium has them, but with each value as it
    was given, in arrays of objects: the dtype of one need not hold the others.
    """
    for key, value in info.items():
        there = infos.get(key)
        is_scalar = isinstance(value, SCALARS)  # asked first, as it is faster
        if (
            not is_scalar
            and isinstance(value, Mapping)
            and key not in FINAL_OBS
            and (there is None or isinstance(there, dict))
        ):
            add_info(infos.setdefault(key, {}), value, env, num_envs)
        else:
            if not isinstance(there, np.ndarray):
                there = infos[key] = np.empty(num_envs, object)
            there[env] = value if is_scalar else copied(value)
        if (mask := infos.get(f"_{key}")) is None:
            mask = infos[f"_{key}"] = np.zeros(num_envs, bool)
        mask[env] = True


class _Infos:
    num_envs: int

    def _add_info(self, vector_infos: dict[str, Any], env_info: Mapping[Any, Any], env_num: int) -> dict[str, Any]:
        add_info(vector_infos, env_info, env_num, self.num_envs)
        return vector_infos


class SerialVectorEnv(_Infos, SyncVectorEnv):
    """gymnasium's environments in turn, reset in the step that ends an episode.

    Observations without texts are copied once in a step; gymnasium's own class copies them three times.
    """

    def __init__(self, makes: Sequence[Any], name: str) -> None:
        super().__init__(makes, **SAME_STEP)
        self.metadata: dict[str, Any] = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.intake = Intake(name, self)
        self._bare = list(self.envs)
        self.envs: Any = in_lanes(self.envs, self.intake)
        space = self.single_observation_space
        self._take = self.intake.taker(space, "observation")
        self._has_text = any(isinstance(leaf, spaces.Text) for leaf in leaves(space, "observation").values())
        self._plain = plain_of(space)
        self._latest: Any = None  # observations of the last step or reset
        self._steps = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Return gymnasium's two results."""
        n = self.num_envs
        mask = None if options is None else options.pop("reset_mask", None)
        if mask is None:
            self._env_obs: list[Any] = [None] * n
        else:
            self._env_obs = list(iterate(self.observation_space, self._latest))  # of those that are not reset
        infos: dict[str, Any] = {}
        seeds = [None] * n if seed is None else range(seed, seed + n) if isinstance(seed, int) else seed
        for number, (env, own) in enumerate(zip(self.envs, seeds, strict=True)):
            if mask is None or mask[number]:
                self._env_obs[number], info = env.reset(seed=own, options=options)
                infos = self._add_info(infos, info, number)
        empty: Any = create_empty_array(self.single_observation_space, n, np.empty)
        self._latest = concatenate(self.single_observation_space, self._env_obs, empty)
        return self._latest, infos

    def step(self, actions: Any) -> Any:
        """Return gymnasium's five results."""
        if type(actions) is not np.ndarray:
            actions = iterate(self.action_space, actions)
        self._steps += 1
        n, (dtype, shape) = self.num_envs, self._plain
        observations: Any = [None] * n if self._has_text else self._take.empty(n)
        rewards, terminated, truncated = np.empty(n), np.zeros(n, bool), np.zeros(n, bool)
        infos: dict[str, Any] = {}
        for number, (env, action) in enumerate(zip(self._bare, actions, strict=True)):
            results = env.step(action)
            if type(results) is not tuple or len(results) != _RESULTS:
                results = step_results(results, env)
            observation, reward, is_terminated, is_truncated, info = results
            if not (isinstance(reward, float) and type(is_terminated) is type(is_truncated) is bool):
                at = At(self._steps, number)
                reward, is_terminated, is_truncated = self.intake.outcome(reward, is_terminated, is_truncated, at)
            rewards[number] = reward
            if is_terminated or is_truncated:
                terminated[number], truncated[number] = is_terminated, is_truncated
                final = self._take(observation, At(self._steps, number))
                infos = self._add_info(infos, {"final_obs": final, "final_info": info}, number)
                observation, info = reset_results(env.reset(), env)
            if info:
                infos = self._add_info(infos, info, number)
            if type(observation) is np.ndarray and observation.dtype == dtype and observation.shape == shape:
                observations[number] = observation
            elif self._has_text:
                observations[number] = self._take(observation, At(self._steps, number))
            else:
                self._take.put(observation, observations, number, self._steps)
        if self._has_text:
            space = self.single_observation_space
            empty: Any = create_empty_array(space, n, np.empty)
            observations = concatenate(space, observations, empty)
        self._latest = observations
        return observations, rewards, terminated, truncated, infos


class ParallelVectorEnv(_Infos, AsyncVectorEnv):
    """gymnasium's environments, each in a process, reset in the step that ends an episode; gymnasium 1.0 resets them in
    the next one."""

    def __init__(self, makes: Sequence[MakeEnv], name: str, start_method: str) -> None:
        lanes = [partial(made_in_lane, make, number, name) for number, make in enumerate(makes)]
        super().__init__(lanes, context=start_method, **SAME_STEP)
