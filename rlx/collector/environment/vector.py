"""The environments of a rollout: gymnasium's vector environments in all autoreset modes."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from rlx.collector.environment.autoreset import AutoresetMode, declared, resets_some
from rlx.collector.environment.intake import RESETS, STEPS, At, Intake, copied
from rlx.collector.environment.lanes import (
    FINAL_OBS,
    REMARKS,
    MakeEnv,
    ParallelVectorEnv,
    SerialVectorEnv,
    in_lanes,
    reset_results,
    step_results,
)
from rlx.collector.environment.space import Space
from rlx.engine.local_engine import main_hidden
from rlx.engine.shared_memory import begin_step
from rlx.errors import CollectError, RlxError
from rlx.fork import ThisProcessOnly, on_fork
from rlx.traces import definition, in_words

logger = logging.getLogger(__name__)
# Steps with ended episodes after which last observations that are all those of resets are no chance.
_ALIKE = 3
Seeds = Sequence[int]
Autoreset = Literal["next-step", "same-step", "disabled"]
# Entries of an environment's ``metadata``: it has threads of its own, and ``reset`` takes gymnasium's "reset_mask".
OWN_THREADS, RESET_MASK = "rlx_own_threads", "rlx_reset_mask"
_left: list[Any] = []
_SPEC = ("id", "max_episode_steps", "kwargs", "additional_wrappers")


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
            lanes have the key, ``final_info`` of episodes that ended and were reset in the same step. Or a dict for
            each environment.
        of_reset: keys of ``info`` that, where an episode ended and ``final_info`` tells of its last step, are those of
            the reset.
    """

    observation: Any
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_observation: Mapping[int, Any]
    recorded: NDArray[np.bool_] | None = None
    info: Mapping[Any, Any] | Sequence[Mapping[Any, Any]] = {}
    of_reset: Collection[str] = ()


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
        intake: takes over what it gives; has the remarks on it.
        steps: number of steps so far, including those that only reset.
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
        self.steps = 0
        self._env = env
        self._as_seeds = as_seeds
        base: Any = env.unwrapped
        self._is_own = base is env and isinstance(env, SerialVectorEnv | ParallelVectorEnv)
        self._step = env.step if base is env and isinstance(env, SerialVectorEnv) else self._stepped
        self.intake = env.intake if isinstance(env, SerialVectorEnv) else Intake(name, env)
        self._take = self.intake.taker(self.observation_space, "observation")
        if isinstance(base, SyncVectorEnv) and not isinstance(base, SerialVectorEnv):
            base.envs = in_lanes(base.envs, self.intake)  # type: ignore[assignment]
        self._base = _base_of(env)
        mode = declared(env)
        self._mode = None if mode is None else _mode_of(mode, f"{name} declares autoreset mode")
        leaf = self.observation_space
        self._plain = (leaf.dtype, (self.num_envs, *(leaf.shape or ()))) if isinstance(leaf, spaces.Box) else None
        self._ended = np.zeros(self.num_envs, bool)
        self._observation: Any = None
        self._here: ThisProcessOnly | None = None
        self._is_left = False
        # Whether a last observation was another one than that of the reset after it, or a warning said that none was.
        self._resets_rightly = False
        self._alike, self._last_begun = 0, None
        if isinstance(env.unwrapped, AsyncVectorEnv) or env.metadata.get(OWN_THREADS):
            self._here = ThisProcessOnly(
                f"{name}, an environment with processes or threads of its own, cannot be used in a forked process",
                hint="create the environment in the process that uses it",
            )
            on_fork(self, VectorEnvironment._leave)

    def declare(self, autoreset: str) -> None:
        """Use an autoreset mode, by its name.

        Raises:
            CollectError: the environment declares another one, or the mode is unknown.
        """
        mode = _mode_of(autoreset)
        if self._mode not in (None, mode):
            raise CollectError(
                f"{self.name} is in autoreset mode {_name_of(self._mode)}, which "
                f"`autoreset` {_name_of(mode)} contradicts",
                hint="leave `autoreset` out, or correct the environment's metadata",
            )
        self._mode = mode

    def reset(self, seeds: Sequence[int]) -> Any:
        """Return [n, ...] first observations of new episodes; each environment starts from its seed.

        Raises:
            CollectError: an environment failed, or gave what does not fit its space.
        """
        self._ended[:] = False

        def begin() -> Any:
            try:
                return self._env.reset(seed=self._as_seeds(seeds))
            except (gymnasium.error.Error, TypeError, ValueError) as first:
                # Some take one number for all, as their base class does.
                try:
                    return self._env.reset(seed=seeds[0])
                except Exception:  # perhaps because of the number
                    raise first from None

        self._observation = self._call(
            "reset", lambda: self._begun(*reset_results(begin(), self._env, of_several=True))
        )
        return self._observation

    def reset_some(self, which: NDArray[np.bool_]) -> Any:
        """Return [n, ...] observations after new episodes were begun in some environments [n], whatever their state.

        Raises:
            CollectError: an environment failed, or can only be reset together with the others.
        """
        # An environment that does not know the mask would reset all.
        is_known = resets_some(self._env)
        declares = self._mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        knows = is_known or self._env.metadata.get(RESET_MASK) or declares
        if not knows and not which.all():
            raise self.intake.error("cannot cut episodes: it resets environments only together", At(0))
        options = _Options(reset_mask=which.copy()) if knows else None
        before = self._observation if is_known else copied(self._observation)  # into which the reset may write
        begun = self._call(
            "reset", lambda: self._begun(*reset_results(self._env.reset(options=options), self._env, of_several=True))
        )
        self._ended[which] = False
        kept = list(self._rows(begun, ~which).items())
        if not is_known and any(not _is_same(row, self._row(before, env)) for env, row in kept):
            raise self.intake.error(
                f"has reset environment {kept[0][0]} too: expected only those of options['reset_mask']",
                At(0),
                hint="see `gymnasium.vector.AutoresetMode.DISABLED`",
            )
        self._observation = _chosen(self.observation_space, which, begun, before)
        return self._observation

    def step(self, actions: Any) -> Outcome:
        """Take a step in every environment; begin a new episode where one ends.

        Environments that NEXT_STEP only resets are not recorded.

        Raises:
            CollectError: an environment failed, gave what does not fit its space, or contradicts its autoreset mode.
        """
        self.steps += 1
        observation, reward, terminated, truncated, info = self._call("step", self._step, actions)
        self._observation = observation
        if self._mode == AutoresetMode.NEXT_STEP:
            # Environments whose episode ended in the step before were only reset.
            was_reset, self._ended = self._ended, terminated | truncated
            if 1 not in self._ended.tobytes():
                return Outcome(observation, reward, terminated, truncated, {}, ~was_reset, info)
            final = self.ends(observation, info, self._ended)
            again = was_reset & self._ended
            if 1 in again.tobytes():
                raise self.intake.error(
                    f"ends an episode {At(self.steps, int(again.argmax()))}, which only resets it in the "
                    "autoreset mode next-step that it declares"
                )
            return Outcome(observation, reward, terminated, truncated, final, ~was_reset, info)
        ended = terminated | truncated
        if 1 not in ended.tobytes():
            return Outcome(observation, reward, terminated, truncated, {}, None, info)
        final = self.ends(observation, info, ended)
        if self._mode == AutoresetMode.SAME_STEP:
            return Outcome(observation, reward, terminated, truncated, final, None, info, self.of_reset(info))
        # The reset may write into the same arrays.
        reward, terminated, truncated, info = map(copied, (reward, terminated, truncated, info))
        return Outcome(self.reset_some(ended), reward, terminated, truncated, final, None, info)

    def ends(self, observation: Any, info: Any, ended: NDArray[np.bool_]) -> Mapping[int, Any]:
        """Return the real last observations of the episodes that ended [n] with a step, by number of the environment.

        Args:
            observation: [n, ...] of the step, in the dtypes of its space.
            info: of the step.

        Raises:
            CollectError: the environment contradicts its autoreset mode, or neither declares nor shows it.
        """
        if self._mode is None or self._mode == AutoresetMode.SAME_STEP:
            envs = ended.nonzero()[0].tolist()
            if self._mode is None:
                self._mode = self._shown(info, envs)
            finals = {env: self._final(info, env) for env in envs}
            if not (self._is_own or self._resets_rightly):
                self._look_at_resets(finals, observation, ended)
            return finals
        final = self._rows(observation, ended)
        if info:
            self._check_mode(info, final)
        return final

    @property
    def mode(self) -> AutoresetMode | None:
        """The autoreset mode; None as long as it is neither declared nor shown."""
        return self._mode

    def close(self) -> None:
        """End its processes and threads.

        Raises:
            CollectError: the environment's ``close`` failed.
        """
        if not self._is_left:
            self._call("close", self._env.close)

    def _leave(self) -> None:
        """Drop, in a fork, the processes and threads of the parent: ending the environment would wait for them."""
        self._is_left = True
        _left.append(self._env)
        if isinstance(self._env.unwrapped, AsyncVectorEnv):
            self._env.unwrapped.closed = True

    def _begun(self, observation: Any, info: Any) -> Any:
        self._take_remarks(info)
        return observation if self._is_own else self._observed(observation, At(0))

    def _stepped(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Any]:
        """Return the results of the environment as arrays."""
        observation, reward, terminated, truncated, info = step_results(self._env.step(actions), self._env)
        if info:
            self._take_remarks(info)
        if self._is_own:
            return observation, reward, terminated, truncated, info
        at, rows = At(self.steps), (self.num_envs,)
        observation = self._observed(observation, at)
        if not (type(reward) is np.ndarray and reward.shape == rows and reward.dtype.kind == "f"):
            reward = self.intake.rewards(reward, at, rows)
        for flags in (terminated, truncated):
            if not (type(flags) is np.ndarray and flags.shape == rows and flags.dtype == np.bool_):
                terminated = self.intake.flags("terminated", terminated, at, rows)
                truncated = self.intake.flags("truncated", truncated, at, rows)
        return observation, reward, terminated, truncated, info

    def _observed(self, observation: Any, at: At) -> Any:
        if type(observation) is np.ndarray and (observation.dtype, observation.shape) == self._plain:
            return observation
        return self._take(observation, at, (self.num_envs,))

    def _take_remarks(self, info: Any) -> None:
        """Take the remarks of environments in other processes out of their infos."""
        for part in (info, info.get("final_info")) if isinstance(info, dict) else ():
            if isinstance(part, dict) and REMARKS in part:
                del part[f"_{REMARKS}"]
                for remarks in part.pop(REMARKS):
                    for remark, steps in remarks or ():
                        self.intake.remark(remark, steps)

    def _shown(self, info: Any, envs: Sequence[int]) -> AutoresetMode:
        """Return the autoreset mode that the infos of the first ended episodes show."""
        if any(self._given(info, env) is None for env in envs):
            raise self.intake.error(
                "does not declare its autoreset mode, and its infos do not show it: an episode ended without final_obs",
                At(self.steps, envs[0]),
                hint='set `metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}` (or SAME_STEP or DISABLED) in its '
                "class, or `autoreset` next-step",
            )
        logger.warning(
            "%s does not declare its autoreset mode: taken for SAME_STEP, as its infos have final_obs", self.name
        )
        return AutoresetMode.SAME_STEP

    def _look_at_resets(self, finals: Mapping[int, Any], observation: Any, ended: NDArray[np.bool_]) -> None:
        """Warn once if every last observation is that of the reset after it, though not all observations are alike."""
        begun, running = self._rows(observation, ended), self._rows(observation, ~ended)
        if any(not _is_same(final, begun[env]) for env, final in finals.items()):
            self._resets_rightly = True
            return
        others = [self._last_begun, *begun.values(), *running.values()]
        self._last_begun = next(iter(begun.values()), self._last_begun)
        if any(other is not None and not _is_same(other, self._last_begun) for other in others):
            self._alike += 1
        if self._alike == _ALIKE:
            logger.warning(
                "%s: final_obs of each episode is the observation of the reset after it: where an environment returns "
                "one array that its reset overwrites, `return observation.copy()` keeps the last observation",
                self.name,
            )
            self._resets_rightly = True

    def _check_mode(self, info: Any, finals: Mapping[int, Any]) -> None:
        """Raise CollectError if the infos have other last observations than the step returned."""
        if isinstance(info, Mapping) and not any(key in info for key in FINAL_OBS):
            return
        for env, row in finals.items():
            at = At(self.steps, env)
            given = self._given(info, env)
            if given is not None and not _is_same(self._take(given, at), row):
                raise self.intake.error(
                    f"is in autoreset mode {_name_of(self._mode)}, but its infos have "
                    "another final_obs than it returned, as in mode same-step",
                    at,
                    hint="correct the environment's metadata['autoreset_mode'], or `autoreset`",
                )

    def _final(self, info: Any, env: int) -> Any:
        final, at = self._given(info, env), At(self.steps, env)
        if final is None:
            raise self.intake.error("ended an episode without the final_obs that autoreset mode SAME_STEP gives", at)
        return self._take(final, at)

    def _given(self, info: Any, env: int) -> Any:
        """Return the last observation of an episode that the infos have; None if they have none."""
        own = info[env] or {} if isinstance(info, Sequence | np.ndarray) else info
        for key in FINAL_OBS:
            if (final := own.get(key)) is None:
                continue
            if own is not info:
                return final
            if (mask := info.get(f"_{key}")) is not None and not mask[env]:
                return None
            try:
                # A row an environment, each a value of the space, or the values themselves stacked.
                is_rows = isinstance(final, np.ndarray | list) or hasattr(final, "detach")
                return final[env] if is_rows else row_of(self.observation_space, final, env)
            except (TypeError, KeyError, IndexError) as exc:
                raise self.intake.error(
                    f"gave {key} that is not one observation for each of {self.num_envs} environments: "
                    f"{type(exc).__name__}: {exc}",
                    At(self.steps, env),
                ) from exc
        return None

    def of_reset(self, info: Any) -> Collection[str]:
        """Return the keys of infos, beside ``final_info``, that are those of the reset, where an episode ended."""
        if self._base is not None:
            return self._base.keys
        if not isinstance(info, Mapping):
            return ()
        if isinstance(self._env, SyncVectorEnv | AsyncVectorEnv):
            return info.keys()
        return [key for key in info if f"_{key}" not in info]

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
        except (RlxError, SystemExit):  # sys.exit ends the worker
            raise
        except BaseException as exc:  # a user's environment may raise anything
            # Where Ctrl-C is ignored, as in workers, the environment itself has raised it.
            if isinstance(exc, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                raise
            said = in_words(exc, definition(self._env, *(RESETS if verb == "reset" else STEPS)))
            if self._lost_process(exc):
                self._end_processes()
                said = "the process of an environment ended"
            raise CollectError(f"{self.name} failed in {verb}: {said}") from exc
        finally:
            if pulse is not None:
                pulse.beat()

    def _lost_process(self, exc: BaseException) -> bool:
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


class _Options(dict[str, Any]):
    """Options that stay: gymnasium's environments take out the mask, which their wrappers have yet to read."""

    def pop(self, key: str, *default: Any) -> Any:
        return self[key] if key in self else super().pop(key, *default)


class _Base(VectorWrapper):
    """The innermost of some wrappers: notes which entries the infos have before the others add theirs."""

    keys: Collection[str] = ()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options=None if options is None else dict(options))

    def step(self, actions: Any) -> Any:
        found = self.env.step(actions)
        self.keys = frozenset(found[4])
        return found


