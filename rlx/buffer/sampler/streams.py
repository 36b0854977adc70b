"""Sampler of streams: slices that run on into other trajectories, each batch after the one before, or afresh."""

from collections.abc import Mapping
from typing import Any, Self, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, Storage, TrajectoryIndex
from rlx.buffer.sampler.slice_starts import Sliced, StreamOptions, check_options, slicing_of, stream_marks
from rlx.buffer.sampler.steps import SeededSampler, stored_steps


class StreamSampler(Sliced, SeededSampler):
    """Sampler of slices that run on into other trajectories, with replacement; batches are flat, slice after slice.

    A slice starts at any step. Where its trajectory ends, another one follows from its first stored step; all
    trajectories are equally likely then, so that all steps are equally likely at every place of a slice.
    ``is_init`` (bool [n, 1]) is True at the first step of a slice, and wherever another trajectory begins. If the last
    step of a trajectory, or of a slice, is neither truncated nor done, the batch flags it as both, and
    ``("collector", "slice_end")`` is True there.

    Args:
        num_slices: slices per batch; each has ``batch_size // num_slices`` steps.
        slice_len: steps per slice; a batch has ``batch_size // slice_len`` slices. Either this or ``num_slices``.
        carry: whether each slice continues that of the batch before, so that a recurrent state may be carried over;
            ``is_init`` is then True only where another trajectory begins, or where steps that a slice would continue
            from were overwritten. Each worker of a ``DataLoader`` has streams of its own.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.
        options: ``traj_key``, ``end_key``, ``end_keys``, ``trajectory_key``, ``truncated_key`` and ``init_key`` of
            ``SliceSampler``.

    Raises:
        TypeError: neither or both of ``num_slices`` and ``slice_len``, or an argument that it does not take.

    Example:
        >>> sampler = rlx.buffer.StreamSampler(slice_len=64, carry=True, seed=0)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.open("cartpole"), sampler=sampler, batch_size=16 * 64)
        >>> batch = buffer.sample().reshape(16, 64)
        >>> batch["is_init"].shape, bool(batch["is_init"][:, 0].all())
        (torch.Size([16, 64, 1]), True)
    """

    def __init__(
        self,
        *,
        carry: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[StreamOptions],
    ) -> None:
        check_options(self, options, StreamOptions, "its slices start at any step and have one length")
        super().__init__(seed=seed, generator=generator)
        self.slicing = slicing_of(**options)
        self.carry = carry
        self._trajectories: tuple[int, Rows, Rows] | None = None
        self._last: Rows = np.empty(0, np.int64)  # [slices] the last step of each in the batch before; -1: none

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_trajectories": None}

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and the marks of slices.

        Raises:
            SamplingError: the storage is empty, or ``batch_size`` cannot be divided into the slices.
        """
        steps = stored_steps(storage, batch_size)
        slices, slice_len = self.slicing.shape(batch_size)
        assert slice_len is not None, "only whole trajectories have no length"
        if self._draws.enter_worker() or len(self._last) != slices:
            self._last = np.full(slices, -1)
        index, rng = self.index(storage), self._draws.next()
        starts = index.row_at(rng.integers(steps, size=slices))
        remaining, goes_on = index.remaining(starts), np.flatnonzero(self._last >= 0)
        after = index.after(self._last[goes_on], np.ones(len(goes_on), np.int64))
        remaining[goes_on] = 0  # but where the trajectory has more steps
        starts[goes_on[after >= 0]] = after[after >= 0]
        remaining[goes_on[after >= 0]] = index.remaining(after[after >= 0])
        rows, is_first, is_last = self._run_on(index, rng, starts, remaining, slice_len)
        is_first[goes_on[after >= 0], 0] = False
        is_last[:, -1] = True
        if self.carry:
            self._last = rows[:, -1].copy()
        flat = rows.reshape(-1)
        return flat, stream_marks(self.slicing, storage, flat, is_first.reshape(-1), is_last.reshape(-1))

    def _run_on(
        self, index: TrajectoryIndex, rng: np.random.Generator, starts: Rows, remaining: Rows, slice_len: int
    ) -> tuple[Rows, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return [slices, slice_len] the rows of slices, and which steps begin and end a piece of a trajectory.

        Args:
            starts: [slices] where each begins.
            remaining: [slices] steps of its trajectory from there; 0: it begins with another trajectory.
        """
        place = np.arange(slice_len)
        heads, ends = starts[:, None], remaining[:, None]
        while (ends[:, -1] < slice_len).any():
            first, length = self._known(index)
            # As many again as there are: slices of the shortest trajectories need few rounds.
            drawn = rng.integers(len(first), size=heads.shape)
            heads = np.concatenate((heads, first[drawn]), axis=1)
            ends = np.concatenate((ends, ends[:, -1:] + np.cumsum(length[drawn], axis=1)), axis=1)
        piece = (place[:, None] >= ends[:, None, :]).sum(axis=2)
        begins = np.concatenate((np.zeros_like(starts)[:, None], ends[:, :-1]), axis=1)
        elapsed = place - np.take_along_axis(begins, piece, axis=1)
        rows = index.after(np.take_along_axis(heads, piece, axis=1).reshape(-1), elapsed.reshape(-1))
        is_last = place + 1 == np.take_along_axis(ends, piece, axis=1)
        return rows.reshape(elapsed.shape), elapsed == 0, is_last

    def _known(self, index: TrajectoryIndex) -> tuple[Rows, Rows]:
        if self._trajectories is None or self._trajectories[0] != index.generation:
            self._trajectories = (index.generation, *index.trajectories())
        return self._trajectories[1:]

    def extended(self, storage: Storage, rows: Rows) -> None:  # noqa: ARG002
        """Begin anew where the steps that slices would continue from were overwritten."""
        self._last[np.isin(self._last, rows)] = -1

    def emptied(self) -> None:
        """Forget where slices would continue."""
        self._last = np.empty(0, np.int64)

    def shard(self, index: int, count: int) -> Self:
        """Return a copy for worker ``index`` of ``count``, with streams of its own."""
        mine = super().shard(index, count)
        mine.emptied()
        return mine

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        return super().state_dict() | {"last": torch.from_numpy(self._last.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``; the storage must hold the trajectories it held."""
        super().load_state_dict(state)
        self._last = state["last"].numpy().copy()
