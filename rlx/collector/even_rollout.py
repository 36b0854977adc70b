"""As many steps of every environment, also where some need a step to be reset; what was made ahead is kept."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.policy import Policy
from rlx.collector.rollout import Rollout, Steps


class EvenRollout:
    """A rollout whose environments all get to the end of a batch.

    Of vector environments in autoreset mode NEXT_STEP, those whose episodes end more often make fewer steps. The others
    go on meanwhile, and the steps that they make behind the batch's end are the first of their next batch.

    Args:
        rollout: what is stepped.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._ahead: Steps | None = None

    def restart(self, seeds: Sequence[int]) -> None:
        """Gives up all running episodes and begins new ones."""
        self._ahead = None
        self._rollout.restart(seeds)

    def run(
        self,
        policy: Policy,
        version: int,
        length: int,
        into: Steps | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Steps:
        """So many steps of every environment, or less if it is told to stop.

        Args:
            policy: what chooses the actions of steps that are yet to be made.
            version: of the policy.
            length: T, at least 1.
            into: what is returned, with other steps in it; where not given, new arrays.
            should_stop: asked before every step whether to leave it at what there is.

        Raises:
            CollectError: the environment failed, or the policy's actions do not fit.
        """
        made = self._ahead
        if made is None:
            made = self._run(policy, version, length, into, should_stop)
            if made.counts.min() == length or (should_stop is not None and should_stop()):
                return made
        while (least := int(made.counts.min())) < length and not (should_stop is not None and should_stop()):
            made = _joined(made, self._run(policy, version, length - least, None, should_stop))
        batch = _empty(made, length) if into is None else into
        ahead = _empty(made, max(0, int(made.counts.max()) - length))
        _copy(made, batch, 0)
        _copy(made, ahead, length)
        self._ahead = ahead if ahead.counts.any() else None
        return batch

    def _run(
        self,
        policy: Policy,
        version: int,
        length: int,
        into: Steps | None,
        should_stop: Callable[[], bool] | None,
    ) -> Steps:
        """Some more steps, not the same number of all."""
        steps = self._rollout.run(policy, length, into, should_stop)
        steps.version[...] = version
        return steps


def _joined(first: Steps, second: Steps) -> Steps:
    """The steps of every environment, one behind the other."""
    joined = _empty(first, int((first.counts + second.counts).max()))
    joined.counts[:] = first.counts + second.counts
    joined.final.update(first.final)
    joined.final.update({(env, at + int(first.counts[env])): row for (env, at), row in second.final.items()})
    columns = zip(_columns(joined), _columns(first), _columns(second), strict=True)
    for number, (target, rows, more) in enumerate(columns):
        # The second part's first observation is the one behind the first part's last step.
        extra = number < len(first.observation)
        for env, (now, count) in enumerate(zip(first.counts, second.counts, strict=True)):
            target[env, :now] = rows[env, :now]
            target[env, now : now + count + extra] = more[env, : count + extra]
    return joined


def _copy(steps: Steps, into: Steps, start: int) -> None:
    """Copies the steps from a time on, as many as there is room for."""
    length = into.reward.shape[1]
    into.counts[:] = np.clip(steps.counts - start, 0, length)
    into.final.update(
        {(env, at - start): row for (env, at), row in steps.final.items() if start <= at < start + length}
    )
    for target, rows in zip(_columns(into), _columns(steps), strict=True):
        found = rows[:, start : start + target.shape[1]]
        target[:, : found.shape[1]] = found


def _columns(steps: Steps) -> list[NDArray[Any]]:
    """All arrays, those of observations first."""
    rest = (steps.reward, steps.terminated, steps.truncated, steps.version)
    return [*steps.observation.values(), *steps.action.values(), *rest]


def _empty(steps: Steps, length: int) -> Steps:
    """Room for so many steps like these."""
    *columns, reward, terminated, truncated, version = (
        np.zeros((len(rows), length + (number < len(steps.observation)), *rows.shape[2:]), rows.dtype)
        for number, rows in enumerate(_columns(steps))
    )
    count = len(steps.observation)
    return Steps(
        dict(zip(steps.observation, columns[:count], strict=True)),
        dict(zip(steps.action, columns[count:], strict=True)),
        reward,
        terminated,
        truncated,
        {},
        np.zeros(len(reward), np.int64),
        version,
    )