def _base_of(env: VectorEnv[Any, Any, Any]) -> _Base | None:
    """Return a new innermost wrapper, if wrappers are around environments of gymnasium, whose infos are known."""
    if not (isinstance(env, VectorWrapper) and isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)):
        return None
    outer = env
    while isinstance(outer.env, VectorWrapper):
        outer = outer.env
    base = outer.env = _Base(outer.env)
    return base


def _mode_of(mode: Any, name: str = "`autoreset`") -> AutoresetMode:
    known = {one.value: one for one in AutoresetMode} | {one.name: one for one in AutoresetMode}
    found = (
        mode
        if isinstance(mode, AutoresetMode)
        else known.get(str(mode), known.get(str(mode).replace("-", "_").upper()))
    )
    if found is None:
        raise CollectError(f"{name} {mode!r}: expected {', '.join(_name_of(one) for one in AutoresetMode)}")
    return found


def _name_of(mode: AutoresetMode | None) -> str:
    return "unknown" if mode is None else mode.name.lower().replace("_", "-")


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two observations are the same; NaN is the same as NaN."""
    if isinstance(one, Mapping):
        return all(_is_same(part, other[key]) for key, part in one.items())
    if isinstance(one, tuple):
        return all(map(_is_same, one, other))
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))


def _chosen(space: Space, which: NDArray[np.bool_], rows: Any, others: Any) -> Any:
    """Return some of these rows [n, ...] of a space, and the others."""
    if isinstance(space, spaces.Dict):
        return {key: _chosen(part, which, rows[key], others[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_chosen(part, which, rows[i], others[i]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return tuple(rows[env] if is_chosen else others[env] for env, is_chosen in enumerate(which))
    return np.where(which.reshape(-1, *(1 for _ in rows.shape[1:])), rows, others)


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


def serial(makes: Sequence[MakeEnv], name: str, *, is_batched: bool) -> VectorEnvironment:
    """Return the environments of all functions, stepped one after the other."""
    env = _vector(name, lambda: SerialVectorEnv(makes, name))
    return VectorEnvironment(env, name, is_batched=is_batched)


def parallel(makes: Sequence[MakeEnv], name: str, start_method: str) -> VectorEnvironment:
    """Return the environments of all functions, each in its own process, with observations in shared memory."""
    with main_hidden():
        env = _vector(name, lambda: ParallelVectorEnv(makes, name, start_method))
    return VectorEnvironment(env, name)


def _vector(name: str, make: Callable[[], VectorEnv[Any, Any, Any]]) -> VectorEnv[Any, Any, Any]:
    try:
        return make()
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # a user's environment may raise anything
        raise CollectError(f"environment {name} cannot be made: {in_words(exc)}") from exc
