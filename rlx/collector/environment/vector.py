"""The environments of a rollout: gymnasium's vector environments in all autoreset modes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import concatenate, iterate
from numpy.typing import NDArray

from rlx.collector.environment.space import Space
from rlx.engine.local_engine import main_hidden
from rlx.engine.shared_memory import begin_step
from rlx.errors import CollectError, RlxError
from rlx.fork import ThisProcessOnly, on_fork
from rlx.numbers import check_flag, check_real

Seeds = Sequence[int]
# Entries of an environment's ``metadata``: it has threads of its own, and ``reset`` takes gymnasium's "reset_mask".
OWN_THREADS, RESET_MASK = "rlx_own_threads", "rlx_reset_mask"
_left: list[Any] = []
_SPEC = ("id", "max_episode_steps", "kwargs", "additional_wrappers")
# The types of almost all rewards and flags, by which they need no further check.
_NUMBERS, _FLAGS = (float, int, np.number), (bool, np.bool_)
MakeEnv = Callable[[], Any]


class Outcome(NamedTuple):
    """The outcome of one step of n environments.

    Args:
        observation: [n, ...] arrays, or a tree of them like the observation space, for the next action; of the new
            episode where one has ended, unless ``recorded`` is used and its reset is still to come.
        reward: [n] rewards.
        terminated: [n] bool.
        truncated: [n] bool.
        final_observation: the real last observation of every episode that ended, by number of the environment; a tree.
        recorded: [n] bool, False where the environment was only reset; None if all made a step.
        info: entries as in gymnasium's vector environments: arrays [n, ...] by key, ``_KEY`` [n] bool if only some
            lanes have the key, ``final_info`` of episodes that ended and were reset in the same step.
    """

    observation: Any
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_observation: Mapping[int, Any]
    recorded: NDArray[np.bool_] | None = None
    info: Mapping[str, Any] = {}


class VectorEnvironment:
    """n copies of an environment: a ``gymnasium.vector.VectorEnv``, which is closed with this.

    Args:
        name: for messages and manifests: ``ALE/Pong-v5``.
        is_batched: False for one environment without a dimension of n.
        settings: other settings that determine the data, for the manifest.
        as_seeds: converts seeds [n] to the argument of the environment's ``reset``.

    Attributes:
        num_envs: n.
        observation_space: space of one copy.
        action_space: space of one copy.
        spec: gymnasium's spec, if any, for the manifest.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        name: str,
        *,
        is_batched: bool = True,
        settings: Mapping[str, Any] | None = None,
        as_seeds: Callable[[Seeds], Any] = list,
    ) -> None:
        self.name = name
        self.num_envs = int(env.num_envs)
        self.is_batched = is_batched
        self.observation_space: Space = env.single_observation_space
        self.action_space: Space = env.single_action_space
        self.settings: Mapping[str, Any] = dict(settings or {})
        self.spec: Mapping[str, Any] = _spec(env)
        self._env = env
        self._as_seeds = as_seeds
        # The mode of gymnasium's own environments that do not declare one.
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._ended = np.zeros(self.num_envs, bool)
        self._here: ThisProcessOnly | None = None
        self._is_left = False
        if isinstance(env.unwrapped, AsyncVectorEnv) or env.metadata.get(OWN_THREADS):
            self._here = ThisProcessOnly(
                f"{name}, an environment with processes or threads of its own, cannot be used in a forked process",
                hint="create the environment in the process that uses it",
            )
            on_fork(self, VectorEnvironment._leave)

    def reset(self, seeds: Sequence[int]) -> Any:
        """Return [n, ...] first observations of new episodes; each environment starts from its seed.

        Raises:
            CollectError: an environment failed.
        """
        self._ended[:] = False

        def begin() -> Any:
            try:
                return self._env.reset(seed=self._as_seeds(seeds))[0]
            except (gymnasium.error.Error, TypeError, ValueError):
                # Some take one number for all, as their base class does.
                return self._env.reset(seed=seeds[0])[0]

        return self._call("reset", begin)

    def reset_some(self, which: NDArray[np.bool_]) -> Any:
        """Return [n, ...] observations after new episodes were begun in some environments [n], whatever their state.

        Raises:
            CollectError: an environment failed, or can only be reset together with the others.
        """
        # An environment that does not know the mask would reset all.
        is_known = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        knows = is_known or self._env.metadata.get(RESET_MASK) or self._mode != AutoresetMode.NEXT_STEP
        if not knows and not which.all():
            raise CollectError(f"{self.name} cannot cut episodes: it resets environments only together")
        options = {"reset_mask": which.copy()} if knows else None
        observation, _ = self._call("reset", lambda: self._env.reset(options=options))
        self._ended[which] = False
        return observation

    def step(self, actions: Any) -> Outcome:
        """Take a step in every environment; begin a new episode where one ends.

        Environments that NEXT_STEP only resets are not recorded.

        Raises:
            CollectError: an environment failed.
        """
        observation, reward, terminated, truncated, info = self._call("step", self._env.step, actions)
        if self._mode == AutoresetMode.NEXT_STEP:
            # Environments whose episode ended in the step before were only reset.
            recorded, self._ended = ~self._ended, terminated | truncated
            final = self._rows(observation, self._ended)
            return Outcome(observation, reward, terminated, truncated, final, recorded, info)
        ended = terminated | truncated
        if 1 not in ended.tobytes():
            return Outcome(observation, reward, terminated, truncated, {}, None, info)
        if self._mode == AutoresetMode.SAME_STEP:
            final = {env: self._final(info, env) for env in ended.nonzero()[0].tolist()}
        else:
            final = self._rows(observation, ended)
            observation = self.reset_some(ended)
        return Outcome(observation, reward, terminated, truncated, final, None, info)

    def close(self) -> None:
        """End its processes and threads."""
        if not self._is_left:
            self._env.close()

    def _leave(self) -> None:
        """Drop, in a fork, the processes and threads of the parent: ending the environment would wait for them."""
        self._is_left = True
        _left.append(self._env)
        if isinstance(self._env.unwrapped, AsyncVectorEnv):
            self._env.unwrapped.closed = True

    def _final(self, info: Mapping[str, Any], env: int) -> Any:
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise CollectError(
                f"{self.name}: an episode ended without the final_obs that autoreset mode SAME_STEP gives"
            )
        # A row an environment, each a value of the space, or the values themselves stacked.
        return deepcopy(final[env]) if isinstance(final, np.ndarray) else self._row(final, env)

    def _rows(self, tree: Any, which: NDArray[np.bool_]) -> dict[int, Any]:
        """Return copies of the parts of some environments [n], by their numbers."""
        envs = which.nonzero()[0]
        if type(tree) is np.ndarray:
            return dict(zip(envs.tolist(), tree[envs], strict=True))
        return {env: self._row(tree, env) for env in envs.tolist()}

    def _row(self, tree: Any, env: int) -> Any:
        return row_of(self.observation_space, tree, env)

    def _call(self, verb: str, function: Callable[..., Any], *args: Any) -> Any:
        if self._here is not None:
            self._here.check()
        pulse = begin_step()
        try:
            return function(*args)
        except RlxError:
            raise
        except Exception as exc:  # a user's environment may raise anything
            said = f"{type(exc).__name__}: {exc}"
            if self._lost_process(exc):
                self._end_processes()
                said = "the process of an environment ended"
            raise CollectError(f"{self.name} failed in {verb}: {said}") from exc
        finally:
            if pulse is not None:
                pulse.beat()

    def _lost_process(self, exc: Exception) -> bool:
        """Return whether the error means that an environment's process ended without an answer."""
        env = self._env.unwrapped
        if not (isinstance(env, AsyncVectorEnv) and isinstance(exc, EOFError | ConnectionError)):
            return False
        return None not in env.parent_pipes  # gymnasium drops the pipe of an environment that raises an error

    def _end_processes(self) -> None:
        """End all processes; gymnasium's own ``close`` would wait for the answer of one that ended."""
        env: Any = self._env.unwrapped
        env._state = AsyncState.DEFAULT
        env.close(terminate=True)


