"""Episodes put together from steps of environments that run side by side, and the schema of the dataset they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.collector.environment.space import Arrays, leaves, schema_of
from rlx.collector.environment.vector import Environment
from rlx.collector.rollout.steps import IS_INIT, Steps
from rlx.errors import CollectError
from rlx.schema import Field, Role, Schema

REWARDS = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of some steps.

    Args:
        schema: every field that is kept; rewards are float64 where float32 would change one.
        infos: keys of ``info``, and whether they can be kept.
    """

    schema: Schema
    infos: Mapping[str, bool]


def layout_of(steps: Steps, environment: Environment, infos: Mapping[str, bool]) -> Layout:
    """Return the layout of steps.

    ``is_init`` is a field where the policy has a state: a module that is trained on slices reads it.

    Raises:
        CollectError: two arrays have one name.
        SchemaMismatchError: a name that a dataset could not hold.
    """
    schema = schema_of(environment.observation_space, environment.action_space)
    states = _new(steps.observation, leaves(environment.observation_space, "observation"))
    step = _new(steps.step, [*leaves(environment.action_space, "action"), IS_INIT])
    after = _new(steps.next, schema)
    if twice := sorted(states.keys() & step.keys() | states.keys() & after.keys() | step.keys() & after.keys()):
        raise CollectError(
            f"policy writes {twice[0]!r} both at the root and under 'next': a dataset holds one of them",
            hint=f"--drop next/{twice[0]}",
        )
    fields = {
        **_fields(states, Role.OBSERVATION),
        **_fields(step, Role.STEP),
        **_fields(after, Role.NEXT),
        **({IS_INIT: Field("bool", (1,), Role.STEP)} if states else {}),
    }
    made = np.arange(steps.length) < steps.counts[:, None]
    dtype = REWARDS[0] if fits_float32(steps.next["reward"][made]) else REWARDS[1]
    return Layout(_with_reward(Schema({**schema.fields, **fields}), dtype), infos)


def agreed(layouts: Sequence[Layout], reward: str | None = None) -> Layout:
    """Return the common layout of the steps of all workers.

    Args:
        layouts: one a worker; at least one.
        reward: dtype of rewards; the narrowest that holds all if not given.

    Raises:
        CollectError: they hold different fields.
    """
    rewards = {layout.schema["reward"].dtype for layout in layouts}
    dtype = reward or max(rewards, key=REWARDS.index)
    schemas = [_with_reward(layout.schema, dtype) for layout in layouts]
    for worker, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise CollectError(
                f"worker {worker}'s steps hold {list(schema)}, expected those of worker 0: {list(schemas[0])}"
            )
    infos = {key: is_kept for layout in layouts for key, is_kept in layout.infos.items()}
    return Layout(schemas[0], infos)


def fits_float32(rewards: NDArray[Any]) -> bool:
    """Return whether float32 holds these exactly; NaN and infinities are held."""
    with np.errstate(over="ignore"):
        return np.array_equal(rewards.astype(np.float32).astype(rewards.dtype), rewards, equal_nan=True)


def _with_reward(schema: Schema, dtype: str) -> Schema:
    return Schema({**schema.fields, "reward": replace(schema["reward"], dtype=dtype)})


def _new(columns: Arrays, known: Any) -> Arrays:
    return {name: rows for name, rows in columns.items() if name not in known}


def _fields(columns: Arrays, role: Role) -> dict[str, Field]:
    return {name: Field.of(rows[0], role) for name, rows in columns.items()}


Span = tuple[int, int, int]  # an environment, the first of some steps, and the one after the last


class Piece(NamedTuple):
    """Consecutive steps [L, ...] of an episode, by name of the field; see ``Steps``."""

    observation: Arrays
    step: Arrays
    next: Arrays


