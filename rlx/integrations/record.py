"""Wrappers of gymnasium that write every step of a loop into a dataset."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import Autoreset
from numpy.typing import NDArray

from rlx.collector.environment.autoreset import AutoresetMode
from rlx.collector.environment.gym_env import environment_name
from rlx.collector.environment.intake import Intake
from rlx.collector.environment.vector import VectorEnvironment
from rlx.collector.recorder import Recorder

Keys = Collection[str | tuple[str, ...]] | Literal["all"]


class RecordExperience(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper of an environment that writes every step into a dataset that ``rlx.open`` reads.

    Every episode is on the disk when ``step`` returns its end, whatever happens afterwards: an error, a kill, no
    ``close``. An episode that ``reset`` or ``close`` interrupts is flagged truncated and counted as cut. Recording into
    an existing dataset of the same environment appends to it.

    What is recorded is copied before the environment or the loop runs again, and checked in ``reset`` and ``step``: a
    value that the dtype of its space would change is an error. Rounding to float32, observations outside their space,
    and rewards that are NaN are logged once, and counted in the log when the recorder is closed.

    Args:
        env: the environment. It may be an ``Autoreset``; any other wrapper that resets in ``step`` must be outside
            the recorder.
        path: the dataset's directory.
        shard_steps: steps per shard; with ``max_steps``, at most a tenth of it.
        max_steps: the dataset never holds more steps: before another episode is added, the oldest shards are dropped,
            with all of their episodes.
        reward_dtype: ``float32`` or ``float64``; by default that of the dataset, float32 if it is new.
        info_keys: entries of ``info`` to keep, as for ``Collector``; or "all" that appear in the first episode.
        id: name of the dataset; that of the environment by default.

    Raises:
        CollectError: a space cannot be stored as arrays of fixed shape.
        OptionError: reward_dtype is unknown, or shard_steps or max_steps is below 1.
        DatasetExistsError: path holds another dataset, or something else.
        DatasetLockedError: another process, or another recorder, is writing it.

    Example:
        >>> import gymnasium
        >>> from rlx.integrations.record import RecordExperience
        >>> with RecordExperience(gymnasium.make("CartPole-v1"), "recorded") as env:
        ...     _ = env.reset(seed=0)
        ...     for step in range(30):
        ...         env.record(action_log_prob=-0.69)
        ...         *_, terminated, truncated, _ = env.step(step % 2)
        ...         if terminated or truncated:
        ...             _ = env.reset()
        >>> rlx.open("recorded")[:]["action_log_prob"].shape
        torch.Size([30])
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        path: str | os.PathLike[str],
        *,
        shard_steps: int = 100_000,
        max_steps: int | None = None,
        reward_dtype: str | None = None,
        info_keys: Keys = (),
        id: str | None = None,
    ) -> None:
        super().__init__(env)
        self._recorder = Recorder(
            *(env, env.observation_space, env.action_space, None, path, Intake(environment_name(env), env)),
            shard_steps=shard_steps,
            max_steps=max_steps,
            reward_dtype=reward_dtype,
            info_keys=info_keys,
            id=id,
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Raises:
            CollectError: the observation does not fit its space.
        """
        observation, info = super().reset(seed=seed, options=options)
        self._recorder.begin(observation)
        return observation, info

    def record(self, **outputs: Any) -> None:
        """Record outputs of the policy with the next step: log-probs, values, or logits.

        They are fields beside ``action``, with the names that they have in batches of a collector:
        ``action_log_prob``, ``state_value``. Every step has the same ones.

        Args:
            outputs: numbers, texts, arrays or tensors by name, and mappings of them; a second call replaces those of
                the same names.

        Raises:
            CollectError: an output is no array.
        """
        self._recorder.record(outputs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and record it.

        Raises:
            CollectError: the step belongs to no episode: ``reset`` is missing, or it comes after ``close``; or an
                action, an output, an observation or a reward does not fit.
        """
        begins = isinstance(self.env, Autoreset) and self.env.autoreset
        resets = np.ones(1, bool) if begins else None
        self._recorder.act(action, resets)
        found = super().step(action)
        self._recorder.step(*found, resets=resets)
        return found

    def close(self) -> None:
        """Write the rest, and close the environment."""
        try:
            self._recorder.close()
        finally:
            super().close()


class RecordVectorExperience(VectorWrapper):
    """``RecordExperience`` for a vector environment of gymnasium, in any autoreset mode.

    Args:
        env: the environment.
        path, shard_steps, max_steps, reward_dtype, info_keys, id: see ``RecordExperience``.
        autoreset: autoreset mode of an environment that does not declare it in its ``metadata``: ``next-step``,
            ``same-step`` or ``disabled``.

    Raises:
        CollectError, OptionError, DatasetExistsError, DatasetLockedError: as ``RecordExperience``.

    Example:
        >>> import gymnasium
        >>> from rlx.integrations.record import RecordVectorExperience
        >>> with RecordVectorExperience(gymnasium.make_vec("CartPole-v1", 2), "both", info_keys="all") as envs:
        ...     _ = envs.reset(seed=0)
        ...     for step in range(30):
        ...         _ = envs.step(envs.action_space.sample())
        >>> len(rlx.open("both")) > 50
        True
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        path: str | os.PathLike[str],
        *,
        shard_steps: int = 100_000,
        max_steps: int | None = None,
        reward_dtype: str | None = None,
        info_keys: Keys = (),
        autoreset: str | None = None,
        id: str | None = None,
    ) -> None:
        super().__init__(env)
        # For how to read it: the wrapper steps it.
        self._environment = VectorEnvironment(env, environment_name(env))
        if autoreset is not None:
            self._environment.declare(autoreset)
        self._ended = np.zeros(env.num_envs, bool)
        self._recorder = Recorder(
            *(env, env.single_observation_space, env.single_action_space, env.num_envs, path, self._environment.intake),
            shard_steps=shard_steps,
            max_steps=max_steps,
            reward_dtype=reward_dtype,
            info_keys=info_keys,
            id=id,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; the seed is a number, or one per environment.

        Raises:
            CollectError: an observation does not fit its space.
        """
        # Before the reset, which takes the mask out of the options.
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs)), bool)
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorder.begin(observation, mask)
        self._ended &= ~mask
        return observation, info

    def record(self, **outputs: Any) -> None:
        """Record outputs [n, ...] of the policy with the next step; see ``RecordExperience.record``."""
        self._recorder.record(outputs)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in every environment, and record it.

        Raises:
            CollectError: as ``RecordExperience.step``; or the environment contradicts its autoreset mode.
        """
        resets = self._ended if self._environment.mode == AutoresetMode.NEXT_STEP else None
        self._environment.steps += 1
        self._recorder.act(actions, resets)
        found = self.env.step(actions)
        self._ended = self._recorder.step(*found, resets=resets, ends=self._ends)
        return found

    def close(self, **options: Any) -> None:
        """Write the rest, and close the environment."""
        try:
            self._recorder.close()
        finally:
            super().close(**options)

    def _ends(self, observation: Any, info: Any, ended: NDArray[np.bool_]) -> tuple[Mapping[int, Any], Collection[str]]:
        finals = self._environment.ends(observation, info, ended)
        if self._environment.mode != AutoresetMode.SAME_STEP:
            return {}, ()
        return finals, self._environment.of_reset(info)
