"""A sampler of slices that draws the more surprising starts more often."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey

from rlx.buffer.protocol import Rows, Storage, TrajectoryIndex
from rlx.buffer.sampler.prioritized import PRIORITY_WEIGHT, PrioritizedSampler, Reduction
from rlx.buffer.sampler.slice_starts import SliceStarts
from rlx.buffer.sampler.slicing import Span, slicing_of
from rlx.buffer.sampler.steps import stored_steps


class PrioritizedSliceSampler(PrioritizedSampler):
    """Sampler of slices, whose starts are drawn in proportion to ``p = (priority + eps) ** alpha``, with replacement.

    Valid starts and marked ends are those of ``SliceSampler``. Every step of a slice has the weight of its own
    priority, and its priority can be updated.

    If an invalid start is drawn, its priority is left out of the sum until a later write may have made it valid, and
    another start is drawn. So only valid starts are returned, and each invalid one costs a single draw.

    Args:
        max_capacity: maximum number of rows of the storage.
        alpha: exponent of priorities; 0 samples uniformly.
        beta: exponent of the importance-sampling weights; 1 corrects all of the bias. Set it later to anneal it.
        eps: added to every priority, so that steps of priority 0 are drawn too.
        reduction: how several priorities of one step are reduced to one.
        max_priority_within_buffer: new steps get the largest stored priority instead of the largest ever given.
        num_slices: slices per batch; each has ``batch_size // num_slices`` steps.
        slice_len: steps per slice; a batch has ``batch_size // slice_len`` slices. Either this or ``num_slices``.
        traj_key: as in ``SliceSampler``.
        end_key: as in ``SliceSampler``.
        end_keys: as in ``SliceSampler``.
        trajectory_key: as in ``SliceSampler``.
        truncated_key: as in ``SliceSampler``.
        init_key: as in ``SliceSampler``.
        strict_length: as in ``SliceSampler``.
        pad_output: as in ``SliceSampler``.
        span: as in ``SliceSampler``, but slices cannot begin before their trajectory: ``(False, n)``.
        cache_values: as in ``SliceSampler``.
        seed: as in ``SliceSampler``.
        generator: as in ``SliceSampler``.

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

    draws_slices = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        *,
        reduction: Reduction = "max",
        max_priority_within_buffer: bool = False,
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
        span: Span = False,
        cache_values: bool = False,  # noqa: ARG002
        seed: int | None = None,
        generator: torch.Generator | None = None,
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
            span=span,
        )
        if self.slicing.span[0]:
            raise ValueError(f"span {span}: expected (False, n), as only stored steps have a priority to start with")
        self._hidden = np.zeros(max_capacity, bool)
        self._hidden_for = 0  # the slice length that the hidden starts are not valid for
        self._generation: int | None = None  # that of the index in which they are not valid; None: before any sample

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and their weights and marks.

        Raises:
            SliceTooLongError: no trajectory is that long.
            SamplingError: the storage is empty or too large, or ``batch_size`` cannot be divided into the slices.
        """
        stored_steps(storage, batch_size)
        self._catch_up(storage)
        slices, slice_len = self.slicing.shape(batch_size)
        assert slice_len is not None, "only whole trajectories have no length"
        index = self.index(storage)
        if slice_len != self._hidden_for or self._generation not in (None, index.generation):
            self._show(np.flatnonzero(self._hidden))
        self._hidden_for, self._generation = slice_len, index.generation
        starts = self._pick_starts(storage, index, slices, slice_len)
        rows, info = self.slicing.cut(storage, index, starts, slice_len)
        return rows, info | {PRIORITY_WEIGHT: self._weights(rows)}

    def index(self, storage: Storage) -> TrajectoryIndex:
        """Return the index of a storage's trajectories by the keys of the slices."""
        return self.slicing.index(storage)

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Give the rows that were just written the priority of new ones, and show what they may have made valid."""
        rows = rows.reshape(-1)
        self._hidden[rows] = False
        super().extended(storage, rows)
        if not self._hidden.any():
            return
        index = self.index(storage)
        if self.slicing.strict_length and self._generation == index.generation - 1:
            # Only this write came since: whatever it made valid lies within a slice's reach before it.
            self._show(self._perhaps_valid(index, rows, self._hidden_for))
            self._generation = index.generation
        else:
            self._show(np.flatnonzero(self._hidden))

    def emptied(self) -> None:
        """Forget all priorities."""
        super().emptied()
        self._hidden.fill(False)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next samples depend on."""
        hidden = torch.from_numpy(np.flatnonzero(self._hidden))
        return super().state_dict() | {"hidden": hidden, "hidden_for": self._hidden_for}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``.

        Raises:
            SamplingError: the state is of a larger capacity, or of another alpha or eps.
        """
        super().load_state_dict(state)
        self._hidden_for = state["hidden_for"]
        self._hide(state["hidden"].numpy())
        self._generation = None

    def _pick_starts(self, storage: Storage, index: TrajectoryIndex, slices: int, slice_len: int) -> Rows:
        rng = self._draws.next()
        found: list[Rows] = []
        missing = tries = slices
        while missing:
            if tries > 4 * len(index):
                self._hide_all_invalid(storage, index, slice_len)
            if not self._sums.root:
                SliceStarts.count(index, self.slicing, slice_len)  # raises, with the reason
            rows = self._pick(rng, tries)
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
        self._hidden[rows] = True
        self._sums.set(rows, 0.0)

    def _show(self, rows: Rows) -> None:
        self._hidden[rows] = False
        self._sums.set(rows, self._mins.get(rows))

    def _perhaps_valid(self, index: TrajectoryIndex, written: Rows, slice_len: int) -> Rows:
        """Return [n] the hidden starts that one write may have made valid: those with a written row within a slice's
        reach."""
        heads = written[~np.isin(index.precede(written, 2)[:, 0], written)]
        near = index.precede(heads, slice_len).reshape(-1)
        near = np.unique(near[near >= 0])
        return near[self._hidden[near]]

    def _set(self, rows: Rows, weights: NDArray[np.float64] | float) -> None:
        super()._set(rows, weights)
        self._sums.set(rows[self._hidden[rows]], 0.0)
