"""Samplers of slices: consecutive steps of one trajectory, whatever the order of writing."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import update_wrapper
from typing import Any, Self, SupportsFloat, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey

from rlx.buffer.protocol import Rows, Storage, TrajectoryIndex
from rlx.buffer.sampler.prioritized import PRIORITY_WEIGHT, PrioritizedSampler, Reduction
from rlx.buffer.sampler.slice_starts import (
    Pad,
    Sliced,
    SliceStarts,
    Span,
    SpanOptions,
    Weighting,
    WholeOptions,
    check_options,
    draw_by_rejection,
    first_tries,
    slicing_of,
)
from rlx.buffer.sampler.steps import Epoch, EpochSampler, SeededSampler, check_replacement, stored_steps
from rlx.buffer.sampler.trajectory_weights import TrajectoryDraws, TrajectoryWeights, weights_of
from rlx.errors import SamplingError


class SliceSampler(Sliced, SeededSampler):
    """Sampler of slices with replacement; batches are flat, one slice after the other.

    A slice may start at any step that is followed by enough steps of its trajectory, and all such starts are equally
    likely. If the last step of a slice is neither truncated nor done, the batch flags it as both, and
    ``("collector", "slice_end")`` is True there: the stored flag is ``truncated & ~slice_end``.

    Args:
        num_slices: slices per batch; each has ``batch_size // num_slices`` steps.
        slice_len: steps per slice; a batch has ``batch_size // slice_len`` slices. Either this or ``num_slices``.
        traj_key: key of trajectory ids; by default ("collector", "traj_ids"), "episode" or an end key.
        end_key: flag of a trajectory's last step.
        end_keys: several flags, any of which ends a trajectory. Either this or ``end_key``.
        trajectory_key: another name of ``traj_key``.
        truncated_key: flag to set at the end of a slice, together with its "done"; None sets neither.
        init_key: flag to set at the first step of a slice, if steps have it; None sets none.
        strict_length: all slices have the requested length; otherwise shorter trajectories are drawn whole, and the
            batch is smaller.
        pad_output: shorter slices are padded with their last step, and ``("collector", "mask")`` marks the real steps.
        pad: "right": any step may be the first of a slice, which is padded with its trajectory's last step. "left": any
            step may be the last, and a slice is padded with its trajectory's first step. All slices have the requested
            length, whatever ``strict_length``, and ``("collector", "mask")`` (bool [n]) marks the real steps.
        weighting: "step": all starts are equally likely. "trajectory": all trajectories are equally likely, and all
            starts within one, as in TorchRL; steps of short trajectories are then drawn more often.
        trajectory_weights: a column of a dataset's trajectory table, such as ``length``, or [N] weights: trajectories
            are drawn in proportion to them, and all starts of one are equally likely. Excludes ``weighting``.
        whole_trajectories: a slice is the whole stored part of a trajectory, and all trajectories are equally likely:
            ``num_slices`` trajectories for any ``batch_size``, or with ``slice_len`` only trajectories that are not
            longer.
        start_at_reset: slices start only at the first steps of episodes.
        span: number of steps of a slice that may be before and after its trajectory; these are left out, so that steps
            near an end are drawn as often as others. One number for both sides, a pair, or True for all but one.
        cache_values: accepted for compatibility with TorchRL; no effect.
        replacement: if False, a ``SliceSamplerWithoutReplacement`` is made instead.
        drop_last, shuffle: arguments of that one.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Example:
        >>> sampler = rlx.buffer.SliceSampler(slice_len=8, seed=0)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), sampler=sampler, batch_size=32)
        >>> slices = buffer.sample().reshape(4, 8)
        >>> slices["observation"].shape
        torch.Size([4, 8, 4])
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        traj_key: NestedKey | None = None,
        end_key: NestedKey | None = None,
        end_keys: Sequence[NestedKey] | None = None,
        trajectory_key: NestedKey | None = None,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        pad: Pad | None = None,
        weighting: Weighting = "step",
        trajectory_weights: TrajectoryWeights | None = None,
        whole_trajectories: bool = False,
        start_at_reset: bool = False,
        span: Span = False,
        cache_values: bool = False,
        replacement: bool = True,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_replacement(self, replacement, expected=True, has_epochs=drop_last or not shuffle)
        super().__init__(seed=seed, generator=generator)
        if weighting not in ("step", "trajectory"):
            raise ValueError(f"expected weighting 'step' or 'trajectory', found {weighting!r}")
        if trajectory_weights is not None and weighting != "step":
            raise ValueError(f"weighting {weighting!r}: expected none beside trajectory_weights")
        self.weighting = weighting
        self._weights = trajectory_weights
        self._weighted: tuple[SliceStarts, TrajectoryDraws] | None = None
        self.slicing = slicing_of(
            num_slices=num_slices,
            slice_len=slice_len,
            traj_key=traj_key,
            end_key=end_key,
            end_keys=end_keys,
            trajectory_key=trajectory_key,
            truncated_key=truncated_key,
            init_key=init_key,
            strict_length=strict_length,
            pad_output=pad_output,
            pad=pad,
            whole_trajectories=whole_trajectories,
            start_at_reset=start_at_reset,
            span=span,
            cache_values=cache_values,
        )
        self._starts: SliceStarts | None = None

    def __new__(cls, *_args: Any, replacement: bool = True, **_options: Any) -> Self:
        """Return a new sampler, of another class if it is without replacement."""
        made: Any = cls if replacement or cls is not SliceSampler else SliceSamplerWithoutReplacement
        sampler: Self = super().__new__(made)
        return sampler

    update_wrapper(__new__, __init__, assigned=())  # for its signature

    def __getstate__(self) -> dict[str, Any]:
        # Counts are recomputed elsewhere rather than sent there.
        return self.__dict__ | {"_starts": None, "_weighted": None}

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and the marks of slices.

        Raises:
            SliceTooLongError: no trajectory is that long.
            SamplingError: the storage is empty, ``batch_size`` cannot be divided into the slices, or none fits.
        """
        stored_steps(storage, batch_size)
        slices, slice_len = self.slicing.shape(batch_size)
        index = self.index(storage)
        starts, at_most = self._draw(index, slices, slice_len)
        return self.slicing.cut(storage, index, starts, slice_len, at_most)

    @property
    def position(self) -> tuple[Any, ...]:
        """All that the next batch depends on, its number last."""
        return self.slicing, self.weighting, *super().position

    def upcoming(self, storage: Storage, batch_size: int, count: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]] | None:
        """Return what the next calls of ``sample`` will: rows [count, n], and marks, each [count * n, ...].

        None if batches may differ in size.
        """
        if not self.slicing.is_plain:
            return None
        slices, slice_len = self.slicing.shape(batch_size)
        index = self.index(storage)
        starts = self._drawn_ahead(index, count, slices, slice_len)
        rows, info = self.slicing.cut(storage, index, starts, slice_len)
        return rows.reshape(count, -1), info

    def _draw(self, index: TrajectoryIndex, slices: int, slice_len: int | None) -> tuple[Rows, Rows | None]:
        """Return [slices] starts, and how many steps each slice has at most."""
        return self._drawn(index, self._draws.next(), slices, slice_len)

    @property
    def _draws_any_start(self) -> bool:
        """Whether starts are random steps that pass a check."""
        by_trajectory = self.slicing.whole_trajectories or self.slicing.start_at_reset or self.slicing.span[0]
        return self.weighting == "step" and self._weights is None and not by_trajectory

    def _drawn_ahead(self, index: TrajectoryIndex, count: int, slices: int, slice_len: int | None) -> Rows:
        """Return [count * slices] the starts that the next draws return; most of them are checked at once."""
        starts, found = np.empty((count, slices), np.int64), np.zeros(count, bool)
        if slice_len is not None and self._draws_any_start:
            starts, found = first_tries(index, self._draws.peek(count), self.slicing, slices, slice_len)
        if not found.all():
            for number, rng in enumerate(self._draws.peek(count)):
                if not found[number]:
                    starts[number] = self._drawn(index, rng, slices, slice_len)[0]
        return starts.reshape(-1)

    def _drawn(
        self, index: TrajectoryIndex, rng: np.random.Generator, slices: int, slice_len: int | None
    ) -> tuple[Rows, Rows | None]:
        starts = np.empty(0, np.int64)
        if slice_len is not None and self._draws_any_start:
            starts = draw_by_rejection(index, rng, self.slicing, slices, slice_len)
        if len(starts) == slices:
            return starts, None
        if self._weights is not None:
            counted = self._counted(index, slice_len)
            return counted.within(index, rng, self._trajectories(index, counted).of(rng.random(slices)))
        rest, at_most = self._counted(index, slice_len).draw(index, rng, slices - len(starts), self.weighting)
        return np.concatenate((starts, rest)), at_most

    def _trajectories(self, index: TrajectoryIndex, counted: SliceStarts) -> TrajectoryDraws:
        """Return the draws by weight of the trajectories that have starts."""
        if self._weighted is None or self._weighted[0] is not counted:
            assert self._weights is not None
            weights = weights_of(index, self._weights)
            fits = np.isin(index.trajectories()[0], counted.firsts)
            self._weighted = counted, TrajectoryDraws(weights[fits], counted.counts)
        return self._weighted[1]

    def _counted(self, index: TrajectoryIndex, slice_len: int | None) -> SliceStarts:
        known = self._starts
        if known is None or (known.generation, known.slice_len) != (index.generation, slice_len):
            self._starts = known = SliceStarts.count(index, self.slicing, slice_len)
        return known


class SliceSamplerWithoutReplacement(EpochSampler, SliceSampler):
    """Sampler of one slice of every trajectory per epoch; all starts within a trajectory are equally likely.

    With ``weighting="step"``, an epoch has one slice of every start; with ``pad``, this is one of every step.

    An epoch covers the trajectories that are stored when it begins. A write ends it, because it changes trajectories:
    the next batch is the first of a new epoch.

    Args:
        num_slices: slices per batch; each has ``batch_size // num_slices`` steps.
        slice_len: steps per slice; a batch has ``batch_size // slice_len`` slices. Either this or ``num_slices``.
        drop_last: leave out the last batch of an epoch if it has fewer slices than the others.
        shuffle: draw slices in another random order every epoch; otherwise in the order of their trajectories' first
            writes.
        weighting: whether an epoch has one slice of every "trajectory", or of every "step" where one may start.
        replacement: must be False.
        options: the other arguments of ``SliceSampler``, but for ``span``. Without ``strict_length`` shorter
            trajectories are drawn whole.

    Raises:
        TypeError: ``span`` or another argument that it does not take.

    Example:
        >>> data = rlx.open("cartpole").filter("length >= 8")
        >>> sampler = rlx.buffer.SliceSamplerWithoutReplacement(slice_len=8, seed=0)
        >>> buffer = rlx.ReplayBuffer(storage=data, sampler=sampler, batch_size=16)
        >>> sum(len(batch) for batch in buffer) == 8 * len(data.trajectories)  # one slice of each trajectory
        True
    """

    def __init__(
        self,
        *,
        drop_last: bool = False,
        shuffle: bool = True,
        weighting: Weighting = "trajectory",
        replacement: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[WholeOptions],
    ) -> None:
        check_replacement(self, replacement, expected=False)
        check_options(self, options, WholeOptions, "an epoch has one slice of every trajectory, or of every start")
        super().__init__(seed=seed, generator=generator, weighting=weighting, **options)
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._epoch = Epoch("trajectories", saved_as="trajectories")
        self._generation: int | None = None  # that of the index at the last draw of this process
        self._is_changed = False  # trajectories changed since the last draw

    def extended(self, storage: Storage, rows: Rows) -> None:  # noqa: ARG002
        """Take note that trajectories changed: the epoch is over."""
        self._is_changed = True

    def updated(self, storage: Storage) -> None:
        """End the epoch if the change of stored steps changed trajectories."""
        with suppress(SamplingError):  # no trajectories yet
            self._is_changed = self._is_changed or self.index(storage).generation != self._generation

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        return super().state_dict() | {"is_changed": self._is_changed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``; the storage must hold the trajectories it held."""
        super().load_state_dict(state)
        self._generation, self._is_changed = None, state.get("is_changed", False)

    def _draw(self, index: TrajectoryIndex, slices: int, slice_len: int | None) -> tuple[Rows, Rows | None]:
        counted = self._counted(index, slice_len)
        count = len(counted.firsts) if self.weighting == "trajectory" else int(counted.ends[-1])
        is_over = self._is_changed or self._generation not in (None, index.generation) or self._epoch.length != count
        self._generation, self._is_changed = index.generation, False
        ordinals, _ = self._epoch.next(
            self._draws, count, slices, drop_last=self.drop_last, shuffle=self.shuffle, is_over=is_over
        )
        rng = self._draws.next()
        return counted.within(index, rng, ordinals) if self.weighting == "trajectory" else counted.nth(index, ordinals)


