"""What transforms add to several batches of a dataset that are planned together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rlx.buffer.protocol import Keys, Rows
from rlx.buffer.storage.dataset import DatasetStorage
from rlx.buffer.transform.compose import OverBatch, read_steps
from rlx.store.step_reader import Places, Stack
from rlx.transform.protocol import wanted

Path = tuple[str, ...]


@dataclass(slots=True)
class Group:
    """Steps of several batches of a dataset, and what transforms add to them.

    Args:
        storage: of the dataset.
        rows: [batches, *shape] the steps.
        keys: keys of the batches; all by default.
        stacks: how observations are stacked, by field.

    Attributes:
        marks: leaves of all steps [steps, ...] by path.
        more: functions that read a leaf of a batch, by path.
        after: functions that change a batch once it is read.
    """

    storage: DatasetStorage
    rows: Rows
    keys: Keys | None
    stacks: Mapping[str, Stack]
    marks: dict[Path, NDArray[Any]] = field(default_factory=dict)
    more: dict[Path, Callable[[int], list[NDArray[Any]]]] = field(default_factory=dict)
    after: list[Callable[[TensorDictBase], object]] = field(default_factory=list)

    def has(self, path: Path) -> bool:
        """Return whether batches have this leaf, or one below it, already."""
        made = (*self.marks, *self.more)
        return self.storage.has_below(path) or any(other[: len(path)] == path for other in made)

    def add_states(self, path: Path, state: Path, source: Rows, places: Places) -> None:
        """Add states of steps: of a field as it is at places, of anything else as it is at the rows ``source``."""
        reader, name = self.storage.dataset.steps, "/".join(state)
        if state[0] != "next" and name in self.storage.dataset.schema:
            self.more[path] = reader.planned(name, places, self.rows.shape, self.stacks.get(name), 0)
        else:
            self.marks[path] = self.storage.get(source, [state]).get(state).numpy()


class Adding(OverBatch):
    """Base of transforms that add small leaves to each step, and change no others."""

    def made(self) -> list[Path]:
        """Return the paths of the leaves."""
        raise NotImplementedError

    def needs(self) -> Sequence[Path]:
        """Return the paths of the leaves of other steps that these are made of."""
        return ()

    def plan(self, group: Group, drawn: Sequence[Any]) -> bool:  # noqa: ARG002  (nothing is drawn)
        """Add the leaves to batches; return whether this is possible for several at once."""
        paths = [path for path in self.made() if wanted(path, group.keys)]
        is_stored = all(group.storage.has(path) and "/".join(path) not in group.stacks for path in self.needs())
        if not is_stored or any(map(group.has, self.made())):
            return False
        rows, index = group.rows.reshape(-1), group.storage.index
        leaves = read_steps(group.storage, [self], index, rows, paths) if paths else {}
        group.marks.update((path, np.asarray(leaves[path])) for path in paths)
        return True
