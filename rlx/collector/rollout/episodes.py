"""Assembly of episodes from the steps of parallel environments, and the schema of their dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.collector.environment.intake import cast
from rlx.collector.environment.space import Arrays, leaves, schema_of
from rlx.collector.environment.vector import VectorEnvironment
from rlx.collector.rollout.steps import IS_INIT, Steps
from rlx.errors import CollectError
from rlx.schema import Field, Role, Schema

REWARDS = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The layout of some steps.

    Args:
        schema: every field that is kept; rewards are float64 where float32 would change one.
    """

    schema: Schema
    infos: Mapping[str, bool]


def layout_of(steps: Steps, environment: VectorEnvironment, infos: Mapping[str, bool]) -> StepLayout:
    """Return the layout of steps.

    ``is_init`` is a field where the policy has a state: a module that is trained on slices reads it.
    """
    schema = schema_of(environment.observation_space, environment.action_space)
    states = _new(steps.observation, leaves(environment.observation_space, "observation"))
    step = _new(steps.step, [*leaves(environment.action_space, "action"), IS_INIT])
    after = _new(steps.next, schema)
    if twice := sorted(states.keys() & step.keys() | states.keys() & after.keys() | step.keys() & after.keys()):
        raise CollectError(
            f"policy writes {twice[0]!r} both at the root and under 'next': a dataset holds one of them",
            hint=f"`drop` next/{twice[0]}",
        )
    fields = {
        **_fields(states, Role.OBSERVATION),
        **_fields(step, Role.STEP),
        **_fields(after, Role.NEXT),
        **({IS_INIT: Field("bool", (1,), Role.STEP)} if states else {}),
    }
    made = np.arange(steps.length) < steps.counts[:, None]
    dtype = REWARDS[0] if fits_float32(steps.next["reward"][made]) else REWARDS[1]
    return StepLayout(_with_reward(Schema({**schema.fields, **fields}), dtype), infos)


def agreed(layouts: Sequence[StepLayout], reward: str | None = None) -> StepLayout:
    """Return the common layout of the steps of all workers.

    Args:
        layouts: one per worker, at least one.
        reward: dtype of rewards; by default the narrowest that holds all.
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
    return StepLayout(schemas[0], infos)


def fits_float32(rewards: NDArray[Any]) -> bool:
    """Return whether float32 holds these rewards exactly, including NaN and infinities."""
    found = cast(rewards, np.dtype(np.float32))
    return not (found.changed | found.rounded).any()


def _with_reward(schema: Schema, dtype: str) -> Schema:
    return Schema({**schema.fields, "reward": replace(schema["reward"], dtype=dtype)})


def _new(columns: Arrays, known: Any) -> Arrays:
    return {name: rows for name, rows in columns.items() if name not in known}


def _fields(columns: Arrays, role: Role) -> dict[str, Field]:
    return {name: Field.of(rows[0], role) for name, rows in columns.items()}


class Piece(NamedTuple):
    """Consecutive steps [L, ...] of an episode, with L + 1 observations, by name of the field; see ``Steps``."""

    observation: Arrays
    step: Arrays
    next: Arrays


@dataclass(slots=True)
class _Running:
    """An episode so far: its pieces, each after the one before."""

    pieces: list[Piece] = field(default_factory=list)
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Episodes from their resets, one after the other, by name of the field; see ``Steps``.

    Args:
        observation: [S + N, ...]: each episode has one more than steps.
        step: [S, ...].
        next: [S, ...].
        lengths: [N] steps of each episode, at least 1.
        is_cut: whether they were cut before the environment ended them; their last steps are flagged truncated.
    """

    observation: Arrays
    step: Arrays
    next: Arrays
    lengths: NDArray[np.int64]
    is_cut: bool = False

    @property
    def steps(self) -> int:
        """Number of steps S."""
        return len(self.next["reward"])

    def some(self, first: int, stop: int) -> Ended:
        """Return the episodes from ``first`` to before ``stop``."""
        begin, end = int(self.lengths[:first].sum()), int(self.lengths[:stop].sum())
        return Ended(
            {name: rows[begin + first : end + stop] for name, rows in self.observation.items()},
            {name: rows[begin:end] for name, rows in self.step.items()},
            {name: rows[begin:end] for name, rows in self.next.items()},
            self.lengths[first:stop],
            self.is_cut,
        )

    def each(self) -> list[Ended]:
        """Return every episode by itself."""
        return [self.some(number, number + 1) for number in range(len(self.lengths))]


