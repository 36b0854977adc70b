"""The trajectory table: one row for every trajectory of a shard, or of a dataset."""

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.cloud.remote_path import AnyPath, each_below
from rlx.errors import CorruptDatasetError
from rlx.schema import Field, Role
from rlx.store.array import Store
from rlx.store.codec import NONE

GROUP = "trajectories"
COLUMNS = MappingProxyType(
    {
        "length": Field("int64", (), Role.STEP),
        "return": Field("float64", (), Role.STEP),
        "episode": Field("int64", (), Role.STEP),
        "terminated": Field("bool", (), Role.STEP),
        "truncated": Field("bool", (), Role.STEP),
        "from_reset": Field("bool", (), Role.STEP),
        "final_recorded": Field("bool", (), Role.STEP),
    }
)


@dataclass(frozen=True, slots=True)
class Trajectories:
    """The trajectories of a dataset, in storage order; every column has N rows.

    Attributes:
        length: int64 steps.
        returns: float64 undiscounted sum of the stored rewards.
        episode: int64 the source's number of the episode.
        terminated: bool whether the last step ended the MDP.
        truncated: bool whether the last step was cut by a limit.
        from_reset: bool whether it starts with the first step of its episode.
        final_recorded: bool whether the source recorded the final observation; where not, it is zeros.
    """

    length: NDArray[np.int64]
    returns: NDArray[np.float64]
    episode: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    from_reset: NDArray[np.bool_]
    final_recorded: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.length)

    @property
    def start(self) -> NDArray[np.int64]:
        """Index of the first step of each trajectory."""
        start: NDArray[np.int64] = np.cumsum(self.length) - self.length
        return start

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """The columns by their names on disk."""
        return {name: getattr(self, _ATTRIBUTES[name]) for name in COLUMNS}

    def pick(self, rows: NDArray[np.int64]) -> "Trajectories":
        """The table of these trajectories [n], in the order asked for."""
        return type(self)(*(getattr(self, attribute)[rows] for attribute in _ATTRIBUTES.values()))

    def save(self, store: Store, directory: Path) -> list[str]:
        """Writes the table into a shard; returns the names of its arrays."""
        names = []
        for column, field in COLUMNS.items():
            names.append(f"{GROUP}/{column}")
            writer = store.writer(directory, names[-1], field, NONE, b"")
            writer.append(self.columns()[column])
            writer.finish()
        return names

    @classmethod
    def load(cls, store: Store, directory: AnyPath, *, steps: int, count: int) -> "Trajectories":
        """Reads the table of a shard of so many steps and trajectories.

        Raises:
            CorruptDatasetError: a column is damaged, or the lengths do not add up to the steps.
        """

        def read(column: str) -> Any:
            return store.reader(directory, f"{GROUP}/{column}", COLUMNS[column], count).read_range(0, count)

        names = list(COLUMNS)
        found = each_below(directory, read, names)
        table = cls(**{_ATTRIBUTES[column]: rows for column, rows in zip(names, found, strict=True)})
        # Checked one by one first: a sum of damaged lengths could overflow to the right total.
        if ((table.length < 1) | (table.length > steps)).any() or table.length.sum() != steps:
            raise CorruptDatasetError(f"{directory}: the lengths of its trajectories do not add up to {steps} steps")
        return table

    @classmethod
    def concatenate(cls, tables: "list[Trajectories]") -> "Trajectories":
        """One table of several, in order."""
        empty = [np.empty(0, field.dtype) for field in COLUMNS.values()]
        parts = [list(table.columns().values()) for table in tables]
        return cls(*(np.concatenate([column[:0], *more]) for column, *more in zip(empty, *parts, strict=True)))


_ATTRIBUTES = {name: "returns" if name == "return" else name for name in COLUMNS}