class PrioritizedSliceSampler(Sliced, PrioritizedSampler):
    """Sampler of slices, whose starts are drawn in proportion to ``p = (priority + eps) ** alpha``, with replacement.

    Valid starts and marked ends are those of ``SliceSampler``. Every step of a slice has the weight of its own
    priority, and its priority can be updated.

    If an invalid start is drawn, its priority is left out of the sum until a later write may have made it valid, and
    another start is drawn. So only valid starts are returned, and each invalid one costs a single draw.

    Args:
        max_capacity, alpha, beta, eps, reduction: as in ``PrioritizedSampler``.
        max_priority_within_buffer, seed, generator: as in ``PrioritizedSampler``.
        options: the other arguments of ``SliceSampler``, but for ``weighting``, ``whole_trajectories`` and
            ``start_at_reset``. Slices cannot begin before their trajectory: ``span=(False, n)``.

    Example:
        >>> buffer = rlx.ReplayBuffer(
        ...     storage=rlx.buffer.LazyTensorStorage(1000),
        ...     sampler=rlx.buffer.PrioritizedSliceSampler(1000, alpha=0.6, beta=0.4, slice_len=8),
        ...     batch_size=32,
        ... )
        >>> rows = buffer.extend(rlx.open("cartpole")[:1000])
        >>> batch = buffer.sample()  # 4 slices of 8 steps
        >>> bool((batch["collector", "traj_ids"].reshape(4, 8).diff(dim=1) == 0).all())
        True
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: SupportsFloat,
        beta: SupportsFloat,
        eps: float = 1e-8,
        *,
        reduction: Reduction = "max",
        max_priority_within_buffer: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[SpanOptions],
    ) -> None:
        super().__init__(
            max_capacity,
            alpha,
            beta,
            eps,
            reduction=reduction,
            max_priority_within_buffer=max_priority_within_buffer,
            seed=seed,
            generator=generator,
        )
        check_options(self, options, SpanOptions, "its slices start at any step")
        self.slicing = slicing_of(**options)
        if self.slicing.span[0]:
            raise ValueError(
                f"span {options['span']}: expected (False, n), as only stored steps have a priority to start with"
            )
        # Invalid starts have no weight in the tree: they are hidden.
        self._hidden_for = 0  # the slice length that they are not valid for; 0 before the first sample
        self._written: list[Rows] | None = []  # since the last sample; None: any, or stored steps were changed
        self._written_count = 0
        self._generation: int | None = None  # that of the index at the last sample of this process

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and their weights and marks.

        Raises:
            SliceTooLongError: no trajectory is that long.
            SamplingError: the storage is empty or too large, or ``batch_size`` cannot be divided into the slices.
        """
        stored_steps(storage, batch_size)
        self.catch_up(storage)
        slices, slice_len = self.slicing.shape(batch_size)
        assert slice_len is not None, "only whole trajectories have no length"
        self._weigh_anew()
        index = self.index(storage)
        self._show_perhaps_valid(storage, index, slice_len)
        try:
            starts = self._pick_starts(storage, index, slices, slice_len)
        finally:
            self._generation = index.generation
        rows, info = self.slicing.cut(storage, index, starts, slice_len)
        return rows, info | {PRIORITY_WEIGHT: self._corrections(self._weighed(self._tree.priority[rows]))}

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Give written rows the priority of new steps; the next sample restores starts that they made valid."""
        super().extended(storage, rows)
        if self._hidden_for and self._written is not None:
            self._written.append(rows.flatten())
            self._written_count += rows.size
            if self._written_count > self._tree.capacity:
                self._written = None

    def updated(self, storage: Storage) -> None:  # noqa: ARG002
        """Take note that stored steps were changed, and any start may be valid now."""
        self._written = None

    def emptied(self) -> None:
        """Forget all priorities."""
        super().emptied()
        self._written, self._written_count = [], 0

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next samples depend on."""
        written = None if self._written is None else torch.from_numpy(_joined(self._written))
        hidden = torch.from_numpy(self._tree.undrawn_rows())
        return super().state_dict() | {"hidden": hidden, "hidden_for": self._hidden_for, "written": written}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``, with its ``alpha``, ``beta`` and ``eps``.

        Raises:
            SamplingError: the state is of a larger capacity.
        """
        super().load_state_dict(state)
        self._hide(state["hidden"].numpy())
        self._hidden_for = state["hidden_for"]
        written = state.get("written", torch.empty(0, dtype=torch.int64))
        self._written = None if written is None else [written.numpy()]
        self._written_count = 0 if written is None else len(written)
        self._generation = None

    def _show_perhaps_valid(self, storage: Storage, index: TrajectoryIndex, slice_len: int) -> None:
        """Restore hidden starts that may be valid, by what changed since the last sample."""
        written = None if self._written is None else storage.stored(np.unique(_joined(self._written)))
        was_told = written is None or len(written) > 0
        is_other = not was_told and self._generation not in (None, index.generation)
        if (
            written is None
            or is_other
            or slice_len != self._hidden_for
            or (was_told and not self.slicing.strict_length)
        ):
            self._show(self._tree.undrawn_rows())
        elif was_told:
            # What was appended made starts valid that are within a slice's length before it.
            heads = written[~np.isin(index.precede(written, 2)[:, 0], written)]
            near = np.unique(index.precede(heads, slice_len))
            near = near[near >= 0]
            self._show(near[self._tree.weight[near] == 0])
        self._hidden_for, self._written, self._written_count = slice_len, [], 0

    def _pick_starts(self, storage: Storage, index: TrajectoryIndex, slices: int, slice_len: int) -> Rows:
        rng = self._draws.next()
        found: list[Rows] = []
        missing = tries = slices
        while missing:
            if tries > 4 * len(index):
                self._hide_all_invalid(storage, index, slice_len)
            if not self._tree.total:
                SliceStarts.count(index, self.slicing, slice_len)  # raises, with the reason, if no start is valid
                self._show(self._tree.undrawn_rows())  # the storage was changed without a word
            rows, _ = self._tree.draw(rng.random(tries))
            valid = self.slicing.is_start(index, rows, slice_len)
            self._hide(rows[~valid])
            found.append(rows[valid][:missing])
            missing -= len(found[-1])
            tries *= 2
        return np.concatenate(found)

    def _hide_all_invalid(self, storage: Storage, index: TrajectoryIndex, slice_len: int) -> None:
        rows = storage.row_at(np.arange(len(storage)))
        self._hide(rows[~self.slicing.is_start(index, rows, slice_len)])

    def _hide(self, rows: Rows) -> None:
        self._tree.write(rows, self._tree.priority[rows], np.float32(0))

    def _show(self, rows: Rows) -> None:
        priorities = self._tree.priority[rows]
        self._tree.write(rows, priorities, self._weighed(priorities))


def _joined(rows: list[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int64), *rows])