@dataclass(slots=True)
class _Running:
    """An episode so far: its pieces, and where it stands."""

    pieces: list[Piece] = field(default_factory=list)
    steps: int = 0
    now: Arrays = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode from its reset, by name of the field; see ``Steps``.

    Args:
        observation: [L + 1, ...].
        step: [L, ...].
        next: [L, ...].
        is_cut: whether the environment did not end it; then its last step is flagged truncated.
    """

    observation: Arrays
    step: Arrays
    next: Arrays
    is_cut: bool = False

    @property
    def steps(self) -> int:
        """L, at least 1."""
        return len(self.next["reward"])

    @property
    def data(self) -> Arrays:
        """All arrays by name of the field."""
        return {**self.observation, **self.step, **self.next}


class Episodes:
    """Episodes assembled from steps, in the order in which they end; at one time, by number of the environment.

    Args:
        num_envs: environments.
    """

    def __init__(self, num_envs: int) -> None:
        self._running = [_Running() for _ in range(num_envs)]

    @property
    def running_steps(self) -> int:
        """Steps of the episodes that have not ended."""
        return sum(running.steps for running in self._running)

    def add(self, steps: Steps, limit: int | None = None) -> list[Episode]:
        """Return the episodes that these steps end.

        Args:
            steps: the next ones.
            limit: how many to take: the earliest, and of those of one time the first environments'.
        """
        counts = steps.counts if limit is None else _first(steps.counts, limit)
        starts = np.zeros_like(counts)
        ended: dict[Span, Episode | None] = {}  # in order; without those that these steps hold from their reset
        for at, env in sorted((at, env) for env, at in steps.final if at < counts[env]):
            running = self._running[env]
            span = env, int(starts[env]), at + 1
            ended[span] = None
            if running.steps:
                _extend(running, steps, *span)
                running.now = steps.final[env, at]
                ended[span] = _close(running)
                self._running[env] = _Running()
            starts[env] = at + 1
        for env, running in enumerate(self._running):
            if counts[env] > starts[env]:
                _extend(running, steps, env, int(starts[env]), int(counts[env]))
                running.now = {name: np.array(rows[env, counts[env]]) for name, rows in steps.observation.items()}
        whole = _whole(steps, [span for span, episode in ended.items() if episode is None])
        return [next(whole) if episode is None else episode for episode in ended.values()]

    def cut(self) -> list[Episode]:
        """Return the episodes that have not ended, truncated where they are, by number of the environment."""
        cut = []
        for running in self._running:
            if running.steps:
                running.pieces[-1].next["truncated"][-1] = True
                cut.append(_close(running, is_cut=True))
        self._running = [_Running() for _ in self._running]
        return cut


def join(episodes: Sequence[Episode], schema: Schema, first: int, stride: int = 1, *, rounds: bool = False) -> Block:
    """Return one block of these episodes, numbered ``first``, ``first + stride``, ...

    Args:
        episodes: at least one; what they hold and the schema does not is refused, but ``is_init``, which is derived.
        schema: of the block.
        first: number of the first episode.
        stride: between the numbers.
        rounds: whether rewards may be rounded.

    Raises:
        CollectError: the schema's rewards are float32, which would change one.
    """
    count = len(episodes)
    numbers = np.arange(count, dtype=np.int64) * stride + first
    tables = [episode.data for episode in episodes]
    data = tables[0]
    if count > 1:  # one alone, as pictures mostly come, is not copied
        data = {name: np.concatenate([table[name] for table in tables]) for name in data}
    if IS_INIT in schema:
        data[IS_INIT] = data[IS_INIT][:, None]
    else:
        del data[IS_INIT]
    data["reward"] = _rewards(data["reward"], schema["reward"].numpy_dtype, rounds=rounds)
    lengths = np.array([episode.steps for episode in episodes], np.int64)
    cut = np.array([episode.is_cut for episode in episodes])
    return Block(data, lengths, numbers, np.ones(count, bool), np.ones(count, bool), cut=cut)


def _rewards(rewards: NDArray[Any], dtype: np.dtype[Any], *, rounds: bool) -> NDArray[Any]:
    if dtype == np.float32 and not rounds and not fits_float32(rewards):
        with np.errstate(over="ignore"):
            changed = rewards[rewards.astype(np.float32) != rewards]
        raise CollectError(
            f"reward {changed[0]} would be rounded: the dataset's rewards are float32, as the first ones could be",
            hint="collect again with --reward-dtype float64, or with float32 to have them rounded",
        )
    return rewards.astype(dtype, copy=False)


def _first(counts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return [n] how many steps of each environment are among the earliest ``limit``."""
    whole = 0
    while np.minimum(counts, whole + 1).sum() <= limit and whole < counts.max():
        whole += 1
    taken = np.minimum(counts, whole)
    more = np.flatnonzero(counts > whole)[: limit - int(taken.sum())]
    taken[more] += 1
    return taken


def _whole(steps: Steps, spans: Sequence[Span]) -> Iterator[Episode]:
    """Yield the episodes that steps hold from reset to end; their arrays are parts of one copy per field."""
    if not spans:
        return
    env, start, stop = np.array(spans).T
    ends, number = np.cumsum(stop - start), np.arange(len(spans))
    begins = ends - (stop - start)
    rows = np.repeat(env, stop - start), np.arange(ends[-1]) + np.repeat(start - begins, stop - start)
    step = {name: array[rows] for name, array in steps.step.items()}
    after = {name: array[rows] for name, array in steps.next.items()}
    # An episode has an observation more than steps: in the arrays, that is the first one of the next episode.
    sizes = stop - start + 1
    rows = np.repeat(env, sizes), np.arange(ends[-1] + len(spans)) + np.repeat(start - begins - number, sizes)
    observation = {name: array[rows] for name, array in steps.observation.items()}
    for (lane, _, until), last in zip(spans, (ends + number).tolist(), strict=True):
        final = steps.final[lane, until - 1]
        for name, array in observation.items():
            array[last : last + 1] = final[name]  # as rows: a text would become an array of its own
    for place, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        yield Episode(
            {name: array[begin + place : end + place + 1] for name, array in observation.items()},
            {name: array[begin:end] for name, array in step.items()},
            {name: array[begin:end] for name, array in after.items()},
        )


def _extend(running: _Running, steps: Steps, env: int, start: int, stop: int) -> None:
    # Copies: a slice would keep the steps of all other environments in memory while the episode runs.
    columns = (steps.observation, steps.step, steps.next)
    running.pieces.append(
        Piece(*({name: rows[env, start:stop].copy() for name, rows in table.items()} for table in columns))
    )
    running.steps += stop - start


def _close(running: _Running, *, is_cut: bool = False) -> Episode:
    observation, step, after = (_listed(tables) for tables in zip(*running.pieces, strict=True))
    for name, rows in observation.items():
        rows.append(running.now[name][None].astype(rows[0].dtype, copy=False))
    return Episode(_concatenated(observation), _concatenated(step), _concatenated(after), is_cut)


def _listed(tables: Sequence[Arrays]) -> dict[str, list[NDArray[Any]]]:
    return {name: [table[name] for table in tables] for name in tables[0]}


def _concatenated(table: Mapping[str, list[NDArray[Any]]]) -> Arrays:
    return {name: np.concatenate(rows) for name, rows in table.items()}
