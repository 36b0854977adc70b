"""The steps that a rollout makes, as arrays by the names of their fields."""

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