class Episodes:
    """Episodes assembled from steps, in the order in which they end; at one time, by number of the environment."""

    def __init__(self, num_envs: int) -> None:
        self._running = [_Running() for _ in range(num_envs)]

    @property
    def running_steps(self) -> int:
        """Steps of the episodes that have not ended."""
        return sum(running.steps for running in self._running)

    def state(self) -> list[Any]:
        """Return the running episodes, as numbers and arrays."""
        return [[running.steps, [list(piece) for piece in running.pieces]] for running in self._running]

    def load_state(self, state: Sequence[Any]) -> None:
        """Continue from a state of ``state``."""
        self._running = [_Running([Piece(*piece) for piece in pieces], steps) for steps, pieces in state]

    def add(self, steps: Steps, limit: int | None = None) -> list[Ended]:
        """Return the episodes that these steps end, together; an empty list if they end none.

        Args:
            limit: maximum number of episodes: the earliest, and at equal times those of the first environments.
        """
        counts = (steps.counts if limit is None else _first(steps.counts, limit)).tolist()
        starts = [0] * len(counts)
        spans = []  # of the episodes that end: environment, and their first and last step here
        for at, env in sorted((at, env) for env, at in steps.final if at < counts[env]):
            spans.append((env, starts[env], at))
            starts[env] = at + 1
        ended = [self._taken(steps, spans)] if spans else []
        for env, (start, stop) in enumerate(zip(starts, counts, strict=True)):
            if start:
                self._running[env] = _Running()
            if stop > start:
                _extend(self._running[env], steps, env, start, stop)
        return ended

    def cut(self) -> list[Ended]:
        """Return the running episodes, truncated, by number of the environment."""
        cut = []
        for running in self._running:
            if running.steps:
                running.pieces[-1].next["truncated"][-1] = True
                cut.append(
                    Ended(
                        _concatenated([*_inner(running.pieces[:-1]), running.pieces[-1].observation]),
                        _concatenated([piece.step for piece in running.pieces]),
                        _concatenated([piece.next for piece in running.pieces]),
                        np.array([running.steps]),
                        is_cut=True,
                    )
                )
        self._running = [_Running() for _ in self._running]
        return cut

    def _taken(self, steps: Steps, spans: Sequence[tuple[int, int, int]]) -> Ended:
        env, start, last = np.array(spans).T
        lengths = last + 1 - start
        begins, number = np.cumsum(lengths) - lengths, np.arange(len(spans))
        rows = np.repeat(env * steps.length + start - begins, lengths) + np.arange(lengths.sum())
        step = {name: _flat(array).take(rows, 0) for name, array in steps.step.items()}
        after = {name: _flat(array).take(rows, 0) for name, array in steps.next.items()}
        # An episode has an observation more than steps: in the arrays, that is the first one of the next episode.
        rows = np.repeat(env * (steps.length + 1) + start - begins - number, lengths + 1)
        rows += np.arange(len(rows))
        observation = {name: _flat(array).take(rows, 0) for name, array in steps.observation.items()}
        for (lane, _, at), place in zip(spans, (begins + lengths + number).tolist(), strict=True):
            final = steps.final[lane, at]
            for name, array in observation.items():
                array[place : place + 1] = final[name]  # as rows: a text would become an array of its own
        begun = [place for place, (lane, first, _) in enumerate(spans) if not first and self._running[lane].steps]
        if not begun:
            return Ended(observation, step, after, lengths)
        pieces = [self._running[env[place]].pieces for place in begun]
        lengths[begun] += [self._running[env[place]].steps for place in begun]
        cuts = begins[begun]
        return Ended(
            _spliced(observation, cuts + begun, [_inner(each) for each in pieces]),
            _spliced(step, cuts, [[one.step for one in each] for each in pieces]),
            _spliced(after, cuts, [[one.next for one in each] for each in pieces]),
            lengths,
        )


