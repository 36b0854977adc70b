"""Goals for goal-conditioned learners: states that a step's trajectory reaches later, or any, and their rewards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.storage.dataset import DatasetTrajectoryIndex
from rlx.buffer.storage.step_schema import with_rows
from rlx.buffer.transform.group import Group
from rlx.errors import SchemaMismatchError, TransformError
from rlx.numbers import check_real, check_whole
from rlx.transform.multi_step import NStep, ReturnToGo
from rlx.transform.protocol import Neighbours, Random, Reader, as_path, wanted

RewardFunction = Callable[[TensorDictBase], torch.Tensor]
_KINDS = ("current", "geometric", "uniform", "random")
_CURRENT, _GEOMETRIC, _UNIFORM, _RANDOM = range(4)
_ROUNDING = 1e-9  # of a sum of shares


@dataclass(frozen=True)
class Goals(Random):
    """Transform that gives each step goals: a mixture of states, as OGBench's ``GCDataset`` draws them.

    A state is what a step observed, or what its trajectory's last step led to, if that was recorded. Goals of a batch
    are drawn together, and so that a resumed run has the same. After ``FrameStack``, goals are stacked.

    Args:
        keys: the key that each goal is put at, and the key of the state that it is taken from. Several are of one
            state. A goal is also set under ``next`` if it is stored there.
        current: share of the steps whose goal is their own state.
        geometric: share of those whose goal is a later state of their trajectory, a number of steps ahead that is
            geometric with mean 1 / (1 - discount), and the last state at most.
        uniform: share of those whose goal is a later state of their trajectory, all equally likely.
        random: share of those whose goal is any stored step's state. Shares below a sum of 1 leave the remaining steps
            their stored goals.
        discount: of ``geometric``.
        reward_fn: returns rewards [n] or [n, 1] of steps [n] with their new goals, in one call; without it, rewards
            stay.
        reward_key: where rewards are written.
        steps_key: where to put the number of steps from a state to its goal: int64 [n, 1], 0 for the state itself, -1
            for another one at random. Stored goals have -2.
        seed: random seed; random by default.

    Raises:
        TransformError: shares are out of range, a key is not stored, ``reward_fn`` or goals have other shapes than
            stored, or with ``reward_fn`` rewards were summed before.

    Example:
        >>> data = rlx.open("cartpole")
        >>> goals = Goals({"goal": "observation"}, current=0.2, geometric=0.5, random=0.3, steps_key="steps", seed=0)
        >>> batch = rlx.ReplayBuffer(storage=data, transform=goals, batch_size=64).sample()
        >>> at_goal = batch["steps"].flatten() == 0
        >>> bool((batch["goal"][at_goal] == batch["observation"][at_goal]).all())
        True
    """

    keys: Mapping[NestedKey, NestedKey]
    current: float = 0.0
    geometric: float = 0.0
    uniform: float = 0.0
    random: float = 0.0
    discount: float = 0.99
    reward_fn: RewardFunction | None = None
    reward_key: NestedKey = ("next", "reward")
    steps_key: NestedKey | None = None
    seed: int = field(default_factory=lambda: secrets.randbits(63))

    def __post_init__(self) -> None:
        if not (isinstance(self.keys, Mapping) and self.keys):
            raise TransformError(f"keys {self.keys!r}: expected {{goal: state}}, such as {{'goal': 'observation'}}")
        for name in _KINDS:
            check_real(name, getattr(self, name), 0, 1, error=TransformError)
        check_real("discount", self.discount, 0, 1, error=TransformError)
        check_whole("seed", self.seed, None, error=TransformError)
        if not 0 < sum(self._shares) <= 1 + _ROUNDING:
            raise TransformError(f"shares sum to {sum(self._shares):g}: expected above 0, and 1 at most")

    @property
    def _shares(self) -> list[float]:
        return [getattr(self, name) for name in _KINDS]

    def check_earlier(self, earlier: list[Any]) -> None:
        """Raise TransformError if an earlier transform sums rewards that this one computes anew."""
        sums = [part for part in earlier if isinstance(part, NStep | ReturnToGo)]
        if self.reward_fn is not None and sums:
            raise TransformError(f"Goals after {type(sums[0]).__name__}: rewards of other goals would be summed")

    def around(self, rows: Rows, keys: Keys | None, below: Reader) -> TensorDictBase:
        """Return the steps at these rows with their goals."""
        goals = [as_path(goal) for goal in self.keys]
        made = [*goals, *(("next", *goal) for goal in goals)]
        added = [*made, *([] if self.steps_key is None else [as_path(self.steps_key)])]
        is_rewarded = self._is_rewarded(keys)
        if not (is_rewarded or any(wanted(path, keys) for path in added)):
            return below.read(rows, keys)  # also where a later mixture asks for the states of other steps
        # Only the user's function knows which keys it needs.
        batch = below.read(rows, None if keys is None or is_rewarded else [*keys, *made])
        drawn = self._next_chance().uniform(self.seed, len(rows), 2)
        has_finals = self._has_finals(batch, keys, below, rows)
        is_new, source, is_final, ahead = self._chosen(drawn, rows, cast("_Stored", below.index), has_finals=has_finals)
        found = _states(below, [as_path(state) for state in self.keys.values()], source[is_new], is_final[is_new])
        for goal, states in zip(self.keys, found, strict=True):
            self._put(batch, as_path(goal), states, is_new)
        if self.steps_key is not None:
            batch.set(self.steps_key, torch.from_numpy(ahead[:, None]).to(batch.device or "cpu"))
        if self.reward_fn is not None and is_rewarded and is_new.any():
            rewarded(batch, self.reward_fn, self.reward_key, is_new)
        return batch

    def plan(self, group: Group, drawn: Sequence[Self]) -> bool:
        """Add goals to batches, for each of which one of ``drawn`` has the random numbers.

        Return whether this is possible for several at once, with the result of ``around`` for each.
        """
        goals = {as_path(goal): as_path(state) for goal, state in self.keys.items()}
        made = [*goals, *([] if self.steps_key is None else [as_path(self.steps_key)])]
        is_rewarded = self._is_rewarded(group.keys)
        is_stored = all(map(group.storage.has, goals.values()))
        has_others = sum(self._shares) < 1 - _ROUNDING or any(
            map(group.has, [*made, *(("next", *key) for key in goals)])
        )
        if not is_stored or has_others or (is_rewarded and (group.keys is not None or group.rows.ndim > 2)):
            return False
        if not (is_rewarded or any(wanted(path, group.keys) for path in made)):
            return True
        rows, count = group.rows.reshape(-1), group.rows[0].size
        chances = np.concatenate([one._next_chance().uniform(self.seed, count, 2) for one in drawn])
        has_finals = all(group.storage.has(("next", *state)) for state in goals.values())
        index: Any = group.storage.index()
        _, source, is_final, ahead = self._chosen(chances, rows, index, has_finals=has_finals)
        places = group.storage.dataset.steps.states(source, is_final)
        for goal, state in goals.items():
            if wanted(goal, group.keys):
                group.add_states(goal, state, source, places)
        if self.steps_key is not None and wanted(self.steps_key, group.keys):
            group.marks[as_path(self.steps_key)] = ahead[:, None]
        if is_rewarded and self.reward_fn is not None:
            is_new = np.ones(count, bool)
            group.after.append(partial(rewarded, reward_fn=self.reward_fn, key=self.reward_key, is_new=is_new))
        return True

    def _is_rewarded(self, keys: Keys | None) -> bool:
        return self.reward_fn is not None and wanted(self.reward_key, keys)

    def _chosen(
        self, drawn: NDArray[np.float64], rows: Rows, index: _Stored, *, has_finals: bool
    ) -> tuple[NDArray[np.bool_], Rows, NDArray[np.bool_], Rows]:
        """Return [n] whether steps get new goals, whose states these are, whether the one that a step led to, and what
        ``steps_key`` says.

        Args:
            drawn: [n, 2] random numbers.
            has_finals: whether states that a trajectory's last step led to may be goals, if they were recorded.
        """
        kind = self._edges().searchsorted(drawn[:, 0], side="right")
        remaining = index.remaining(rows)
        last = remaining - (~_final_recorded(index, rows) if has_finals else 1)
        ahead = self._ahead(kind, drawn[:, 1], last)
        source: Rows = index.after(rows, np.minimum(ahead, remaining - 1))
        is_new, is_final = kind < len(_KINDS), ahead == remaining
        if (any_step := kind == _RANDOM).any():
            source[any_step] = index.row_at((drawn[any_step, 1] * len(index)).astype(np.int64))
            ahead[any_step] = np.where(source[any_step] == rows[any_step], 0, -1)
        return is_new, source, is_final, np.where(is_new, ahead, -2)

    def _edges(self) -> NDArray[np.float64]:
        edges = np.cumsum(self._shares)
        return np.where(edges > 1 - _ROUNDING, 1.0, edges)

    def _ahead(self, kind: Rows, place: NDArray[np.float64], last: Rows) -> Rows:
        """Return [n] how many steps ahead of its own state each goal is, ``last`` at most; 0 of other kinds."""
        ahead = np.zeros_like(last)
        later = (kind == _UNIFORM) & (last > 0)
        ahead[later] = 1 + np.minimum((place[later] * last[later]).astype(np.int64), last[later] - 1)
        later = (kind == _GEOMETRIC) & (last > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            waits = np.floor(np.log1p(-place[later]) / np.log(self.discount)) if self.discount < 1 else np.inf
        ahead[later] = 1 + np.minimum(waits, last[later] - 1).astype(np.int64)
        return ahead

    def _has_finals(self, batch: TensorDictBase, keys: Keys | None, below: Reader, rows: Rows) -> bool:
        """Return whether all states are stored under ``next``, too."""
        lacking = [
            path
            for path in (("next", *as_path(state)) for state in self.keys.values())
            if batch.get(path, None) is None
        ]
        if lacking and keys is not None:  # maybe only because it was not asked for
            one = below.read(rows[:1], lacking)
            lacking = [path for path in lacking if one.get(path, None) is None]
        return not lacking

    def _put(self, batch: TensorDictBase, goal: tuple[str, ...], states: torch.Tensor, is_new: NDArray[Any]) -> None:
        for path in (goal, ("next", *goal)):
            old = batch.get(path, None)
            if old is None and path != goal:
                continue
            if old is not None and old.shape[1:] != states.shape[1:]:
                raise SchemaMismatchError(
                    f"{'/'.join(path)} is {list(old.shape[1:])}, its states are {list(states.shape[1:])}: expected one "
                    "shape"
                )
            if is_new.all():
                batch.set(path, states if old is None else states.to(old.dtype, copy=path != goal))
            elif old is None:
                raise TransformError(
                    f"{'/'.join(goal)} is not stored: expected shares with a sum of 1, found {sum(self._shares):g}"
                )
            else:
                at = torch.from_numpy(np.flatnonzero(is_new)).to(old.device)
                batch.set(path, with_rows(old, at, states))


class _Stored(Neighbours, Protocol):
    """An index of all stored steps."""

    def __len__(self) -> int: ...

    def row_at(self, ordinals: Rows) -> Rows:
        """Return [n] the rows of the 0th, 1st, ... stored step."""


def _final_recorded(index: _Stored, rows: Rows) -> NDArray[np.bool_]:
    """Return [n] whether the last observation of each step's trajectory was recorded."""
    if not isinstance(index, DatasetTrajectoryIndex):
        return np.ones(len(rows), bool)
    recorded: NDArray[np.bool_] = index.table.final_recorded[index.locate(rows)[0]]
    return recorded


