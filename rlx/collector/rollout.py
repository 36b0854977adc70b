"""The loop: a policy chooses, environments step, and what happened is written into arrays; it runs anywhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment import Environment
from rlx.collector.policy import ActionCheck, Policy
from rlx.collector.space import Arrays, flatten, leaves
from rlx.errors import CollectError, RlxError


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that n environments made meanwhile: at most T each.

    Args:
        observation: [n, T + 1, ...] by name of the field: what each action was chosen from, and behind an environment's
            last step what its next action is to be chosen from.
        action: [n, T, ...] by name of the field.
        reward: [n, T] float32.
        terminated: [n, T] bool.
        truncated: [n, T] bool.
        final: of every episode that ended, by environment and step, its last observation, by name of the field.
        counts: [n] steps of each environment; the rows behind them mean nothing.
        version: [n, T] int64, number of the policy that chose the action, for whoever counts them.
    """

    observation: Arrays
    action: Arrays
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final: dict[tuple[int, int], Arrays]
    counts: NDArray[np.int64]
    version: NDArray[np.int64]


class Rollout:
    """Steps an environment, batch after batch; episodes go on from one batch to the next.

    Args:
        environment: what is stepped.
        seeds: one an environment.
        max_episode_steps: where an episode is truncated, if it lasts so long.

    Raises:
        CollectError: the environment failed, or gave what does not fit its space.
    """

    def __init__(self, environment: Environment, seeds: Sequence[int], max_episode_steps: int | None = None) -> None:
        self._environment = environment
        self._observation_leaves = leaves(environment.observation_space, "observation")
        self._action_leaves = leaves(environment.action_space, "action")
        self._fit_actions = ActionCheck(environment.action_space, environment.num_envs)
        self._max_episode_steps = max_episode_steps
        self._age = np.zeros(environment.num_envs, np.int64)
        self._observation: Any = environment.reset(seeds)
        self._now = self._flat(self._observation, environment.num_envs)

    def restart(self, seeds: Sequence[int]) -> None:
        """Gives up all running episodes and begins new ones."""
        self._observation = self._environment.reset(seeds)
        self._now = self._flat(self._observation, self._environment.num_envs)
        self._age[:] = 0

    def run(
        self,
        policy: Policy,
        length: int,
        into: Steps | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Steps:
        """Steps until an environment has made so many steps: all of them, if no reset takes the place of a step.

        Args:
            policy: what chooses the actions.
            length: T, at least 1.
            into: what is returned, with other steps in it; where not given, new arrays.
            should_stop: asked before every step whether to leave it at what there is.

        Raises:
            CollectError: the environment failed, or the policy's actions do not fit.
        """
        n = self._environment.num_envs
        steps = self._allocated(n, length) if into is None else into
        every, at, final = np.arange(n), steps.counts, steps.final
        for name, rows in steps.observation.items():
            rows[:, 0] = self._now[name]
        while at.max() < length and not (should_stop is not None and should_stop()):
            actions, flat_actions = self._fit_actions(_asked(policy, self._observation))
            outcome = self._environment.step(actions)
            truncated = self._limited(outcome.recorded, outcome.truncated)
            rows = every if outcome.recorded is None else np.flatnonzero(outcome.recorded)
            where = (rows, at[rows])
            for name, array in flat_actions.items():
                steps.action[name][where] = array[rows]
            steps.reward[where] = outcome.reward[rows]
            steps.terminated[where] = outcome.terminated[rows]
            steps.truncated[where] = truncated[rows]
            for env, observation in outcome.final_observation.items():
                final[env, int(at[env])] = self._flat(observation, None)
            self._observation, self._now = outcome.observation, self._flat(outcome.observation, n)
            self._reset_limited(truncated & ~outcome.truncated & ~outcome.terminated, final, at)
            at[rows] += 1
            for name, array in self._now.items():
                steps.observation[name][every, at] = array
            self._age[rows] += 1
            self._age[outcome.terminated | truncated] = 0
        return steps

    def _allocated(self, n: int, length: int) -> Steps:
        return Steps(
            {name: _empty(leaf, n, length + 1) for name, leaf in self._observation_leaves.items()},
            {name: _empty(leaf, n, length) for name, leaf in self._action_leaves.items()},
            np.empty((n, length), np.float32),
            np.zeros((n, length), bool),
            np.zeros((n, length), bool),
            {},
            np.zeros(n, np.int64),
            np.zeros((n, length), np.int64),
        )

    def _limited(self, recorded: NDArray[np.bool_] | None, truncated: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Truncations, with those of episodes that have lasted long enough."""
        if self._max_episode_steps is None:
            return truncated
        is_long = self._age + 1 >= self._max_episode_steps
        return truncated | (is_long if recorded is None else is_long & recorded)

    def _reset_limited(
        self, cut: NDArray[np.bool_], final: dict[tuple[int, int], Arrays], at: NDArray[np.int64]
    ) -> None:
        """Begins new episodes where one was cut that the environment would go on with."""
        if not cut.any():
            return
        for env in np.flatnonzero(cut).tolist():
            final[env, int(at[env])] = {name: array[env].copy() for name, array in self._now.items()}
        self._observation = self._environment.reset_some(cut)
        self._now = self._flat(self._observation, self._environment.num_envs)

    def _flat(self, observation: Any, n: int | None) -> Arrays:
        """The arrays of an observation, or of a batch of n, if they fit the space."""
        flat = flatten(self._environment.observation_space, "observation", observation)
        for name, leaf in self._observation_leaves.items():
            shape = (*(() if n is None else (n,)), *(leaf.shape or ()))
            if flat[name].shape != shape or not np.can_cast(flat[name].dtype, np.dtype(leaf.dtype), "same_kind"):
                found = f"{flat[name].dtype}{list(flat[name].shape)}"
                raise CollectError(
                    f"{self._environment.name} gave {name} of {found}, expected {leaf.dtype}{list(shape)}"
                )
        return flat


def _asked(policy: Policy, observation: Any) -> Any:
    try:
        return policy(observation)
    except RlxError:
        raise
    except Exception as exc:  # whatever a stranger's policy raises
        raise CollectError(f"policy failed: {type(exc).__name__}: {exc}") from exc


def _empty(leaf: Any, n: int, rows: int) -> NDArray[Any]:
    return np.empty((n, rows, *(leaf.shape or ())), leaf.dtype)
