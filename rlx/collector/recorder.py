"""Recorder of environments that somebody else steps: checks every step, and keeps every episode when it ends."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.block import Block
from rlx.collector.dataset_collector import left_out, next_numbers
from rlx.collector.environment.gym_env import environment_name
from rlx.collector.environment.intake import At, Inspection, Intake, Remarks, inside_of
from rlx.collector.environment.space import Arrays, Space, flatten, leaves, schema_of
from rlx.collector.environment.vector import Outcome
from rlx.collector.policy.protocol import Choice
from rlx.collector.rollout.episodes import REWARDS, Ended, join
from rlx.collector.rollout.infos import PREFIX, InfoKeys, Infos, fill_of, flat_keys
from rlx.collector.rollout.steps import Steps, Written
from rlx.distribution import version
from rlx.errors import CollectError, DatasetExistsError, DatasetNotFoundError, ForkError, OptionError
from rlx.files.urls import check_no_url
from rlx.manifest import Manifest
from rlx.numbers import array_of, check_whole
from rlx.schema import Field, Role, Schema
from rlx.store.codec import codec_of
from rlx.store.dataset_writer import claimed, open_writer, write_journaled, write_shard_of
from rlx.store.journal import Journal
from rlx.store.layout import JOURNAL, shard_name

logger = logging.getLogger(__name__)
Flags = NDArray[np.bool_]
# Of observations, infos and [n] which episodes have ended: the last observations of those that were reset in the same
# step, by environment, and the keys of infos that are those of the reset.
Ends = Callable[[Any, Any, Flags], tuple[Mapping[int, Any], Collection[str]]]


@dataclass(slots=True)
class _Running:
    """An episode so far: by field, a row [1, ...] per step; of observations, one more."""

    observation: list[Arrays]
    step: list[Arrays] = field(default_factory=list)
    next: list[Arrays] = field(default_factory=list)


# A shard has at most this fraction, one in ten, of ``max_steps``: shards are dropped whole.
_SHARDS_OF_MAX = 10
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


class Recorder:
    """Writer of the steps of n environments into a dataset; the end of the interpreter closes it.

    Around every step of the environments, ``act`` comes before it and ``step`` after it. Both copy what they are given,
    and check it against the spaces. An episode that has ended is in the dataset's journal before ``step`` returns.

    Args:
        env: the environments, for names and messages.
        observation_space, action_space: spaces of one environment.
        num_envs: n; None for one environment without a dimension of n.
        intake: takes over what the environments give.
        path, shard_steps, max_steps, reward_dtype, info_keys, id: see ``rlx.integrations.record.RecordExperience``.
    """

    def __init__(
        self,
        env: Any,
        observation_space: Space,
        action_space: Space,
        num_envs: int | None,
        path: str | os.PathLike[str],
        intake: Intake,
        *,
        shard_steps: int,
        max_steps: int | None,
        reward_dtype: str | None,
        info_keys: Any,
        id: str | None,
    ) -> None:
        if reward_dtype not in (None, *REWARDS):
            raise OptionError(f"reward_dtype {reward_dtype!r}: expected {' or '.join(REWARDS)}")
        self._shard_steps, self._max_steps = check_whole("shard_steps", shard_steps), max_steps
        if max_steps is not None:
            self._shard_steps = min(shard_steps, max(1, check_whole("max_steps", max_steps) // _SHARDS_OF_MAX))
        self._observation_space, self._action_space = observation_space, action_space
        self._n, self._rows = num_envs or 1, () if num_envs is None else (num_envs,)
        self._env, self._loop, self._remarks = intake, Intake("the loop"), Remarks()
        self._inspect = Inspection(intake, observation_space)
        check_no_url(path)
        self._path = Path(path).absolute()  # wherever a loop changes to
        self._process, self._is_open = os.getpid(), True
        self._given = schema_of(observation_space, action_space)
        with ExitStack() as stack:
            stack.enter_context(claimed(self._path))
            listed = _listed(self._path)
            dtype = reward_dtype or ("float32" if listed is None else listed.schema["reward"].dtype)
            self._given = Schema({**self._given.fields, "reward": replace(self._given["reward"], dtype=dtype)})
            schema, given = self._given, self._given.fields
            if listed is not None and all(listed.schema.fields.get(name) == given[name] for name in given):
                schema = listed.schema
            # Those of a dataset that has steps; of any other, they are known after the first episode.
            self._fields = schema if listed is not None and listed.shards else None
            made = {"command": "RecordExperience", "rlx": version(), "parents": []}
            codec = codec_of("zarr", None).to_json()
            described = Manifest(id or environment_name(env), "zarr", codec, schema, lineage=[made])
            self._writer = open_writer(self._path, described)
            self._expected, self._infos = self._more_of(flat_keys(info_keys))
            self._next_shard, self._next_episode = next_numbers(self._writer)
            # Shards that are listed, or on their way: the oldest first, with their steps and episodes.
            shards = sorted(self._writer.manifest.shards, key=lambda shard: int(shard.name))
            self._shards = deque((shard.name, shard.steps, shard.trajectories) for shard in shards)
            if max_steps is not None and (more := self._writer.manifest.steps - max_steps) > 0:
                logger.warning("%s: %s steps more than max_steps; the oldest will be dropped", self._path, f"{more:,}")
            self._thread = stack.enter_context(ThreadPoolExecutor(1, "shard writer"))
            self._stack = stack.pop_all()
        self._take = intake.taker(observation_space, "observation")
        self._reward_dtype = np.dtype(dtype)
        self._take_reward = intake.taker(spaces.Box(-np.inf, np.inf, (), self._reward_dtype.type), "reward")
        self._take_action = self._loop.taker(action_space, "action")
        self._choices = {
            name: inside
            for name, leaf in leaves(action_space, "action").items()
            if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) and (inside := inside_of(leaf)) is not None
        }
        self._outputs: Arrays = {}
        self._unsettled: list[Steps] = []
        self._is_settled, self._has_infos = False, True
        self._acted: Arrays = {}
        self._is_acting = False
        self._steps = 0
        self._running: list[_Running | None] = [None] * self._n
        self._finished: list[Block] = []  # but not in the journal yet
        self._is_saved = listed is not None
        self._journal: Journal | None = None
        self._writing: Future[None] | None = None
        _OPEN.add(self)

    def begin(self, observation: Any, which: Flags | None = None) -> None:
        """Begin episodes in some environments, by default in all; running ones that have steps are cut.

        Args:
            observation: of all environments.

        Raises:
            CollectError: an observation does not fit its space.
            ForkError: this process was forked from the recorder's.
        """
        self._check_process()
        if not self._is_open:
            return  # a step would be refused
        envs = range(self._n) if which is None else np.flatnonzero(which).tolist()
        for env in envs:
            self._end(env, is_cut=True)
        self._is_acting = False
        self._keep()
        self._begin(envs, self._flat(self._take(observation, At(0), self._rows)))
        self._say()

    def _begin(self, envs: Iterable[int], observation: Arrays) -> None:
        for env in envs:
            self._running[env] = _Running([_row(observation, env, self._n)])

    def record(self, outputs: Mapping[str, Any]) -> None:
        """Note outputs of the policy for the next step; see ``RecordExperience.record``."""
        self._check_process()
        for name, value in _named(outputs):
            try:
                array = np.array(array_of(value))
            except (TypeError, ValueError, RuntimeError) as exc:
                raise CollectError(f"record: {name} is a {type(value).__name__}, expected an array: {exc}") from exc
            self._outputs[name] = self._stacked(array.astype(object) if array.dtype.kind == "U" else array)

    def act(self, actions: Any, resets: Flags | None = None) -> None:
        """Take the actions of the next step, before the environments do.

        Args:
            resets: [n] the environments that the step only resets.

        Raises:
            CollectError: no episode runs, the actions do not fit their space, or the outputs given to ``record`` are
                not those of the first step.
            ForkError: this process was forked from the recorder's.
        """
        self._check_process()
        if not self._is_open:
            raise CollectError("step after close: it cannot be recorded")
        if self._is_acting:  # whether the environments have moved is unknown
            self._cut()
        if self._max_steps and any(one is not None and len(one.next) >= self._max_steps for one in self._running):
            self._cut()
            raise CollectError(
                f"an episode has more than {self._max_steps:,} steps: expected at most max_steps",
                hint="raise max_steps, or limit the steps of an episode, as gymnasium's TimeLimit does",
            )
        if any(one is None and not (resets is not None and resets[env]) for env, one in enumerate(self._running)):
            raise CollectError(
                "step without reset at the beginning, or after the end of an episode, or after a step that failed: it "
                "cannot be recorded",
                hint="call reset; wrappers that call it, such as Autoreset, must be outside the recorder",
            )
        at = At(self._steps + 1)
        acted = self._actions(actions, at)
        outputs, self._outputs = self._outputs, {}
        if resets is None or not resets.all():
            acted |= self._fit_outputs(outputs, at)
        self._acted, self._is_acting = acted, True

    def _actions(self, actions: Any, at: At) -> Arrays:
        taken = self._take_action(actions, at, self._rows)
        acted = {name: self._stacked(rows) for name, rows in flatten(self._action_space, "action", taken).items()}
        for name, inside in self._choices.items():
            if not inside(acted[name]).all():
                expected = leaves(self._action_space, "action")[name]
                raise self._loop.error(f"gave {name} {acted[name].tolist()}: expected numbers of {expected}", at)
        return acted

    def _fit_outputs(self, outputs: Arrays, at: At) -> Arrays:
        """Return a policy's outputs in the dtypes of the steps before, or of the first one."""
        if self._expected is None:
            taken = {name for name in self._given if self._given[name].role != Role.NEXT}
            Written(self._n, taken).put(Choice(None, step=outputs), _one_step(self._n), (slice(None), 0))
            self._expected = {name: Field.of(rows, Role.STEP) for name, rows in outputs.items()}
            Schema({**self._given.fields, **self._expected})  # checks the names
        if self._expected.keys() != outputs.keys():
            raise CollectError(
                f"a step with {sorted(outputs)} of the policy: expected {sorted(self._expected)} as before",
                hint="call record(...) before each step; or record into another directory",
            )
        return {name: self._fitting(self._loop, name, rows, self._expected[name], at) for name, rows in outputs.items()}

    def _fitting(
        self, intake: Intake, name: str, rows: NDArray[Any], field: Field, at: At, dims: int = 1
    ) -> NDArray[Any]:
        """Return rows [n, ...] in the dtype of a field; with two ``dims``, [n, T, ...]."""
        is_text = rows.dtype.kind == "O"
        if len(rows) != self._n or rows.shape[dims:] != field.shape or is_text != field.is_text:
            found = f"{'text' if is_text else rows.dtype}{list(rows.shape)}"
            expected = f"{field.dtype}{[self._n, *rows.shape[1:dims], *field.shape]}"
            raise intake.error(f"gave {name} of {found}, expected {expected} as before", at)
        return rows if rows.dtype == field.numpy_dtype else intake.cast(name, rows, field.numpy_dtype, at, dims)

    def step(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: Any,
        *,
        resets: Flags | None = None,
        ends: Ends = lambda *_: ({}, ()),
    ) -> Flags:
        """Record the step of the actions; return [n] which episodes it ends.

        If it cannot be recorded, the running episodes are cut: they would lack it.

        Args:
            observation, reward, terminated, truncated, info: what the environments returned.
            resets: as for ``act``.
            ends: tells of the episodes that the step ended; called where there are any.

        Raises:
            CollectError: something does not fit its space or dtype.
        """
        self._steps += 1
        at = At(self._steps)
        made = np.ones(self._n, bool) if resets is None else ~resets
        try:
            taken = self._take(observation, at, self._rows)
            flags = (
                self._stacked(self._env.flags("terminated", terminated, at, self._rows).copy()),
                self._stacked(self._env.flags("truncated", truncated, at, self._rows).copy()),
            )
            ended: Flags = (flags[0] | flags[1]) & made
            rewards = self._env.rewards(reward, at, self._rows, self._reward_dtype)
            rewards = self._take_reward(rewards, at, self._rows)
            following = {"reward": self._stacked(rewards), "terminated": flags[0], "truncated": flags[1]}
            finals, of_reset = ends(taken, info, ended) if ended.any() else ({}, ())
            last = {env: self._flat(one, is_one=True) for env, one in finals.items()}
            after = self._flat(taken)
            if not self._rows:
                info = [info]
            outcome = Outcome(taken, following["reward"], *flags, finals, made, info, of_reset)
            infos = self._kept(outcome, made, at, following) if self._has_infos else None
        except BaseException:
            self._cut()
            raise
        for env in range(self._n) if resets is None else np.flatnonzero(made).tolist():
            if (running := self._running[env]) is not None:
                running.step.append(_row(self._acted, env, self._n))
                running.next.append(_row(following, env, self._n))
                running.observation.append(last[env] if env in last else _row(after, env, self._n))
        if infos is not None:
            self._unsettled.append(infos)
        self._is_acting = False
        if ended.any() or resets is not None:
            for env in np.flatnonzero(ended).tolist():
                self._end(env, is_cut=False)
            self._begin([*last, *np.flatnonzero(~made).tolist()], after)
            self._keep()
        self._say()
        return ended

    def _flat(self, observation: Any, *, is_one: bool = False) -> Arrays:
        """Return rows [n, ...] of the observations of all environments, or a row [1, ...] of that of one."""
        arrays = flatten(self._observation_space, "observation", observation)
        return {name: array[None] if is_one or not self._rows else array for name, array in arrays.items()}

    def _kept(self, outcome: Outcome, made: Flags, at: At, following: Arrays) -> Steps | None:
        """Add the entries of ``info`` that are kept to a step; return them as long as their dtypes are not known."""
        steps = _one_step(self._n)
        where = (slice(None), 0) if made.all() else (np.flatnonzero(made), np.zeros(int(made.sum()), np.int64))
        self._infos.put(outcome, steps, where, self._env, at.step)
        if not self._is_settled:
            return steps
        steps.counts[:] = made
        self._infos.settle(steps, self._env, at.step)
        following |= {name: self._info(name, rows[:, 0], at) for name, rows in steps.next.items()}
        return None

    def _info(self, name: str, rows: NDArray[Any], at: At, dims: int = 1) -> NDArray[Any]:
        if self._fields is None:
            return rows
        return self._fitting(self._env, name, rows, self._fields[name], at, dims)

    def _stacked(self, array: Any) -> NDArray[Any]:
        rows: NDArray[Any] = array if self._rows else np.asarray(array)[None]
        return rows

    def _say(self) -> None:
        for intake in (self._env, self._loop):
            if intake.remarks:
                self._remarks.add(intake.drain())

    def _cut(self) -> None:
        for env in range(self._n):
            self._end(env, is_cut=True)
        self._is_acting = False
        self._keep()

    def _end(self, env: int, *, is_cut: bool) -> None:
        """Finish the running episode of an environment, if it has steps."""
        running = self._running[env]
        if running is None or (length := len(running.observation) - 1) == 0:
            self._running[env] = None
            return
        if not self._is_settled:
            self._settle()
        observation = _joined(running.observation)
        step, after = _joined(running.step[:length]), _joined(running.next[:length])
        fields = self._fields or self._decided(after)
        after["truncated"][-1] |= is_cut
        self._inspect(observation | after)
        ended = Ended(observation, step, after, np.array([length]), is_cut)
        self._finished.append(join([ended], fields, self._next_episode))
        self._next_episode += 1
        self._running[env] = None

    def _keep(self) -> None:
        """Write finished episodes into the journal, from which full shards are written in a thread."""
        if not self._finished:
            return
        if not self._is_saved:  # a journal is read by the manifest's schema
            self._writer.save()
            self._is_saved = True
        while self._finished:
            self._make_room(self._finished[0].steps)
            if self._journal is None:
                self._journal = Journal(self._path / JOURNAL / shard_name(self._next_shard))
            self._journal.append(self._finished[0])
            del self._finished[0]
            if self._journal.steps >= self._shard_steps:
                path, before = self._end_journal(), self._writing
                self._writing = self._thread.submit(write_shard_of, path, self._writer)
                if before is not None:
                    before.result()

    def _end_journal(self) -> Path:
        journal, self._journal, self._next_shard = self._journal, None, self._next_shard + 1
        assert journal is not None
        journal.close()
        self._shards.append((journal.path.name, journal.steps, journal.episodes))
        return journal.path

    def _make_room(self, steps: int) -> None:
        """Drop the oldest shards, so that the dataset has at most ``max_steps`` after this many more."""
        if self._max_steps is None:
            return
        held = sum(count for _, count, _ in self._shards) + (self._journal.steps if self._journal else 0)
        dropped: list[tuple[str, int, int]] = []
        while held + steps > self._max_steps:
            if not self._shards:
                self._end_journal()
            dropped.append(self._shards.popleft())
            held -= dropped[-1][1]
        if dropped:
            self._thread.submit(self._writer.drop, dropped).result()

    def _settle(self) -> None:
        """Decide on the dtypes of infos by the steps until the first end of an episode."""
        steps = _together(self._unsettled, self._n)
        self._infos.settle(steps, self._env, self._steps)
        at = At(self._steps - steps.length + 1)
        columns = {name: self._info(name, rows, at, 2) for name, rows in steps.next.items()}
        for env, running in enumerate(self._running):
            for time, row in enumerate(running.next if running is not None else ()):
                row |= {name: rows[env : env + 1, time] for name, rows in columns.items()}
        self._unsettled, self._is_settled, self._has_infos = [], True, bool(columns)
        if left := [key for key in self._infos.seen if PREFIX + key not in columns]:
            kept = [key for key in left if self._infos.seen[key]]
            logger.warning("%s", left_out(kept, [key for key in left if key not in kept]))

    def _decided(self, rows: Arrays) -> Schema:
        """Decide on the fields of all steps by the first episode."""
        infos = {name: Field.of(column, Role.NEXT) for name, column in rows.items() if name.startswith(PREFIX)}
        self._fields = Schema({**self._given.fields, **(self._expected or {}), **infos})
        self._writer.manifest, self._is_saved = replace(self._writer.manifest, schema=self._fields), False
        return self._fields

    def _more_of(self, wanted: InfoKeys) -> tuple[Mapping[str, Field] | None, Infos]:
        """Return the fields of the policy's outputs, if a dataset has steps, and the writer of its infos."""
        if self._fields is None:
            return None, Infos(self._n, wanted)
        fields = {name: one for name, one in self._fields.fields.items() if name not in self._given}
        outputs = {name: one for name, one in fields.items() if one.role == Role.STEP}
        infos = [name for name, one in fields.items() if name.startswith(PREFIX) and one.role == Role.NEXT]
        if other := fields.keys() - outputs.keys() - set(infos):
            raise DatasetExistsError(
                f"{self._path} holds another dataset: it has {sorted(other)}, which a recorder does not write",
                hint="choose another directory",
            )
        keys = [name.removeprefix(PREFIX) for name in infos]
        if wanted and wanted != "all" and set(wanted) != set(keys):
            raise DatasetExistsError(
                f"{self._path} holds another dataset: it keeps {keys} of info, expected {list(wanted)}",
                hint="leave out `info_keys`, or choose another directory",
            )
        return outputs, Infos(self._n, keys)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkError(
                f"{self._path} is recorded by another process, pid {self._process}, from which this one was forked",
                hint="create the recorder in the process that steps the environment",
            )

    def close(self) -> None:
        """Cut the running episodes, and write what is left; in a fork, do nothing.

        What cannot be written stays in the journal, from which the next to open the dataset writes it.
        """
        if not self._is_open or os.getpid() != self._process:
            return
        self._is_open = False
        _OPEN.discard(self)
        with self._stack:
            self._cut()
            if self._journal is not None:
                self._journal.close()
            self._thread.shutdown()
            if not self._is_saved:
                self._writer.save()
            write_journaled(self._path)
        for remark, steps in self._remarks.counts.items():
            if steps > 1:
                logger.warning("%s: in %s steps, %s", self._path, f"{steps:,}", remark)


