"""Tables of other projects, in columns of their own.

Those of gymrec (https://github.com/tsilva/gymrec) have N + 1 rows per episode, the last of which has no action. Such a
table is presented as one of N rows, with the observation of the last row as ``next/observation`` of the row before it.
Those of frames without rewards, as blanchon/atari_parquet on the Hugging Face hub, have image, episode and action.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.parquet_file import ParquetParts, translated
from rlx.formats.common.rows.episodes import Batch
from rlx.formats.common.rows.table import COLUMN_PATHS, ArrowFile, ArrowTable
from rlx.formats.common.rows.ted_fields import TERMINATED, TRAJECTORY, TRUNCATED
from rlx.store.foreign_types import pyarrow

# TED path by gymrec's name of a column.
PATHS: Mapping[str, str] = MappingProxyType(
    {
        "observations": "observation",
        "actions": "action",
        "rewards": "next/reward",
        "terminations": TERMINATED,
        "truncations": TRUNCATED,
        "infos": "next/infos",
    }
)
_AFTER = "next/observation"
_SCANNED_ROWS = 2**14
_ZEROS: Mapping[str, str] = MappingProxyType({COLUMN_PATHS["reward"]: "float32", COLUMN_PATHS["terminated"]: "bool"})
_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "image": COLUMN_PATHS["observation"],
        "action": COLUMN_PATHS["action"],
        "episode": COLUMN_PATHS["trajectory"],
    }
)
NOTES: Mapping[str, str] = MappingProxyType({"rewards": "unrecorded: zeros", "terminated": "unrecorded"})


def is_gymrec(names: Sequence[str]) -> bool:
    """Return whether columns are those of gymrec's tables."""
    return {"episode_id", "step_index", *PATHS} <= set(names)


class StepRows:
    """The rows of steps."""

    def __init__(self, file: ParquetParts) -> None:
        self._file, self.path = file, file.path
        self._columns = {PATHS.get(name, name): name for name in file.names}
        self.names: Sequence[str] = [*self._columns, _AFTER, TRAJECTORY]
        finals, row = [np.zeros(0, np.int64)], 0
        for batch in file.batches(["actions"], _SCANNED_ROWS):
            is_step = batch["actions"].is_valid().to_numpy(zero_copy_only=False)
            finals.append(row + np.flatnonzero(~is_step))
            row += len(is_step)
        self._finals: NDArray[np.int64] = np.concatenate(finals)
        self._steps_before = self._finals - np.arange(len(self._finals))

    def group_start(self, row: int) -> int:
        """Return the first step of the row group that has a step."""
        return self._first(self._file.group_start(self._row(row)))

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` steps each, from ``group_start(row)`` on."""
        arrow, _ = pyarrow()
        start = self._row(row)
        step = self._first(self._file.group_start(start))
        wanted = {name: self._columns[name] for name in names if name in self._columns}
        stored = list(dict.fromkeys([*wanted.values(), *([self._columns["observation"]] if _AFTER in names else [])]))
        for rows, is_step in self._whole([*stored, "actions"], size, start):
            self.path = self._file.path
            with translated(self._file.path):
                kept = np.flatnonzero(is_step)
                found = {name: rows[column].take(arrow.array(kept)) for name, column in wanted.items()}
                if _AFTER in names:
                    is_last = np.append(~is_step, False)[kept + 1]
                    found[_AFTER] = rows[self._columns["observation"]].take(arrow.array(kept + 1, mask=~is_last))
            numbers = np.searchsorted(self._steps_before, np.arange(step, step + len(kept)), side="right")
            found[TRAJECTORY] = arrow.array(numbers)
            step += len(kept)
            if len(kept):
                yield {name: found[name] for name in names}

    def is_uniform(self, name: str) -> bool:  # noqa: ARG002  (statistics of the file count the last rows too)
        """Return False: it is known only after reading."""
        return False

    def _row(self, step: int) -> int:
        return step + int(np.searchsorted(self._steps_before, step, side="right"))

    def _first(self, row: int) -> int:
        return row - int(np.searchsorted(self._finals, row))

    def _whole(self, columns: list[str], size: int, row: int) -> Iterator[tuple[dict[str, Any], NDArray[np.bool_]]]:
        """Yield rows and which of them are steps; a step is held back until the row after it is known."""
        arrow, _ = pyarrow()
        names = list(dict.fromkeys(columns))
        held: dict[str, Any] = {}
        for batch in self._file.batches(names, size, row):
            rows = {name: arrow.concat_arrays([held[name], batch[name]]) if held else batch[name] for name in names}
            is_step = rows["actions"].is_valid().to_numpy(zero_copy_only=False)
            count = len(is_step) - bool(is_step[-1:].any())
            held = {name: column[count:] for name, column in rows.items()} if count < len(is_step) else {}
            yield {name: column[:count] for name, column in rows.items()}, is_step[:count]
        if held:
            yield held, np.ones(1, np.bool_)


def is_unrewarded(names: Sequence[str]) -> bool:
    """Return whether columns are those of such a table."""
    return {"frame_index", *_COLUMNS} <= set(names) and not {"reward", "rewards", "done", *_ZEROS} & set(names)


class UnrewardedTable(ArrowTable):
    """The table, with rewards of zero and no termination."""

    def __init__(self, file: ArrowFile) -> None:
        super().__init__(file, _COLUMNS)
        self.kinds = {**self.kinds, **{path: (dtype, ()) for path, dtype in _ZEROS.items()}}

    def batches(self, paths: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:
        """Yield rows of columns; see ``Table``."""
        # The action is read even if no other column is requested: it has the number of rows.
        stored = [path for path in paths if path not in _ZEROS] or [COLUMN_PATHS["action"]]
        for batch in super().batches(stored, size, row):
            count = len(next(iter(batch.values())))
            yield {**batch, **{path: np.zeros(count, dtype) for path, dtype in _ZEROS.items()}}
