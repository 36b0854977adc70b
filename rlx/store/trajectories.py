"""The trajectory table: one row for every trajectory of a shard, or of a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.files.remote_files import AnyPath, each_below
from rlx.manifest import ShardRecord
from rlx.schema import Field, Role
from rlx.store.codec import NONE
from rlx.store.raw_file import read_whole
from rlx.store.stores import Store

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
        "cut": Field("bool", (), Role.STEP),
    }
)
_ADDED_LATER = frozenset({"cut"})  # columns that shards of rlx 0.1.0 lack


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
        cut: bool whether its recording stops although the environment did not end the episode there.
    """

    length: NDArray[np.int64]
    returns: NDArray[np.float64]
    episode: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    from_reset: NDArray[np.bool_]
    final_recorded: NDArray[np.bool_]
    cut: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.length)

    @property
    def start(self) -> NDArray[np.int64]:
        """Index of the first step of each trajectory."""
        start: NDArray[np.int64] = np.cumsum(self.length) - self.length
        return start

    @property
    def whole(self) -> NDArray[np.bool_]:
        """[N] whether each is a whole episode, from a reset to the end that the environment gave it."""
        return self.from_reset & ~self.cut

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the columns by their names on disk."""
        return {name: getattr(self, _ATTRIBUTES[name]) for name in COLUMNS}

    def pick(self, rows: NDArray[np.int64]) -> "Trajectories":
        """Return the table of these trajectories [n], in the order asked for."""
        return type(self)(*(getattr(self, attribute)[rows] for attribute in _ATTRIBUTES.values()))

    def save(self, store: Store, directory: Path) -> list[str]:
        """Write the table into a shard; return the names of its arrays."""
        names = []
        for column, field in COLUMNS.items():
            names.append(f"{GROUP}/{column}")
            writer = store.writer(directory, names[-1], field, NONE, b"")
            writer.append(self.columns()[column])
            writer.finish()
        return names

    @classmethod
    def load(cls, store: Store, directory: AnyPath, record: ShardRecord) -> "Trajectories":
        """Read the table of a shard."""
        steps, count = record.steps, record.trajectories

        def read(column: str) -> Any:
            return store.reader(directory, f"{GROUP}/{column}", COLUMNS[column], count).read_range(0, count)

        names = columns_in(record)
        found = dict(zip(names, each_below(directory, read, names), strict=True))
        if "cut" not in found:
            found["cut"] = ~(found["terminated"] | found["truncated"])
        table = cls(**{_ATTRIBUTES[column]: rows for column, rows in found.items()})
        # Checked one by one first: a sum of damaged lengths could overflow to the right total.
        if ((table.length < 1) | (table.length > steps)).any() or table.length.sum() != steps:
            raise CorruptDatasetError(f"{directory}: the lengths of its trajectories do not add up to {steps} steps")
        return table

    @classmethod
    def load_all(
        cls, store: Store, directories: Sequence[str], records: Sequence[ShardRecord]
    ) -> "Trajectories | None":
        """Return the table of all these shards on this machine, read a column at a time: the same as of ``load`` and
        ``concatenate``, with a tenth of the work per shard.

        Returns None if ``load`` has to look: at shards that lack a column or have a damaged one, or at none.
        """
        counts = np.array([record.trajectories for record in records], np.int64)
        if not len(counts) or counts.min() < 1:
            return None
        columns: dict[str, NDArray[Any]] = {}
        for column, field in COLUMNS.items():
            file = store.small_file(f"{GROUP}/{column}", field)
            if column in _ADDED_LATER and not all(file in record.files for record in records):
                return None
            sizes = (counts * field.row_bytes).tolist()
            parts = [read_whole(f"{where}/{file}", size) for where, size in zip(directories, sizes, strict=True)]
            read = [part for part in parts if part is not None]
            if len(read) < len(parts):
                return None
            # A bytearray, because arrays of a table can be written to.
            columns[_ATTRIBUTES[column]] = np.frombuffer(bytearray().join(read), field.dtype)
        table = cls(**columns)
        steps = np.array([record.steps for record in records], np.int64)
        too_long = (table.length < 1) | (table.length > np.repeat(steps, counts))
        if too_long.any() or (np.add.reduceat(table.length, np.cumsum(counts) - counts) != steps).any():
            return None
        return table

    @classmethod
    def concatenate(cls, tables: "list[Trajectories]") -> "Trajectories":
        """Return one table of several, in order."""
        empty = [np.empty(0, field.dtype) for field in COLUMNS.values()]
        parts = [list(table.columns().values()) for table in tables]
        return cls(*(np.concatenate([column[:0], *more]) for column, *more in zip(empty, *parts, strict=True)))


def columns_in(record: ShardRecord) -> list[str]:
    """Return names of the columns that a shard has: those of every shard, and later ones if its files are listed."""
    listed = {name.removeprefix(f"{GROUP}/").split("/")[0].split(".")[0] for name in record.files}
    return [column for column in COLUMNS if column not in _ADDED_LATER or column in listed]


_ATTRIBUTES = {name: "returns" if name == "return" else name for name in COLUMNS}
