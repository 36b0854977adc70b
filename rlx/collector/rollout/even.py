"""Equal numbers of steps of every environment, also where some need a step for a reset; steps made ahead are kept."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.collector.environment.space import Arrays
from rlx.collector.policy.protocol import Policy
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.policy_outputs import column
from rlx.collector.rollout.steps import Steps


class EvenRollout:
    """A rollout whose environments all get to the end of a batch.

    Of vector environments in autoreset mode NEXT_STEP, those whose episodes end more often make fewer steps. The others
    continue meanwhile, and their steps after the batch's end are the first of their next batch.

    Args:
        rollout: the rollout to step.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._ahead: Steps | None = None

    def restart(self, seeds: Sequence[int]) -> None:
        """Give up all running episodes and begin new ones."""
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
        """Return ``length`` steps of every environment, or fewer if it is stopped.

        Args:
            policy: what chooses the actions of steps that are yet to be made.
            version: of the policy.
            length: T, at least 1.
            into: the result to reuse for other steps; new arrays by default.
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
        """Return some more steps, not the same number of all."""
        steps = self._rollout.run(policy, length, into, should_stop)
        steps.version[...] = version
        return steps


def _joined(first: Steps, second: Steps) -> Steps:
    """Return the steps of every environment, concatenated."""
    joined = _empty(first, int((first.counts + second.counts).max()))
    joined.counts[:] = first.counts + second.counts
    joined.final.update(first.final)
    joined.final.update({(env, at + int(first.counts[env])): row for (env, at), row in second.final.items()})
    for extra, target, columns, more in _tables(joined, first, second):
        for name, rows in columns.items():
            for env, now in enumerate(first.counts):
                target[name][env, :now] = rows[env, :now]
        for name, rows in more.items():
            to = column(target, name, rows[:, 0], joined.length + extra)
            for env, (now, count) in enumerate(zip(first.counts, second.counts, strict=True)):
                # The second part's first observation follows the first part's last step.
                to[env, now : now + count + extra] = rows[env, : count + extra]
    return joined


def _copy(steps: Steps, into: Steps, start: int) -> None:
    """Copy the steps from a time on, as many as there is room for."""
    into.counts[:] = np.clip(steps.counts - start, 0, into.length)
    into.final.update(
        {(env, at - start): row for (env, at), row in steps.final.items() if start <= at < start + into.length}
    )
    for extra, target, columns in _tables(into, steps):
        for name, rows in columns.items():
            found = rows[:, start : start + into.length + extra]
            column(target, name, rows[:, 0], into.length + extra)[:, : found.shape[1]] = found


def _tables(*steps: Steps) -> Iterator[tuple[Any, ...]]:
    """Yield the named arrays of some Steps side by side, each with the rows that they have more than steps."""
    yield (1, *(one.observation for one in steps))
    yield (0, *(one.step for one in steps))
    yield (0, *(one.next for one in steps))
    yield (0, *({"version": one.version} for one in steps))


def _empty(steps: Steps, length: int) -> Steps:
    """Return empty arrays for ``length`` steps like these."""
    return Steps(
        _rooms(steps.observation, length + 1),
        _rooms(steps.step, length),
        _rooms(steps.next, length),
        {},
        np.zeros_like(steps.counts),
        np.zeros((len(steps.counts), length), np.int64),
    )


def _rooms(columns: Arrays, length: int) -> Arrays:
    return {name: np.zeros((len(rows), length, *rows.shape[2:]), rows.dtype) for name, rows in columns.items()}
