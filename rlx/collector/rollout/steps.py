"""The steps that a rollout makes, as arrays by the names of their fields, and the ids of their trajectories."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.space import Arrays


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that n environments made meanwhile: at most T each.

    Args:
        observation: [n, T + 1, ...]: observations and the policy's state. What each action was chosen from and, after
            an environment's last step, what its next action is to be chosen from.
        step: [n, T, ...]: the action, ``is_init`` (whether an episode starts with the step), and what the policy wrote
            beside them.
        next: [n, T, ...]: ``reward``, ``terminated``, ``truncated``, and what the policy wrote under ``next``.
        final: of every episode that ended, by environment and step, its last observation and state.
        counts: [n] steps of each environment; the rows after them mean nothing.
        version: [n, T] int64, number of the policy that chose the action, for whoever counts them.
    """

    observation: Arrays
    step: Arrays
    next: Arrays
    final: dict[tuple[int, int], Arrays]
    counts: NDArray[np.int64]
    version: NDArray[np.int64]

    @property
    def length(self) -> int:
        """T."""
        return int(self.version.shape[1])


NO_TRAJECTORY = -1


class TrajectoryIds:
    """Ids of one worker's trajectories: ``first``, ``first + stride``, ...

    Args:
        num_envs: environments of the worker.
        first: different for every worker.
        stride: number of workers.
    """

    def __init__(self, num_envs: int, first: int = 0, stride: int = 1) -> None:
        self._first = first
        self._stride = stride
        self._running = np.zeros(num_envs, np.int64)
        self._count = 0

    @property
    def next(self) -> int:
        """A number that is larger than all that were given."""
        return self._count * self._stride

    def skip_to(self, number: int) -> None:
        """Give no number below this one from the next ``begin`` on."""
        self._count = -(-number // self._stride)

    def begin(self) -> None:
        """Begin a trajectory in every environment."""
        n = len(self._running)
        self._running = np.arange(self._count, self._count + n)
        self._count += n

    def of(self, steps: Steps) -> NDArray[np.int64]:
        """Return [n, T] ids of the next steps; ``NO_TRAJECTORY`` for missing steps."""
        ids = np.full(steps.version.shape, NO_TRAJECTORY, np.int64)
        starts = np.zeros(len(ids), np.int64)
        for at, env in sorted((at, env) for env, at in steps.final):
            ids[env, starts[env] : at + 1] = self._number(env)
            starts[env] = at + 1
            self._running[env], self._count = self._count, self._count + 1
        for env, start in enumerate(starts):
            ids[env, start : steps.counts[env]] = self._number(env)
        return ids

    def _number(self, env: int) -> int:
        return int(self._running[env]) * self._stride + self._first
