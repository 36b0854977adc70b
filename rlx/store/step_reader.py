"""Reading steps at any indices, across shards, every observation decoded once: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.schema import Role
from rlx.store.array import Rows
from rlx.store.field_files import runs
from rlx.store.shards import Shards
from rlx.store.trajectories import Trajectories
from rlx.wording import command

Indices = NDArray[np.int64]
Padding = Literal["repeat", "zeros"]


@dataclass(frozen=True, slots=True)
class Stack:
    """How an observation is stacked on those before it.

    Args:
        k: observations per stack.
        padding: what stands for observations before the first one of a trajectory: that one again, or zeros.
    """

    k: int
    padding: Padding = "repeat"


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps are, worked out once for all the fields that are read of them.

    Args:
        steps: [n] indices in range.
        trajectory: [n] the trajectory of each.
        shard: [n] the shard of each.
        is_last: [n] whether it is the last step of its trajectory.
        step: [n] which step of its shard it is.
        observation: [n] which of the shard's observations it begins with; the next one is what it led to.
    """

    steps: Indices
    trajectory: Indices
    shard: Indices
    is_last: NDArray[np.bool_]
    step: Indices
    observation: Indices


class StepReader:
    """Reader of the fields of steps.

    Attributes:
        start: [N] first step of each trajectory.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.trajectories: Trajectories = shards.trajectories()
        self.start: Indices = self.trajectories.start
        self._last = self.start + self.trajectories.length - 1
        self._shard = shards.of_steps(self.start)
        # In a shard, every earlier trajectory has an observation more than steps.
        self._first_step = shards.first_step[self._shard]
        self._first_row = shards.first_row[self._shard] - np.arange(len(self.start))
        self._flags = {"terminated": self.trajectories.terminated, "truncated": self.trajectories.truncated}

    @property
    def is_remote(self) -> bool:
        """Whether every read makes requests."""
        return self._shards.is_remote

    def check_lengths(self) -> None:
        """Raise CorruptDatasetError if a file of an open shard has been cut since it was opened."""
        self._shards.check_lengths()

    def locate(self, steps: Indices) -> Places:
        """Return where these steps [n] are, all of them in range."""
        self.check_lengths()
        trajectory = self.start.searchsorted(steps, side="right") - 1
        is_last = self._last[trajectory] == steps
        step, observation = steps - self._first_step[trajectory], steps - self._first_row[trajectory]
        return Places(steps, trajectory, self._shard[trajectory], is_last, step, observation)

    def states(self, steps: Indices, is_final: NDArray[np.bool_]) -> Places:
        """Return where the observations of steps [n] are or, where ``is_final``, those that they led to."""
        return _led_to(self.locate(steps), is_final)

    def read_all(
        self,
        places: Places,
        stacks: Mapping[str, Stack] | None = None,
        names: Sequence[str] | None = None,
        sides: Mapping[str, int] | None = None,
        *,
        shared: bool = False,
    ) -> dict[str, tuple[Rows, Rows | None]]:
        """Return every field at each step; of observations the one that followed it, too.

        Args:
            stacks: observations to stack, as ``read_stacks`` does.
            names: the fields to read; all by default.
            sides: observations of which only the one at each step (0) is read, or only the one that followed it (1).
            shared: whether an observation and the one that followed it may share memory, as in ``read_observations``.
        """
        stacked, one_sided = stacks or {}, sides or {}

        def read(name: str) -> tuple[Rows, Rows | None]:
            if name in one_sided:
                return self._side(name, places, one_sided[name], stacked.get(name)), None
            if name in stacked:
                return self.read_stacks(name, places, stacked[name])
            if self._shards.schema[name].role == Role.OBSERVATION:
                return self.read_observations(name, places, shared=shared)
            return self.read(name, places), None

        chosen = list(self._shards.schema.fields) if names is None else names
        return dict(zip(chosen, self._shards.each_field(read, chosen, places.shard), strict=True))

    def read(self, name: str, places: Places) -> Rows:
        """Return [n, *shape] of a field with one row per step (its role is ``step`` or ``next``), in the order asked
        for."""
        if name in self._flags:
            # Only the last step of a trajectory can carry a flag, so the table knows; no shard is touched.
            flags: Rows = self._flags[name][places.trajectory] & places.is_last
            return flags
        return self._gather(name, places.shard, places.step)

    def ends(self, steps: Indices) -> dict[str, NDArray[np.bool_]]:
        """Return [n] the flags of these steps, all of them in range, by name; ``done`` is either of the others."""
        trajectory = self.start.searchsorted(steps, side="right") - 1
        table = self.trajectories
        is_last = steps - self.start[trajectory] == table.length[trajectory] - 1
        terminated, truncated = table.terminated[trajectory] & is_last, table.truncated[trajectory] & is_last
        return {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}

    def read_observations(self, name: str, places: Places, *, shared: bool = False) -> tuple[Rows, Rows]:
        """Return [n, *shape] of an observation at each step and of the one that followed it.

        An observation that is both, as within a slice, is decoded once.

        Args:
            shared: whether for consecutive steps of one trajectory the two results may be views of the same rows.
        """
        n, shard, local = len(places.steps), places.shard, places.observation
        if shared and n and _is_run(places):
            read = self._gather(name, shard[:1], local[:1], n + 1)
            return read[:n], read[1:]
        return self._observed(name, shard, local)

    def _observed(self, name: str, shard: Indices, local: Indices) -> tuple[Rows, Rows]:
        n = len(local)
        if not n or self._are_repeats_free(name):
            read = self._gather(name, shard, local, 2)
            return read[:n], read[n:]
        # The last of each run of rows is followed by one outside the run.
        ends = np.flatnonzero(np.append((local[1:] != local[:-1] + 1) | (shard[1:] != shard[:-1]), True))
        read = self._gather(name, np.concatenate((shard, shard[ends])), np.concatenate((local, local[ends] + 1)))
        if len(ends) == n:
            return read[:n], read[n:]
        position = np.arange(1, n + 1)
        position[ends] = np.arange(n, len(read))
        return read[:n], read.take(position, axis=0)

    def read_stacks(self, name: str, places: Places, stack: Stack) -> tuple[Rows, Rows]:
        """Return [n, k, *shape] the last k observations at each step, oldest first, and the same one step later.

        Where the trajectory has fewer, its first observation is repeated, or there are zeros. Every observation is
        decoded once; the two results share no memory.
        """
        now, then = self._stacks(name, places.shard, places.observation, self._elapsed(places), stack)
        return now, then

    def _side(self, name: str, places: Places, side: int, stack: Stack | None) -> Rows:
        """Return [n, *shape] of an observation at each step (``side`` 0), or of the one that followed it (1); stacked,
        if asked for."""
        if stack is None:
            return self._gather(name, places.shard, places.observation + side)
        found: Rows = self._stacks(name, places.shard, places.observation, self._elapsed(places), stack, side)[0]
        return found

    def _elapsed(self, places: Places) -> Indices:
        """Return [n] steps of its trajectory before each step."""
        return places.steps - self.start[places.trajectory]

    def planned(
        self,
        name: str,
        places: Places,
        shape: tuple[int, ...],
        stack: Stack | None = None,
        side: int | None = None,
    ) -> Callable[[int], list[Rows]]:
        """Return a function that reads a field of one of several batches: rows, and of an observation the next ones.

        Args:
            places: of all batches.
            shape: [batches, *shape] of the steps.
            stack: how to stack the observation, as ``read_stacks`` does.
            side: of an observation, 0 to read the one at each step, 1 the one that followed it; both by default.
        """
        field = self._shards.schema[name]
        is_observed, rest = field.role == Role.OBSERVATION, field.shape if stack is None else (stack.k, *field.shape)
        shard, local = places.shard, places.observation if is_observed else places.step
        if stack is None and side:
            local = local + side
        shard, local = shard.reshape(shape[0], -1), local.reshape(shape[0], -1)
        if stack is not None:
            shards, rows, is_before = _frames(shard, local, self._elapsed(places).reshape(local.shape), stack, side)

        def read(batch: int) -> list[Rows]:
            if stack is not None:
                found: Sequence[Rows] | Rows = self._stacked(name, shards[batch], rows[batch], is_before[batch], stack)
            elif is_observed and side is None:
                found = self._observed(name, shard[batch], local[batch])
            else:
                found = (self._gather(name, shard[batch], local[batch]),)
            return [rows.reshape(*shape[1:], *rest) for rows in found]

        return read

    def _stacks(
        self, name: str, shard: Indices, local: Indices, elapsed: Indices, stack: Stack, side: int | None = None
    ) -> Rows:
        """Return [sides, n, k, *shape] the stacks at each step and one step later, or of one side.

        Args:
            shard: [n] of each step.
            local: [n] its observation.
            elapsed: [n] observations of its trajectory before that one.
            side: as for ``planned``.
        """
        return self._stacked(name, *_frames(shard, local, elapsed, stack, side), stack)

    def _stacked(self, name: str, shard: Indices, local: Indices, is_before: NDArray[np.bool_], stack: Stack) -> Rows:
        """Return [sides, n, k, *shape] the stacks of frames, as ``_frames`` gives them."""
        shards, rows, read = shard.reshape(-1), local.reshape(-1), None
        if not self._are_repeats_free(name):
            _, first, position = np.unique(
                rows + self._shards.first_row[shards], return_index=True, return_inverse=True
            )
            if len(first) < len(rows):
                read = self._gather(name, shards[first], rows[first]).take(position, axis=0)
        if read is None:
            read = self._gather(name, shards, rows)
        if stack.padding == "zeros":
            read[is_before.reshape(-1)] = 0
        return read.reshape(*local.shape, *read.shape[1:])

    def _are_repeats_free(self, name: str) -> bool:
        """Return whether asking twice for a row costs no more than a copy."""
        return not self._shards.is_remote and self._shards.tables[name].is_direct

    def _gather(self, name: str, shard: Indices, local: Indices, run: int = 1) -> Rows:
        """Return rows [run * n, *shape] of one field, as ``runs`` numbers them.

        Args:
            shard: [n] the shard of each run.
            local: [n] the first of its rows.
            run: consecutive rows of each.
        """
        if not len(local):
            return self._shards.schema[name].zeros(0)
        dataset, files = self._shards.dataset, None if self._shards.is_remote else self._shards.files(name, shard)
        try:
            if files is not None and files.is_direct and not files.lacks(shard):
                return files.read(shard, local, run)
            return self._by_shard(name, *runs(shard, local, run))
        except CorruptDatasetError as exc:
            raise CorruptDatasetError(f"{dataset}: {name}: {exc}", hint=command("rlx", "verify", dataset)) from exc

    def _by_shard(self, name: str, shard: Indices, local: Indices) -> Rows:
        field = self._shards.schema[name]
        numbers = np.unique(shard).tolist()
        places = {number: np.flatnonzero(shard == number) for number in numbers}
        read = self._shards.each(lambda number: self._shards.array(number, name).read(local[places[number]]), numbers)
        if len(numbers) == 1:
            return read[0]
        result = np.empty((len(local), *field.shape), field.numpy_dtype)
        for number, rows in zip(numbers, read, strict=True):
            result[places[number]] = rows
        return result


def _frames(
    shard: Indices, local: Indices, elapsed: Indices, stack: Stack, side: int | None
) -> tuple[Indices, Indices, NDArray[np.bool_]]:
    """Return [*batches, sides, n, k] the shards and the observations of stacks at steps [*batches, n].

    Also which of them stand for ones before the first of the trajectory.

    Args:
        shard, local, elapsed, side: as for ``StepReader._stacks``.
    """
    ahead = np.array([0, 1] if side is None else [side])[:, None, None]
    back = np.arange(stack.k - 1, -1, -1)
    before = elapsed[..., None, :, None] + ahead
    rows = local[..., None, :, None] + ahead - np.minimum(back, before)
    return np.broadcast_to(shard[..., None, :, None], rows.shape), rows, back > before


def _led_to(places: Places, is_final: NDArray[np.bool_]) -> Places:
    return replace(places, steps=places.steps + is_final, observation=places.observation + is_final)


def _is_run(places: Places) -> bool:
    steps, trajectory = places.steps, places.trajectory
    if steps[-1] - steps[0] != len(steps) - 1 or trajectory[0] != trajectory[-1]:
        return False
    return bool((steps[1:] > steps[:-1]).all())


@dataclass(frozen=True, slots=True)
class SelectedPlaces(Places):
    """Where steps are among the selected ones.

    Args:
        whole: where they are in the dataset.
    """

    whole: Places


class SelectedSteps(StepReader):
    """Reader of the fields of the steps of some trajectories.

    Args:
        chosen: [n] numbers of the trajectories, in any order.

    Attributes:
        start: [n] first step of each, among the selected steps.
    """

    def __init__(self, reader: StepReader, chosen: NDArray[np.int64]) -> None:
        self._reader = reader
        self.trajectories = reader.trajectories.pick(chosen)
        self.start = self.trajectories.start
        self._shift = reader.start[chosen] - self.start

    @property
    def is_remote(self) -> bool:
        """Whether every read makes requests."""
        return self._reader.is_remote

    def of(self, reader: StepReader) -> SelectedSteps:
        """Return the reader of the same steps through another reader of the whole dataset."""
        same = copy(self)
        same._reader = reader
        return same

    def locate(self, steps: Indices) -> SelectedPlaces:
        """Return where these steps [n] are, all of them in range."""
        trajectory = self.start.searchsorted(steps, side="right") - 1
        whole = self._reader.locate(steps + self._shift[trajectory])
        return SelectedPlaces(steps, trajectory, whole.shard, whole.is_last, whole.step, whole.observation, whole)

    def states(self, steps: Indices, is_final: NDArray[np.bool_]) -> Places:
        """Return where the observations of steps [n] are or, where ``is_final``, those that they led to."""
        places = self.locate(steps)
        return replace(places, whole=_led_to(places.whole, is_final))

    def check_lengths(self) -> None:
        """Raise CorruptDatasetError if a file of an open shard has been cut since it was opened."""
        self._reader.check_lengths()

    def read_all(
        self,
        places: Places,
        stacks: Mapping[str, Stack] | None = None,
        names: Sequence[str] | None = None,
        sides: Mapping[str, int] | None = None,
        *,
        shared: bool = False,
    ) -> dict[str, tuple[Rows, Rows | None]]:
        """Return every field at each step, or some; of observations the one that followed it, too."""
        return self._reader.read_all(_whole(places), stacks, names, sides, shared=shared)

    def planned(
        self,
        name: str,
        places: Places,
        shape: tuple[int, ...],
        stack: Stack | None = None,
        side: int | None = None,
    ) -> Callable[[int], list[Rows]]:
        """Return a function that reads a batch's field."""
        return self._reader.planned(name, _whole(places), shape, stack, side)

    def read(self, name: str, places: Places) -> Rows:
        """Return [n, *shape] of a field that has a row per step, in the order asked for."""
        return self._reader.read(name, _whole(places))

    def read_observations(self, name: str, places: Places, *, shared: bool = False) -> tuple[Rows, Rows]:
        """Return [n, *shape] of an observation at each step and of the one that followed it."""
        return self._reader.read_observations(name, _whole(places), shared=shared)


def _whole(places: Places) -> Places:
    assert isinstance(places, SelectedPlaces)  # made by this reader's locate
    return places.whole
