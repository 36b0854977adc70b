"""Reading the steps of some trajectories of a dataset, numbered as if there were no others."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlx.store.array import Rows
from rlx.store.step_reader import Indices, Places, StepReader


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

    def read_all(self, places: Places) -> dict[str, tuple[Rows, Rows | None]]:
        """Return every field at each step; of observations the one that followed it, too."""
        return self._reader.read_all(_whole(places))

    def read(self, name: str, places: Places) -> Rows:
        """Return [n, *shape] of a field that has a row per step, in the order asked for."""
        return self._reader.read(name, _whole(places))

    def read_observations(self, name: str, places: Places) -> tuple[Rows, Rows]:
        """Return [n, *shape] of an observation at each step and of the one that followed it."""
        return self._reader.read_observations(name, _whole(places))


def _whole(places: Places) -> Places:
    assert isinstance(places, SelectedPlaces)  # made by this reader's locate
    return places.whole