def _listed(path: Path) -> Manifest | None:
    try:
        return Manifest.load(path)
    except DatasetNotFoundError:
        return None


def _one_step(n: int) -> Steps:
    return Steps({}, {}, {}, {}, np.zeros(n, np.int64), np.zeros((n, 1), np.int64))


def _row(arrays: Arrays, env: int, n: int) -> Arrays:
    if n == 1:
        return arrays
    # Copies: a slice would keep the steps of all other environments in memory while the episode runs.
    return {name: rows[env : env + 1].copy() for name, rows in arrays.items()}


def _joined(rows: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([one[name] for one in rows]) for name in rows[0]}


def _together(parts: Sequence[Steps], n: int) -> Steps:
    """Return consecutive steps of all environments as one; a part may lack a column."""
    steps = Steps({}, {}, {}, {}, np.full(n, len(parts)), np.zeros((n, len(parts)), np.int64))
    for time, part in enumerate(parts):
        for name, rows in part.next.items():
            if name not in steps.next:
                shape = n, len(parts), *rows.shape[2:]
                steps.next[name] = np.full(shape, fill_of(rows.dtype), rows.dtype)
            steps.next[name][:, time] = rows[:, 0]
    return steps


def _named(outputs: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            yield from _named(value, f"{above}{name}/")
        else:
            yield f"{above}{name}", value