def row_of(space: Space, tree: Any, env: int) -> Any:
    """Return the value of one environment among those of all."""
    if isinstance(space, spaces.Dict):
        return {key: row_of(part, tree[key], env) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(part, tree[number], env) for number, part in enumerate(space.spaces))
    return np.array(tree[env])


def _spec(env: VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    """Return gymnasium's spec of the environments as JSON; values that JSON lacks, by their ``repr``."""
    single = env.unwrapped
    spec = single.envs[0].spec if isinstance(single, SyncVectorEnv) else env.spec
    found = {} if spec is None else {name: value for name in _SPEC if (value := getattr(spec, name))}
    described: dict[str, Any] = json.loads(json.dumps(found, default=repr))
    return described


class SerialVectorEnv(SyncVectorEnv):
    """gymnasium's environments in turn, reset in the step that ends an episode.

    Observations that are one array are copied once in a step; gymnasium's own class copies them three times.
    """

    def __init__(self, makes: Sequence[MakeEnv]) -> None:
        super().__init__(makes, autoreset_mode=AutoresetMode.SAME_STEP)
        space = self.single_observation_space
        self._plain = (space.dtype, space.shape) if isinstance(space, spaces.Box) else None

    def step(self, actions: Any) -> Any:
        """Return gymnasium's five results."""
        if type(actions) is not np.ndarray:
            actions = iterate(self.action_space, actions)
        n, (dtype, shape) = self.num_envs, self._plain or (None, ())
        observations: Any = np.empty((n, *shape), dtype)
        rewards, terminated, truncated = np.empty(n), np.zeros(n, bool), np.zeros(n, bool)
        infos: dict[str, Any] = {}
        are_plain = self._plain is not None
        for number, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            observation, reward, is_terminated, is_truncated, info = env.step(action)
            if not (
                isinstance(reward, _NUMBERS) and isinstance(is_terminated, _FLAGS) and isinstance(is_truncated, _FLAGS)
            ):
                _check_outcome(reward, is_terminated, is_truncated)
            rewards[number] = reward
            if is_terminated or is_truncated:
                terminated[number], truncated[number] = is_terminated, is_truncated
                infos = self._add_info(infos, {"final_obs": observation, "final_info": info}, number)
                observation, info = env.reset()
            if info:
                infos = self._add_info(infos, info, number)
            self._env_obs[number] = observation
            if (
                are_plain
                and type(observation) is np.ndarray
                and observation.dtype == dtype
                and observation.shape == shape
            ):
                observations[number] = observation
            else:
                are_plain = False
        if not are_plain:
            observations = deepcopy(concatenate(self.single_observation_space, self._env_obs, self._observations))
        return observations, rewards, terminated, truncated, infos

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if "final_obs" in env_info:  # before the reset, which may write into the same array
            env_info = {**env_info, "final_obs": deepcopy(env_info["final_obs"])}
        return super()._add_info(vector_infos, env_info, env_num)


def _check_outcome(reward: Any, terminated: Any, truncated: Any) -> None:
    """Raise TypeError if numpy would store another value without an error: None as NaN or False."""
    check_real("reward", reward, error=TypeError)
    check_flag("terminated", terminated, error=TypeError)
    check_flag("truncated", truncated, error=TypeError)


class _CopiedEnd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks outcomes, and copies the last observation of an episode, into whose array a reset may write."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        _check_outcome(reward, terminated, truncated)
        return deepcopy(observation) if terminated or truncated else observation, reward, terminated, truncated, info


def _copied_end(make: MakeEnv) -> Any:
    env = make()
    return _CopiedEnd(env) if isinstance(env, gymnasium.Env) else env


def serial(makes: Sequence[MakeEnv], name: str, *, is_batched: bool) -> VectorEnvironment:
    """Return the environments of all functions, stepped one after the other."""
    env = _vector(name, lambda: SerialVectorEnv(makes))
    return VectorEnvironment(env, name, is_batched=is_batched)


def parallel(makes: Sequence[MakeEnv], name: str, start_method: str) -> VectorEnvironment:
    """Return the environments of all functions, each in its own process, with observations in shared memory."""
    makes = [partial(_copied_end, make) for make in makes]
    with main_hidden():
        env = _vector(name, lambda: AsyncVectorEnv(makes, context=start_method, autoreset_mode=AutoresetMode.SAME_STEP))
    return VectorEnvironment(env, name)


def _vector(name: str, make: Callable[[], VectorEnv[Any, Any, Any]]) -> VectorEnv[Any, Any, Any]:
    try:
        return make()
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # a user's environment may raise anything
        raise CollectError(f"environment {name} cannot be made: {type(exc).__name__}: {exc}") from exc