def first_of(waiting: Sequence[Ended], count: int) -> tuple[list[Ended], list[Ended]]:
    """Return the first ``count`` episodes, and the others."""
    ready, others = [], []
    for ended in waiting:
        taken = min(count, len(ended.lengths))
        count -= taken
        if taken:
            ready.append(ended.some(0, taken))
        if taken < len(ended.lengths):
            others.append(ended.some(taken, len(ended.lengths)))
    return ready, others


def join(ended: Sequence[Ended], schema: Schema, first: int, stride: int = 1) -> Block:
    """Return one block of these episodes, numbered ``first``, ``first + stride``, ...

    Args:
        ended: at least one; without ``is_init``, which is made where the schema has it.
        schema: of the block.
        first: number of the first episode.
        stride: between the numbers.
    """
    data = _concatenated([{**one.observation, **one.step, **one.next} for one in ended])
    lengths = np.concatenate([one.lengths for one in ended])
    if IS_INIT in schema:
        data[IS_INIT] = np.zeros((lengths.sum(), 1), bool)
        data[IS_INIT][np.cumsum(lengths) - lengths] = True
    cut = np.repeat([one.is_cut for one in ended], [len(one.lengths) for one in ended])
    numbers, always = np.arange(len(lengths)) * stride + first, np.ones(len(lengths), bool)
    return Block(data, lengths, numbers, always, always, cut=cut)


def rewards_as(dtype: np.dtype[Any], rewards: NDArray[Any], *, rounds: bool) -> NDArray[Any]:
    """Return rewards of this dtype; raise CollectError if that changes one, unless it may be rounded."""
    if rewards.dtype == dtype:
        return rewards
    found = cast(rewards, dtype)
    if found.changed.any():
        raise CollectError(
            f"reward {rewards[found.changed][0]} would become {found.values[found.changed][0]} in {dtype}",
            hint="collect again with `reward_dtype` float64",
        )
    if found.rounded.any() and not rounds:
        raise CollectError(
            f"reward {rewards[found.rounded][0]} would be rounded: the dataset's rewards are float32, as the first "
            "ones could be",
            hint="collect again with `reward_dtype` float64, or with float32 to have them rounded",
        )
    return found.values


def _first(counts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return [n] how many steps of each environment are among the earliest ``limit``."""
    whole = 0
    while np.minimum(counts, whole + 1).sum() <= limit and whole < counts.max():
        whole += 1
    taken = np.minimum(counts, whole)
    more = np.flatnonzero(counts > whole)[: limit - int(taken.sum())]
    taken[more] += 1
    return taken


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])  # -1 is ambiguous where rows are empty


def _extend(running: _Running, steps: Steps, env: int, start: int, stop: int) -> None:
    # Copies: a slice would keep the steps of all other environments in memory while the episode runs.
    running.pieces.append(
        Piece(
            {name: rows[env, start : stop + 1].copy() for name, rows in steps.observation.items()},
            {name: rows[env, start:stop].copy() for name, rows in steps.step.items()},
            {name: rows[env, start:stop].copy() for name, rows in steps.next.items()},
        )
    )
    running.steps += stop - start


def _inner(pieces: Sequence[Piece]) -> list[Arrays]:
    """Return the observations of pieces without the last one of each, which is the first of the next piece."""
    return [{name: rows[:-1] for name, rows in piece.observation.items()} for piece in pieces]


def _spliced(table: Arrays, cuts: NDArray[np.int64], pieces: Sequence[Sequence[Arrays]]) -> Arrays:
    ends = [*cuts[1:].tolist(), None]
    found = {}
    for name, rows in table.items():
        parts = [rows[: cuts[0]]]
        for cut, end, each in zip(cuts.tolist(), ends, pieces, strict=True):
            parts += [piece[name] for piece in each]
            parts.append(rows[cut:end])
        found[name] = np.concatenate(parts)
    return found


def _concatenated(tables: Sequence[Arrays]) -> Arrays:
    if len(tables) == 1:  # one alone, as pictures mostly come, is not copied
        return dict(tables[0])
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
