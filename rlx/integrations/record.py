"""Wrappers of gymnasium that write every step of a loop into a dataset."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset
from numpy.typing import NDArray

from rlx.collector.dataset_collector import next_numbers
from rlx.collector.environment.gym_env import environment_name
from rlx.collector.environment.space import Space, flatten, schema_of
from rlx.collector.environment.vector import row_of
from rlx.collector.rollout.episodes import REWARDS, Ended, join, rewards_as
from rlx.collector.worker.shard_thread import ShardThread
from rlx.errors import CollectError, OptionError
from rlx.manifest import Manifest
from rlx.store.codec import codec_of
from rlx.store.dataset_writer import claimed, open_writer
from rlx.store.layout import shard_name

Arrays = Mapping[str, NDArray[Any]]


class RecordExperience(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper of an environment that writes every step into a dataset that ``rlx.open`` reads.

    Episodes are written when they end; one that ``reset`` or ``close`` interrupts is flagged truncated and counted as
    cut. Shards are listed when they are full, so a killed process loses at most ``shard_steps`` steps and the running
    episode; a script that ends without ``close``, or with an exception, loses nothing. Recording into an existing
    dataset of the same environment appends to it. Entries of ``info`` are not kept.

    Args:
        env: the environment. It may be an ``Autoreset``; any other wrapper that resets in ``step`` must be outside
            the recorder.
        path: the dataset's directory.
        shard_steps: steps per shard.
        reward_dtype: ``float64``, which keeps rewards as they are, or ``float32``, which rounds them.
        id: name of the dataset; that of the environment by default.

    Raises:
        CollectError: a space cannot be stored as arrays of fixed shape.
        OptionError: reward_dtype is unknown, or shard_steps is below 1.
        DatasetExistsError: path holds another dataset, or something else.
        DatasetLockedError: another process is writing it.

    Example:
        >>> import gymnasium
        >>> from rlx.integrations.record import RecordExperience
        >>> with RecordExperience(gymnasium.make("CartPole-v1"), "recorded") as env:
        ...     _ = env.reset(seed=0)
        ...     for step in range(30):
        ...         *_, terminated, truncated, _ = env.step(step % 2)
        ...         if terminated or truncated:
        ...             _ = env.reset()
        >>> len(rlx.open("recorded"))
        30
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        path: str | os.PathLike[str],
        *,
        shard_steps: int = 100_000,
        reward_dtype: str = "float64",
        id: str | None = None,
    ) -> None:
        super().__init__(env)
        spaces = env.observation_space, env.action_space
        self._recorder = Recorder(Path(path), spaces, 1, id or environment_name(env), shard_steps, reward_dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = super().reset(seed=seed, options=options)
        self._recorder.begin(0, observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and record it.

        Raises:
            CollectError: the step belongs to no episode: ``reset`` is missing, or it comes after ``close``.
        """
        begins = isinstance(self.env, Autoreset) and self.env.autoreset
        observation, reward, terminated, truncated, info = super().step(action)
        if begins:
            self._recorder.begin(0, observation)
            return observation, reward, terminated, truncated, info
        self._recorder.step(0, action, float(reward), bool(terminated), bool(truncated), observation)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Write the rest, and close the environment."""
        self._recorder.close()
        super().close()


class RecordVectorExperience(VectorWrapper):
    """``RecordExperience`` for a vector environment of gymnasium, in any autoreset mode.

    Args:
        env: the environment.
        path, shard_steps, reward_dtype, id: see ``RecordExperience``.

    Raises:
        CollectError, OptionError, DatasetExistsError, DatasetLockedError: as ``RecordExperience``.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        path: str | os.PathLike[str],
        *,
        shard_steps: int = 100_000,
        reward_dtype: str = "float64",
        id: str | None = None,
    ) -> None:
        super().__init__(env)
        spaces = env.single_observation_space, env.single_action_space
        name = id or environment_name(env)
        self._recorder = Recorder(Path(path), spaces, env.num_envs, name, shard_steps, reward_dtype)
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._ended = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; the seed is a number, or one per environment."""
        # Before the reset, which takes the mask out of the options.
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        observation, info = self.env.reset(seed=seed, options=options)
        for env in np.flatnonzero(mask).tolist():
            self._recorder.begin(env, row_of(self.env.single_observation_space, observation, env))
        self._ended[np.asarray(mask, bool)] = False
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in every environment, and record it.

        Raises:
            CollectError: the step of an environment belongs to no episode.
        """
        observation, reward, terminated, truncated, info = self.env.step(actions)
        space, action_space = self.env.single_observation_space, self.env.single_action_space
        is_reset, self._ended = self._ended, terminated | truncated
        for env in range(self.num_envs):
            after = row_of(space, observation, env)
            if self._mode == AutoresetMode.NEXT_STEP and is_reset[env]:
                self._recorder.begin(env, after)
                continue
            final = after
            if self._mode == AutoresetMode.SAME_STEP and self._ended[env]:
                final = _final(space, info["final_obs"], env)
            action, ends = row_of(action_space, actions, env), (bool(terminated[env]), bool(truncated[env]))
            self._recorder.step(env, action, float(reward[env]), *ends, final)
            if self._mode == AutoresetMode.SAME_STEP and self._ended[env]:
                self._recorder.begin(env, after)
        return observation, reward, terminated, truncated, info

    def close(self, **options: Any) -> None:
        """Write the rest, and close the environment."""
        self._recorder.close()
        super().close(**options)