def _states(
    below: Reader, keys: Sequence[tuple[str, ...]], rows: Rows, is_final: NDArray[np.bool_]
) -> list[torch.Tensor]:
    """Return, of each key, [n, ...] what the steps at rows observed, or where ``is_final``, what they led to."""
    found = below.read(rows, keys)
    last = np.flatnonzero(is_final)
    led_to = below.read(rows[last], [("next", *key) for key in keys]) if len(last) else None
    made = []
    for key in keys:
        states: torch.Tensor | None = found.get(key, None)
        if states is None:
            raise TransformError(f"{'/'.join(key)} is not stored: goals are taken from it")
        if led_to is not None:
            at = torch.from_numpy(last).to(states.device)
            states = with_rows(states, at, led_to.get(("next", *key)))
        made.append(states)
    return made


def rewarded(batch: TensorDictBase, reward_fn: RewardFunction, key: NestedKey, is_new: NDArray[np.bool_]) -> None:
    """Set the rewards of the steps of a batch that have new goals, by one call of a function.

    Raises:
        SchemaMismatchError: it gave another number of rewards.
    """
    stored = batch.get(key)
    at = torch.from_numpy(np.flatnonzero(is_new)).to(stored.device)
    rewards = reward_fn(batch if len(at) == len(stored) else batch[at])
    expected = torch.Size([len(at), *stored.shape[1:]])
    if rewards.numel() != expected.numel():
        raise SchemaMismatchError(f"reward_fn gave {list(rewards.shape)}: expected {list(expected)}")
    batch.set(key, stored.index_copy(0, at, rewards.reshape(expected).to(stored.dtype)))
