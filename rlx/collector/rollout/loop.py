"""The loop of policy and environment, and rollouts with as many steps of every environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.intake import CHOOSES, ActionCheck, At, Inspection, Intake, cast, copied
from rlx.collector.environment.space import Arrays, dtype_of, flatten, leaves
from rlx.collector.environment.vector import Outcome, VectorEnvironment
from rlx.collector.policy.protocol import Choice, Policy, Situation
from rlx.collector.rollout.infos import PREFIX, Infos, fill_of
from rlx.collector.rollout.steps import IS_INIT, Steps, Where, Written, column
from rlx.errors import CollectError, RlxError
from rlx.traces import definition, in_words

_ALL = slice(None)
Finals = dict[tuple[int, int], Arrays]


class Rollout:
    """Rollout of an environment in batches; episodes, and the policy's state, continue from one batch to the next.

    Args:
        drop: outputs of the policy to leave out; of nested ones, or of all below a name.
        infos: entries of ``info`` to keep; none by default.
        fails_late: whether the steps before a failure are returned; the next call of ``run`` then raises the error.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        seeds: Sequence[int],
        max_episode_steps: int | None = None,
        drop: Sequence[str] = (),
        infos: Infos | None = None,
        reward: str = "float32",
        *,
        fails_late: bool = False,
    ) -> None:
        self._environment = environment
        self._fails_late = fails_late
        self._observation_leaves = leaves(environment.observation_space, "observation")
        self._action_leaves = leaves(environment.action_space, "action")
        self._is_plain = list(self._observation_leaves) == ["observation"]
        self._inspect = Inspection(environment.intake, environment.observation_space)
        self._chooser = Intake("policy", is_policy=True)
        self._fit_actions = ActionCheck(environment.action_space, environment.num_envs, self._chooser)
        self._max_episode_steps = max_episode_steps
        taken = {*self._observation_leaves, *self._action_leaves}
        self._written = Written(environment.num_envs, taken, drop, self._chooser)
        self._infos = infos
        self._reward = reward
        self.restart(seeds)

    def restart(self, seeds: Sequence[int]) -> None:
        """Give up all running episodes and begin new ones."""
        n = self._environment.num_envs
        self._failure: CollectError | None = None
        self._observation: Any = self._environment.reset(seeds)
        self._now = self._flat(self._observation)
        self._is_new = True
        self._is_init: NDArray[np.bool_] = np.ones(n, bool)
        self._age = np.zeros(n, np.int64)  # counted where a limit asks for it
        self._initial: Arrays = {}
        self._state: Arrays = {}
        self._ends: Finals = {}

    @property
    def has_ended(self) -> bool:
        """Whether an episode has ended since ``run`` was called."""
        return bool(self._ends)

    @property
    def can_pause(self) -> bool:
        """Whether ``run`` may end early, as calling it again asks a policy for no state."""
        return not self._initial

    def run(
        self,
        policy: Policy,
        length: int,
        into: Steps | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Steps:
        """Return steps until one environment has ``length`` of them; others have fewer if resets take steps.

        Args:
            length: T, at least 1.
            into: earlier result whose arrays are reused; new arrays by default. Missing arrays are added.
            should_stop: called before every step; True ends the rollout.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        n, self._chooser.source = self._environment.num_envs, policy
        steps = self._allocated(n, length) if into is None else into
        self._ends = steps.final
        for flags in (steps.step[IS_INIT], steps.next["terminated"], steps.next["truncated"]):
            flags[...] = False  # set only in the few steps where an episode begins or ends
        if getattr(policy, "draw", None) is None:
            self._refresh_initial(policy)
        now: Where = (np.arange(n), steps.counts)
        for name, array in self._now.items():
            column(steps.observation, name, array, length + 1)[now] = array
        rewards = steps.next["reward"]
        if rewards.dtype != np.float64:  # rounded, and checked, all at once
            steps.next["reward"] = np.zeros((n, length))
        first_step = self._environment.steps + 1
        try:
            while steps.counts.max() < length and not self._advance(policy, steps, should_stop):
                pass
        except CollectError as exc:
            if not (self._fails_late and steps.counts.any()):
                raise
            self._failure = exc
        self._put_state(steps, now)
        if self._infos is not None:
            self._infos.settle(steps, self._environment.intake, self._environment.steps)
        exact = steps.next["reward"]
        if exact is not rewards:
            with np.errstate(over="ignore"):
                rewards[...] = exact
            steps.next["reward"] = rewards
        self._remark(steps, exact, first_step)
        return steps

    def _advance(self, policy: Policy, steps: Steps, should_stop: Callable[[], bool] | None) -> bool:
        """Take steps until their rows are used up; return whether ``should_stop`` ended it.

        If all environments have made the same number of steps, rows are written by a slice, several times as fast; also
        those of environments that are only reset, which are removed at the end.
        """
        n, length = self._environment.num_envs, steps.length
        every, at, final = np.arange(n), steps.counts, steps.final
        is_init, reward = steps.step[IS_INIT], steps.next["reward"]
        terminated_column, truncated_column = steps.next["terminated"], steps.next["truncated"]
        nothing = np.zeros(n, bool)
        made, is_even = int(at.max()), bool((at == at[0]).all())
        skipped: NDArray[np.bool_] | None = None
        draw, choice = getattr(policy, "draw", None), Choice(None)
        is_stopped = False
        try:
            while made < length and not (is_stopped := should_stop is not None and should_stop()):
                begins = self._is_init is not nothing
                # Written before the environment steps, as some arrays may be the environment's own. Where it only
                # resets, the row is written again, or removed.
                where: Where = (_ALL, made) if is_even else (every, at)
                if draw is None:
                    choice = _asked(policy, self._situation())
                    actions, flat_actions = self._fit_actions(choice.action, self._environment.steps + 1)
                    for name, array in flat_actions.items():
                        column(steps.step, name, array, length)[where] = array
                else:  # actions that fit, and nothing else
                    steps.step["action"][where] = actions = draw(None)
                if begins:
                    is_init[where] = self._is_init
                self._written.put(choice, steps, where)
                if self._written.state:
                    self._put_state(steps, where)
                outcome = self._environment.step(actions)
                self._observation, rewards, terminated, truncated, finals, recorded, info, _ = outcome
                if recorded is not None and 0 not in recorded.tobytes():
                    recorded = None
                if is_even and recorded is not None:
                    skipped = np.zeros((n, length), bool) if skipped is None else skipped
                    skipped[:, made] = ~recorded
                reward[where] = rewards
                if info and self._infos is not None:
                    made_by = where if recorded is None or is_even else (recorded.nonzero()[0], at[recorded])
                    self._infos.put(outcome, steps, made_by, self._environment.intake, self._environment.steps)
                for env, observation in finals.items():
                    final[env, int(at[env])] = self._flat(observation)
                self._now = self._flat(self._observation)
                if self._max_episode_steps is not None:
                    self._age += 1 if recorded is None else recorded
                    truncated = self._limited(outcome, final, at)
                    self._age[terminated | truncated] = 0
                ended = nothing
                if finals or truncated is not outcome.truncated:
                    ended = terminated | truncated
                    terminated_column[where] = terminated
                    truncated_column[where] = truncated
                    # An environment that was only reset has its first step still to come.
                    self._is_init = ended if recorded is None else ended | ~recorded
                elif begins:
                    self._is_init = nothing if recorded is None else ~recorded
                if choice.state:
                    self._carry(choice.state, np.flatnonzero(ended), final, at)
                if is_even and skipped is None:
                    at.fill(made + 1)
                else:
                    at += 1 if recorded is None else recorded
                made = made + 1 if is_even else int(at.max())
                where = (_ALL, made) if is_even else (every, at)
                for name, array in self._now.items():
                    column(steps.observation, name, array, length + 1)[where] = array
        finally:  # an error leaves the steps before it
            if skipped is not None:
                _remove(steps, skipped[:, :made])
        return is_stopped

    def _refresh_initial(self, policy: Policy) -> None:
        is_init = self._is_init
        initial = policy.initial_state(self._situation())
        self._initial |= initial
        for name, rows in initial.items():
            self._state[name] = _chosen(is_init, rows, self._state.get(name, rows))

    def _carry(
        self, state: Mapping[str, NDArray[Any]], ended: NDArray[np.int64], final: Finals, at: NDArray[np.int64]
    ) -> None:
        """Carry over the state that the policy wrote, except where the next step starts an episode."""
        is_init = self._is_init
        for name, rows in state.items():
            if name not in self._initial:
                self._initial[name] = np.zeros_like(rows)
            initial = self._initial[name]
            if (initial.dtype, initial.shape) != (rows.dtype, rows.shape):
                raise self._chooser.error(
                    f"writes its state {name!r} as {rows.dtype}{list(rows.shape)}, "
                    f"expected {initial.dtype}{list(initial.shape)}, as it starts"
                )
            self._state[name] = _chosen(is_init, initial, rows)
        for env in ended.tolist():
            final[env, int(at[env])] |= {name: np.array(state[name][env]) for name in self._written.state}

    def _put_state(self, steps: Steps, where: Where) -> None:
        """Write the state for the next actions; zeros if none is known yet."""
        for name, zeros in self._written.state.items():
            rows = self._state.get(name, zeros)
            column(steps.observation, name, rows, steps.length + 1)[where] = rows

    def _allocated(self, n: int, length: int) -> Steps:
        step = {name: _empty(leaf, n, length) for name, leaf in self._action_leaves.items()}
        return Steps(
            {name: _empty(leaf, n, length + 1) for name, leaf in self._observation_leaves.items()},
            {**step, IS_INIT: np.zeros((n, length), bool)},
            {
                "reward": np.empty((n, length), self._reward),
                "terminated": np.zeros((n, length), bool),
                "truncated": np.zeros((n, length), bool),
            },
            {},
            np.zeros(n, np.int64),
            np.zeros((n, length), np.int64),
        )

    def _limited(self, outcome: Outcome, final: Finals, at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return truncations, with those of episodes that have reached the step limit.

        Where the environment would continue such an episode, begin a new one.
        """
        is_long = self._age >= (self._max_episode_steps or 0)
        if outcome.recorded is not None:
            is_long &= outcome.recorded
        if not is_long.any():
            return outcome.truncated
        cut = is_long & ~outcome.truncated & ~outcome.terminated
        if cut.any():
            for env in np.flatnonzero(cut).tolist():
                final[env, int(at[env])] = {name: array[env].copy() for name, array in self._now.items()}
            self._observation = self._environment.reset_some(cut)
            self._now = self._flat(self._observation)
        return outcome.truncated | is_long

    def _flat(self, observation: Any) -> Arrays:
        if self._is_plain and type(observation) is np.ndarray and observation.dtype.kind != "U":
            return {"observation": observation}
        return flatten(self._environment.observation_space, "observation", observation)

    def _situation(self) -> Situation:
        """Return the input of the policy: copies, as it may write into them, and they may be the environment's own."""
        state = copied(self._state) if self._state else {}
        return Situation(copied(self._observation), self._is_init.copy(), state)

    def _remark(self, steps: Steps, rewards: NDArray[Any], first_step: int) -> None:
        """Count the rewards that are not finite, and the observations outside their space.

        Raises:
            CollectError: a reward is finite, but its column's dtype makes it infinite.
        """
        column = steps.next["reward"]
        if not np.isfinite(column).all():
            self._environment.intake.check("reward", rewards, cast(rewards, column.dtype), At(first_step), 2)
        observed = {name: steps.observation[name] for name in self._inspect.names}
        made = np.arange(steps.length) < steps.counts[:, None]
        self._inspect({"reward": column, **{name: rows[:, 1:] for name, rows in observed.items()}}, made)
        if steps.final:
            self._inspect({name: np.array([row[name] for row in steps.final.values()]) for name in observed})
        if self._is_new:
            self._inspect({name: rows[:, 0] for name, rows in observed.items()})
        self._is_new = False


def _asked(policy: Policy, situation: Situation) -> Choice:
    """Return the policy's choice; a copy of its state, which it may write into later."""
    try:
        choice = policy(situation)
    except RlxError as exc:
        if isinstance(exc, CollectError):
            exc.args = (f"{exc}{definition(policy, *CHOOSES)}",)
        raise
    except Exception as exc:  # a user's policy may raise anything
        raise CollectError(f"policy failed: {in_words(exc)}") from exc
    return choice._replace(state=copied(choice.state)) if choice.state else choice


def _chosen(where: NDArray[np.bool_], rows: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Return some of these rows [n, ...], and the others."""
    if not where.any():
        return others
    return np.where(where.reshape(-1, *(1 for _ in rows.shape[1:])), rows, others)


def _empty(leaf: Any, n: int, rows: int) -> NDArray[Any]:
    return np.empty((n, rows, *(leaf.shape or ())), dtype_of(leaf))


class EvenRollout:
    """A rollout in which every environment completes the batch.

    In autoreset mode NEXT_STEP, environments whose episodes end more often make fewer steps. The others continue, and
    their steps after the batch's end are the first of their next batch.
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
            policy: chooses the actions of new steps.
            length: T, at least 1.
            into: earlier result whose arrays are reused; new arrays by default.
            should_stop: called before every step; True ends the rollout.
        """
        made = self._ahead
        if made is None:
            made = self._run(policy, version, length, into, should_stop)
            if made.counts.min() == length or (should_stop is not None and should_stop()):
                return made
        while (least := int(made.counts.min())) < length and not (should_stop is not None and should_stop()):
            made = _joined(made, self._run(policy, version, length - least, None, should_stop))
        batch = _like(made, length) if into is None else into
        ahead = _like(made, max(0, int(made.counts.max()) - length))
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
        steps = self._rollout.run(policy, length, into, should_stop)
        steps.version[...] = version
        return steps


def _remove(steps: Steps, skipped: NDArray[np.bool_]) -> None:
    """Remove the rows [n, made] of resets; ``steps.counts`` are those of the others."""
    envs = np.flatnonzero(skipped.any(1))
    made, counts = skipped.shape[1], steps.counts[envs]
    order = np.argsort(skipped[envs], 1, kind="stable")
    for extra, columns in _tables(steps):
        for rows in columns.values():
            flat = rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
            rows[envs, :made] = flat.take(order + envs[:, None] * rows.shape[1], 0)
            if extra:
                rows[envs, counts] = rows[envs, made]
    left = np.arange(steps.length) >= steps.counts[:, None]
    for flags in (steps.step[IS_INIT], steps.next["terminated"], steps.next["truncated"]):
        flags[left] = False
    for name, rows in steps.next.items():
        if name.startswith(PREFIX):
            rows[left] = fill_of(rows.dtype)


def _joined(first: Steps, second: Steps) -> Steps:
    joined = _like(first, int((first.counts + second.counts).max()))
    joined.counts[:] = first.counts + second.counts
    joined.final.update(first.final)
    joined.final.update({(env, at + int(first.counts[env])): row for (env, at), row in second.final.items()})
    for extra, target, columns, more in _tables(joined, first, second):
        for name, rows in columns.items():
            target[name][:, : rows.shape[1]] = rows[:, : target[name].shape[1]]
        # The second part's first observation follows the first part's last step.
        env, at = (np.arange(second.length + extra) < second.counts[:, None] + extra).nonzero()
        for name, rows in more.items():
            to = column(target, name, rows[:, 0], joined.length + extra)
            to[env, first.counts[env] + at] = rows[env, at]
    return joined


def _copy(steps: Steps, into: Steps, start: int) -> None:
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


def _like(steps: Steps, length: int) -> Steps:
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