class _Running:
    """An episode so far."""

    def __init__(self, observation: Arrays) -> None:
        self.observations = [observation]
        self.steps: list[tuple[Arrays, tuple[float, bool, bool]]] = []

    def episode(self, reward: str, *, is_cut: bool) -> Ended:
        """Return the episode, its last step flagged truncated if it was cut."""
        actions, ends = zip(*self.steps, strict=True)
        rewards, terminated, truncated = (np.array(column) for column in zip(*ends, strict=True))
        truncated[-1] |= is_cut
        after = {"reward": rewards.astype(reward), "terminated": terminated, "truncated": truncated}
        return Ended(_stacked(self.observations), _stacked(actions), after, np.array([len(rewards)]), is_cut)


def _stacked(rows: Iterable[Arrays]) -> dict[str, NDArray[Any]]:
    listed = list(rows)
    return {name: np.stack([row[name] for row in listed]) for name in listed[0]}


# Recorders that are not closed yet.
_OPEN: set[Recorder] = set()


def _close_all() -> None:
    for recorder in list(_OPEN):
        try:
            recorder.close()
        except Exception:  # the other recorders still have steps to write
            sys.excepthook(*sys.exc_info())


# Not ``atexit``: the interpreter first waits for threads of pools, which wait for steps to write.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)  # a fork has no thread that writes


class Recorder:
    """Writer of the steps of some environments into a dataset; the end of the interpreter closes it.

    Args:
        path: the dataset's directory.
        spaces: spaces of observations and actions of one environment.
        num_envs: number of environments.
        name: name of the dataset.
        shard_steps: steps per shard.
        reward: dtype of rewards, ``float32`` or ``float64``.

    Raises:
        OptionError: reward is neither float32 nor float64, or shard_steps is below 1.
        DatasetExistsError, DatasetLockedError: as ``RecordExperience``.
    """

    def __init__(
        self, path: Path, spaces: tuple[Space, Space], num_envs: int, name: str, shard_steps: int, reward: str
    ) -> None:
        if reward not in REWARDS or shard_steps < 1:
            expected = f"expected {' or '.join(REWARDS)}, and at least 1"
            raise OptionError(f"`reward_dtype` {reward!r}, `shard_steps` {shard_steps}: {expected}")
        self._spaces, self._reward, self._shard_steps = spaces, reward, shard_steps
        schema = schema_of(*spaces)
        fields = {**schema.fields, "reward": replace(schema["reward"], dtype=reward)}
        self._schema = type(schema)(fields)
        made = {"command": "RecordExperience", "rlx": version("rlx"), "parents": []}
        described = Manifest(name, "zarr", codec_of("zarr", None).to_json(), self._schema, lineage=[made])
        self._running: list[_Running | None] = [None] * num_envs
        with ExitStack() as stack:
            self._claim = stack.enter_context(claimed(path))
            self._writer = open_writer(self._claim.place, described)
            self._shards = stack.enter_context(ShardThread(self._writer.format(), self._writer.partial))
            self._stack = stack.pop_all()
        self._next_shard, self._next_episode = next_numbers(self._writer)
        self._in_shard = 0
        self._is_open = True
        _OPEN.add(self)

    def begin(self, env: int, observation: Any) -> None:
        """Begin an episode; the running one, if it has steps, is cut."""
        if not self._is_open:
            return  # a step would be refused
        self._end(env, is_cut=True)
        self._running[env] = _Running(_copied(self._spaces[0], "observation", observation))

    def step(self, env: int, action: Any, reward: float, terminated: bool, truncated: bool, observation: Any) -> None:
        """Record a step, and the episode if it ends it.

        Raises:
            CollectError: no episode runs.
        """
        if not self._is_open:
            raise CollectError("step after close: it cannot be recorded")
        running = self._running[env]
        if running is None:
            raise CollectError(
                "step without reset at the beginning, or after the end of an episode: it cannot be recorded",
                hint="call reset; wrappers that call it, such as Autoreset, must be outside the recorder",
            )
        taken, after = _copied(self._spaces[1], "action", action), _copied(self._spaces[0], "observation", observation)
        running.steps.append((taken, (reward, terminated, truncated)))
        running.observations.append(after)
        if terminated or truncated:
            self._end(env, is_cut=False)

    def _end(self, env: int, *, is_cut: bool) -> None:
        running, self._running[env] = self._running[env], None
        if running is None or not running.steps:
            return
        episode = running.episode(self._reward, is_cut=is_cut)
        dtype, rewards = self._schema["reward"].numpy_dtype, episode.next["reward"]
        episode.next["reward"] = rewards_as(dtype, rewards, rounds=self._reward == "float32")
        self._shards.append(shard_name(self._next_shard), partial(join, [episode], self._schema, self._next_episode))
        self._next_episode += 1
        self._in_shard += episode.steps
        if self._in_shard >= self._shard_steps:
            self._list()

    def _list(self) -> None:
        if self._in_shard:
            self._writer.commit(self._shards.finish(), origin={}, dropped={})
            self._next_shard, self._in_shard = self._next_shard + 1, 0

    def close(self) -> None:
        """Write what is left."""
        if not self._is_open:
            return
        self._is_open = False
        _OPEN.discard(self)
        with self._stack:
            for env in range(len(self._running)):
                self._end(env, is_cut=True)
            self._list()
            self._writer.save()
            self._claim.finish()


def _copied(space: Space, name: str, value: Any) -> Arrays:
    return {key: np.array(array) for key, array in flatten(space, name, value).items()}


def _final(space: Space, final: Any, env: int) -> Any:
    return final[env] if isinstance(final, np.ndarray) else row_of(space, final, env)
