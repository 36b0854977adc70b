"""Hindsight experience replay (Andrychowicz et al., 2017): steps relabelled with goals achieved later."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Rows, TrajectoryIndex
from rlx.buffer.replay_buffer import BufferOptions
from rlx.buffer.sampler.draws import Draws
from rlx.buffer.storage.step_schema import with_rows
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform.compose import Compose, Transform, reader, split
from rlx.buffer.transform.goals import Goals, RewardFunction, rewarded
from rlx.errors import SamplingError, SchemaMismatchError
from rlx.numbers import check_real
from rlx.transform.multi_step import NStep, ReturnToGo
from rlx.transform.protocol import as_path, needs_neighbours

# Position of a step's goal between its first and last candidate, 0 to 1; NaN if the stored goal is kept.
_PLACES = ("hindsight", "places")
_ROUNDING = 1e-9  # of a sum of shares


class HindsightStrategy(StrEnum):
    """Steps from which a new goal is taken.

    Attributes:
        FUTURE: the step itself, and later steps of its episode.
        FINAL: the last step of its episode.
        EPISODE: any step of its episode.
        RANDOM: any step.

    Example:
        >>> rlx.buffer.HindsightStrategy("future") is rlx.buffer.HindsightStrategy.FUTURE
        True
    """

    FUTURE = "future"
    FINAL = "final"
    EPISODE = "episode"
    RANDOM = "random"


class HERReplayBuffer(TensorDictReplayBuffer):
    """``TensorDictReplayBuffer`` that relabels a fraction of every batch with achieved goals and their rewards.

    The new goal of a step is one that a step chosen by ``strategy`` achieved: ``achieved_goal_key`` under ``next``, or
    at the root if ``next`` lacks it. ``reward_fn`` computes the new reward; flags are unchanged. Goals are relabelled
    after frame stacking and before all other transforms.

    Args:
        reward_fn: returns rewards [n] or [n, 1] of steps [n] with their new goals.
        her_ratio: fraction of every batch that gets a new goal, rounded down to whole steps.
        strategy: which steps goals are taken from; or a mixture, the shares of ``current``, ``geometric``, ``uniform``
            and ``random`` goals of ``rlx.buffer.Goals``, with a sum of 1. Each step is then relabelled with a chance of
            ``her_ratio``.
        discount: of the ``geometric`` goals of a mixture.
        goal_key: the desired goal, or a list of several; also set under ``next`` if it is stored there.
        achieved_goal_key: the achieved goal, of the same shape, or a list with that of each desired goal. If stacked by
            ``FrameStack``, the new goals are stacks.
        reward_key: where the new reward is written.
        end_key: flag of an episode's last step; by default, trajectory ids separate episodes if they are stored,
            otherwise ("next", "done").
        seed: random seed of the choice of goals; random by default.
        priority_key: as for ``TensorDictReplayBuffer``.
        options: arguments of ``ReplayBuffer``, except samplers of slices, and ``NStep`` and ``ReturnToGo``, which sum
            rewards of the stored goals.

    Raises:
        ValueError: ``her_ratio`` is out of range, ``strategy`` is unknown, or a transform sums rewards or comes before
            a ``FrameStack``.

    Example:
        >>> from tensordict import TensorDict
        >>> place = torch.arange(5.0)[:, None]
        >>> walk = TensorDict({"position": place[:-1], "goal": torch.full((4, 1), 9.0)}, [4])
        >>> walk["next"] = TensorDict({"position": place[1:], "reward": torch.zeros(4, 1)}, [4])
        >>> walk["next", "done"] = torch.tensor([[False], [False], [False], [True]])
        >>> buffer = HERReplayBuffer(
        ...     lambda steps: (steps["next", "position"] == steps["goal"]).float(),
        ...     her_ratio=1.0,
        ...     strategy="final",
        ...     goal_key="goal",
        ...     achieved_goal_key="position",
        ...     batch_size=3,
        ... )
        >>> rows = buffer.extend(walk)
        >>> buffer.sample()["goal"].flatten()
        tensor([4., 4., 4.])
    """

    def __init__(
        self,
        reward_fn: RewardFunction,
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str | Mapping[str, float] = HindsightStrategy.FUTURE,
        discount: float = 0.99,
        goal_key: NestedKey | list[NestedKey] = "desired_goal",
        achieved_goal_key: NestedKey | list[NestedKey] = "achieved_goal",
        reward_key: NestedKey = ("next", "reward"),
        end_key: NestedKey | None = None,
        seed: int | None = None,
        priority_key: NestedKey = "td_error",
        **options: Unpack[BufferOptions],
    ) -> None:
        check_real("her_ratio", her_ratio, 0, 1)
        transform = options.get("transform")
        _check([] if transform is None else Compose(transform).transforms)
        self.reward_fn = reward_fn
        self.her_ratio = her_ratio
        self.goal_key, self.achieved_goal_key, self.reward_key = goal_key, achieved_goal_key, reward_key
        self.end_key = end_key
        self._goal_draws = Draws(seed, None)
        goals = goal_key if isinstance(goal_key, list) else [goal_key]
        achieved = achieved_goal_key if isinstance(achieved_goal_key, list) else [achieved_goal_key]
        if len(goals) != len(achieved) or not goals:
            raise ValueError(f"{len(goals)} goal_key, {len(achieved)} achieved_goal_key: expected one for each goal")
        self._goal_keys = dict(zip(goals, achieved, strict=True))
        self.strategy: HindsightStrategy | Mapping[str, float]
        if isinstance(strategy, Mapping):
            self.strategy = dict(strategy)
            mixture = self._mixture(discount, check_real("her_ratio", her_ratio, 0, 1))
            before, rest = split([] if transform is None else Compose(transform).transforms)
            options["transform"] = Compose(*before, mixture, *rest)
        else:
            self.strategy = HindsightStrategy(strategy)
        super().__init__(priority_key=priority_key, **options)

    def _mixture(self, discount: float, ratio: float) -> Goals:
        assert isinstance(self.strategy, Mapping)
        if unknown := sorted({*self.strategy} - {"current", "geometric", "uniform", "random"}):
            raise ValueError(f"strategy {unknown[0]!r} in a mixture: expected current, geometric, uniform or random")
        if abs(sum(self.strategy.values()) - 1) > _ROUNDING:
            raise ValueError(f"strategy {self.strategy}: expected shares with a sum of 1")
        shares: dict[str, Any] = {name: share * ratio for name, share in self.strategy.items()}
        return Goals(
            self._goal_keys,
            **shares,
            discount=discount,
            reward_fn=self.reward_fn,
            reward_key=self.reward_key,
            seed=self._goal_draws.seed,
        )

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform before the index-th; with ``invert`` its two directions are swapped. Returns the buffer.

        Raises:
            ValueError: the transform sums rewards, or would come before a ``FrameStack``.
        """
        _check(Compose(*self._transform.transforms).insert(index, transform).transforms)
        return super().insert_transform(index, transform, invert=invert)

    def _draw(self, size: int) -> Draw:
        if self._sampler.draws_slices:
            raise SamplingError(f"hindsight relabels single steps: expected a sampler of steps, found {self._sampler}")
        draw = super()._draw(size)
        if _PLACES in draw.info or isinstance(self.strategy, Mapping):
            return draw  # a restored buffer drew it
        with self._sampler_lock:
            rng = self._goal_draws.next()
        places = np.full(len(draw.rows), np.nan)
        places[rng.permutation(len(places))[: int(len(places) * self.her_ratio)]] = 0
        places += rng.random(len(places))
        return replace(draw, info={**draw.info, _PLACES: places})

    def _info(self, draw: Draw) -> dict[Any, Any]:
        return {key: value for key, value in super()._info(draw).items() if key != _PLACES}

    def _gives_leaves(self, transforms: Sequence[Any]) -> bool:  # noqa: ARG002 (goals are changed in a TensorDict)
        return False

    def _gather(self, draw: Draw) -> TensorDictBase:
        for key in (*self._goal_keys, *self._goal_keys.values(), self.reward_key):
            if not self._storage.has(key):
                raise SamplingError(f"{'/'.join(as_path(key))!r} is not stored: hindsight needs goals and rewards")
        steps: TensorDictBase = super()._gather(draw)
        if isinstance(self.strategy, Mapping):
            return steps
        is_new = ~np.isnan(draw.info[_PLACES])
        if is_new.any():
            rows = self._goal_rows(draw.rows[is_new], draw.info[_PLACES][is_new])
            around = self._transform.around
            for goal, achieved in self._goal_keys.items():
                led_to = ("next", *as_path(achieved))
                source = led_to if self._storage.has(led_to) else achieved
                goals = self._storage.get(rows, [source]).get(source)
                if around and goals.shape[1:] != steps.get(goal).shape[1:]:  # a stack is expected
                    goals = reader(self._storage, around, self._index).pick(rows, [source]).get(source)
                self._relabel(steps, goal, np.flatnonzero(is_new), goals)
            rewarded(steps, self.reward_fn, self.reward_key, is_new)
        return steps

    def _goal_rows(self, rows: Rows, places: NDArray[np.float64]) -> Rows:
        if self.strategy is HindsightStrategy.RANDOM:
            return self._storage.row_at(_scaled(places, len(self._storage)))
        index = self._index()
        remaining = index.remaining(rows)
        if self.strategy is HindsightStrategy.FINAL:
            return index.after(rows, remaining - 1)
        if self.strategy is HindsightStrategy.FUTURE:
            return index.after(rows, _scaled(places, remaining))
        elapsed = index.elapsed(rows)
        return _moved(index, rows, _scaled(places, elapsed + remaining) - elapsed)

    def _relabel(self, steps: TensorDictBase, goal: NestedKey, changed: Rows, goals: torch.Tensor) -> None:
        at = torch.from_numpy(changed).to(goals.device)
        for key in (goal, ("next", *as_path(goal))):
            old = steps.get(key, None)
            if old is None:
                continue
            if old.shape[1:] != goals.shape[1:]:
                raise SchemaMismatchError(
                    f"goals are {list(old.shape[1:])}, achieved goals are {list(goals.shape[1:])}: expected one shape"
                )
            steps.set(key, with_rows(old, at, goals))

    @property
    def _reads_around(self) -> bool:
        return True  # goals are those of other steps

    def _chosen_index(self) -> TrajectoryIndex:
        return super()._chosen_index() if self.end_key is None else self._storage.index(None, self.end_key)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "goals": self._goal_draws.state_dict()}

    def _restored(self, state: Mapping[str, Any], parts: Callable[[], list[Draw]]) -> None:
        super()._restored(state, parts)
        if "goals" in state:  # not in the checkpoint of a buffer without hindsight
            self._goal_draws.load_state_dict(state["goals"])


def _check(transforms: Sequence[Any]) -> None:
    for part in transforms:
        if isinstance(part, NStep | ReturnToGo):
            raise ValueError(f"{type(part).__name__} would sum rewards of the stored goals, not of the relabelled ones")  # noqa: TRY004
    before, _ = split(transforms)
    if any(not needs_neighbours(part) for part in before):
        raise ValueError("FrameStack: expected it before the other transforms, which come after the goals are changed")


def _scaled(places: NDArray[np.float64], counts: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return [n] places between 0 and 1 as integers from 0 to before counts."""
    scaled: NDArray[np.int64] = np.minimum((places * counts).astype(np.int64), np.asarray(counts) - 1)
    return scaled


def _moved(index: TrajectoryIndex, rows: Rows, steps: NDArray[np.int64]) -> Rows:
    """Return [n] the row ``steps`` after each row, or before it, all of one trajectory."""
    moved = index.after(rows, np.maximum(steps, 0))
    back = np.flatnonzero(steps < 0)
    if len(back):
        width = 1 - int(steps.min())
        moved[back] = index.precede(rows[back], width)[np.arange(len(back)), width - 1 + steps[back]]
    return moved
