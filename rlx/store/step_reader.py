"""Reading steps at any indices, across shards, every observation decoded once: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.schema import Role
from rlx.store.array import Rows
from rlx.store.shards import Shards
from rlx.store.trajectories import Trajectories
from rlx.wording import command

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps are, worked out once for all the fields that are read of them.

    Args:
        steps: [n] indices in range.
        trajectory: [n] the trajectory of each.
        shard: [n] the shard of each.
        is_last: [n] whether it is the last step of its trajectory.
        starts: [k] which of them do not follow the one before: the first of every run of consecutive steps.
    """

    steps: Indices
    trajectory: Indices
    shard: Indices
    is_last: NDArray[np.bool_]
    starts: Indices


class StepReader:
    """Reader of the fields of steps.

    Attributes:
        trajectories: the table of the whole dataset.
        start: [N] first step of each trajectory.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.trajectories: Trajectories = shards.trajectories()
        self.start: Indices = self.trajectories.start
        self._last = self.start + self.trajectories.length - 1
        self._shard = shards.of_steps(self.start)
        self._flags = {"terminated": self.trajectories.terminated, "truncated": self.trajectories.truncated}

    def locate(self, steps: Indices) -> Places:
        """Return where these steps [n] are, all of them in range.

        Raises:
            CorruptDatasetError: a file of an open shard has been cut since it was opened.
        """
        self._shards.check_lengths()
        trajectory = self.start.searchsorted(steps, side="right") - 1
        rows = steps + trajectory
        begins = np.ones(len(rows), bool)
        np.not_equal(rows[1:], rows[:-1] + 1, out=begins[1:])
        starts = np.flatnonzero(begins)
        return Places(steps, trajectory, self._shard[trajectory], self._last[trajectory] == steps, starts)

    def read_all(self, places: Places, stacks: Mapping[str, int] | None = None) -> dict[str, tuple[Rows, Rows | None]]:
        """Return every field at each step; of observations the one that followed it, too.

        Args:
            places: where the steps are.
            stacks: observations to stack, each with the number of observations in a stack, as ``read_stacks`` does.
        """
        stacked = stacks or {}

        def read(name: str) -> tuple[Rows, Rows | None]:
            if name in stacked:
                return self.read_stacks(name, places, stacked[name])
            if self._shards.schema[name].role == Role.OBSERVATION:
                return self.read_observations(name, places)
            return self.read(name, places), None

        return dict(zip(self._shards.schema.fields, self._shards.each_field(read, places.shard), strict=True))

    def read(self, name: str, places: Places) -> Rows:
        """Return [n, *shape] of a field that has a row a step (its role is ``step`` or ``next``), in the order asked
        for."""
        if name in self._flags:
            # Only the last step of a trajectory can carry a flag, so the table knows; no shard is touched.
            flags: Rows = self._flags[name][places.trajectory] & places.is_last
            return flags
        return self._gather(name, places.shard, places.steps - self._shards.first_step[places.shard])

    def read_observations(self, name: str, places: Places) -> tuple[Rows, Rows]:
        """Return [n, *shape] of an observation at each step and of the one that followed it.

        An observation that is both, as within a slice, is decoded once. For consecutive steps of one trajectory the two
        results are views of the same rows.
        """
        n, starts, shard = len(places.steps), places.starts, places.shard
        local = places.steps + places.trajectory - self._shards.first_row[shard]
        if len(starts) == n:
            read = self._gather(name, np.concatenate([shard, shard]), np.concatenate([local, local + 1]))
            return read[:n], read[n:]
        # The last step of each run of steps is followed by an observation outside the run.
        ends = np.append(starts[1:], n)[: len(starts)] - 1
        read = self._gather(name, np.concatenate([shard, shard[ends]]), np.concatenate([local, local[ends] + 1]))
        if len(starts) == 1:
            return read[:n], read[1:]
        position = np.arange(1, n + 1)
        position[ends] = np.arange(n, len(read))
        return read[:n], read.take(position, axis=0)

    def read_stacks(self, name: str, places: Places, k: int) -> tuple[Rows, Rows]:
        """Return [n, k, *shape] the last k observations at each step, oldest first, and the same one step later.

        Where the trajectory has fewer, its first observation is repeated. Every observation is decoded once; the two
        results are views of the same rows.
        """
        n, shard = len(places.steps), places.shard
        elapsed = places.steps - self.start[places.trajectory]
        back = np.minimum(np.arange(k - 1, -2, -1), elapsed[:, None])
        local = ((places.steps + places.trajectory - self._shards.first_row[shard])[:, None] - back).reshape(-1)
        shard = np.repeat(shard, k + 1)
        shape = (n, k + 1, *self._shards.schema[name].shape)
        row = local + self._shards.first_row[shard]
        distinct, first, position = np.unique(row, return_index=True, return_inverse=True)
        if len(distinct) == len(row):
            read = self._gather(name, shard, local)
        else:
            read = self._gather(name, shard[first], local[first]).take(position, axis=0)
        read = read.reshape(shape)
        return read[:, :k], read[:, 1:]

    def _gather(self, name: str, shard: Indices, local: Indices) -> Rows:
        """Return rows of one field.

        Args:
            name: of the field.
            shard: [n] the shard of each.
            local: [n] which row of its shard each is.
        """
        if not len(local):
            return self._shards.schema[name].zeros(0)
        if not self._shards.is_remote:
            files = self._shards.files(name, shard)
            if files.is_direct and not files.lacks(shard):
                try:
                    return files.read(shard, local)
                except CorruptDatasetError as exc:
                    raise self._damaged(name, exc) from exc
        return self._by_shard(name, local, shard)

    def _by_shard(self, name: str, local: Indices, shard: Indices) -> Rows:
        """Return the same, all rows of a shard at a time."""
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

    def _damaged(self, name: str, exc: CorruptDatasetError) -> CorruptDatasetError:
        dataset = self._shards.dataset
        return CorruptDatasetError(f"{dataset}: {name}: {exc}", hint=command("rlx", "verify", dataset))


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
        reader: of the whole dataset.
        chosen: [n] numbers of the trajectories, ascending.

    Attributes:
        trajectories: the table of these trajectories.
        start: [n] first step of each, among the selected steps.
    """

    def __init__(self, reader: StepReader, chosen: NDArray[np.int64]) -> None:
        self._reader = reader
        self.trajectories = reader.trajectories.pick(chosen)
        self.start = self.trajectories.start
        self._shift = reader.start[chosen] - self.start

    def locate(self, steps: Indices) -> SelectedPlaces:
        """Return where these steps [n] are, all of them in range.

        Raises:
            CorruptDatasetError: a file of an open shard has been cut since it was opened.
        """
        trajectory = self.start.searchsorted(steps, side="right") - 1
        whole = self._reader.locate(steps + self._shift[trajectory])
        return SelectedPlaces(steps, trajectory, whole.shard, whole.is_last, whole.starts, whole)

    def read_all(self, places: Places, stacks: Mapping[str, int] | None = None) -> dict[str, tuple[Rows, Rows | None]]:
        """Return every field at each step; of observations the one that followed it, too."""
        return self._reader.read_all(_whole(places), stacks)

    def read(self, name: str, places: Places) -> Rows:
        """Return [n, *shape] of a field that has a row per step, in the order asked for."""
        return self._reader.read(name, _whole(places))

    def read_observations(self, name: str, places: Places) -> tuple[Rows, Rows]:
        """Return [n, *shape] of an observation at each step and of the one that followed it."""
        return self._reader.read_observations(name, _whole(places))


def _whole(places: Places) -> Places:
    assert isinstance(places, SelectedPlaces)  # made by this reader's locate
    return places.whole
