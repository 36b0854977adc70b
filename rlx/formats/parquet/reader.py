"""Parquet files of steps: one row per step with columns by TED path, or of other projects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain, islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.files.disk import listed
from rlx.formats.common.fields import NOT_A_ROW_PER_STEP, expecting
from rlx.formats.common.parquet_file import ParquetParts, opened, parts_of, translated
from rlx.formats.common.provenance import KEY, read_notes
from rlx.formats.common.rows.episodes import EPISODES_WITHOUT_STEP, Batch
from rlx.formats.common.rows.table import ArrowFile, ArrowTable, Table, TablePlace, TableRun, open_table
from rlx.formats.common.rows.ted_fields import DERIVED, FROM_RESET, TERMINATED, TRAJECTORY, TRUNCATED, picture_type
from rlx.formats.parquet import JOINED
from rlx.formats.registry import COLUMN_PATHS
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
# TED path by gradlab's name of a column of its transitions, and the pictures that these name.
_JOINED: Mapping[str, str] = MappingProxyType(
    {
        "native_action_json": "action",
        "native_reward": COLUMN_PATHS["reward"],
        "terminated": TERMINATED,
        "truncated": TRUNCATED,
        "episode_id": TRAJECTORY,
        "source_frame_id": "observation",
        "successor_frame_id": _AFTER,
    }
)
# Directory of gradlab's table of steps.
_KEPT_ROWS = 2**14
_REWARDS = "rewards"
# Name of the fields in columns that end so, of tables of one row per episode.
_ENDINGS: Mapping[str, str] = MappingProxyType({"_observations": "observation", "_actions": "action"})
_SCANNED_LISTS = 16


def notes_of(names: Sequence[str]) -> dict[str, str]:
    """Return notes on what tables of these columns do not record."""
    if has_episodes(names):
        return {"terminated": "unrecorded", "truncation": "unrecorded"}
    return {"rewards": "unrecorded: zeros", "terminated": "unrecorded"} if is_unrewarded(names) else {}


def is_gymrec(names: Sequence[str]) -> bool:
    """Return whether columns are those of gymrec's tables."""
    return {"episode_id", "step_index", *PATHS} <= set(names)


class StepRows:
    """The steps of gymrec's tables; see ``ArrowFile``."""

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


def has_episodes(names: Sequence[str]) -> bool:
    """Return whether columns are lists with one row per episode, as in JAT's tables."""
    return _REWARDS in names and COLUMN_PATHS["reward"] not in names and not is_gymrec(names)


def list_lengths(file: ParquetParts) -> NDArray[np.int64]:
    """Return [n] the steps of every episode of such a table; raises SourceError if there are none."""
    lengths: list[int] = []
    for batch in file.batches([_REWARDS], _SCANNED_LISTS):
        if not hasattr(batch[_REWARDS], "value_lengths"):
            found = batch[_REWARDS].type
            raise CorruptShardError(f"{file.path}: {_REWARDS}: expected a list per row, found {found}")
        lengths += [length or 0 for length in batch[_REWARDS].value_lengths().to_pylist()]
    if not sum(lengths):
        raise SourceError(f"{file.path} has no step")
    return np.array(lengths, np.int64)


class ListRows:
    """The steps of a table of one row per episode; see ``ArrowFile``.

    Args:
        lengths: steps of every episode.

    Attributes:
        paths: TED path of every column.
        left: the reason for every other column of the file.
    """

    def __init__(self, file: ParquetParts, lengths: NDArray[np.int64]) -> None:
        self._file, self.path = file, file.path
        if file.rows != len(lengths):
            raise CorruptShardError(f"{file.path}: expected {len(lengths):,} episodes, found {file.rows:,}")
        self._stops = np.cumsum(lengths)
        first = int(np.flatnonzero(lengths)[0])
        row = next(islice(file.batches(file.names, 1, first), first - file.group_start(first), None))
        self.left: dict[str, str] = {}
        for name, cells in row.items():
            values = cells[0].values if hasattr(cells, "value_lengths") and cells[0].is_valid else None
            if values is None or (len(values) != lengths[first] and _ending(name) is None):
                self.left[name] = NOT_A_ROW_PER_STEP
            elif name in DERIVED:
                self.left[name] = "means something else in TED"
        self._columns = [name for name in file.names if name not in self.left]
        groups = Counter(map(_ending, file.names))
        self.paths = {name: _list_path(name, groups) for name in self._columns}
        self.paths |= {name: name for name in (TERMINATED, TRAJECTORY, FROM_RESET)}
        self.names: Sequence[str] = list(self.paths)

    def group_start(self, row: int) -> int:
        """Return the first step of the row group that has a step."""
        return self._first(self._file.group_start(self._episode(row)))

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` steps each, from ``group_start(row)`` on."""
        arrow, _ = pyarrow()
        episode = self._file.group_start(self._episode(row))
        stored = [name for name in names if name in self._columns]
        for batch in self._file.batches(stored, 1, episode) if stored else repeat({}, len(self._stops) - episode):
            self.path = self._file.path
            steps = int(self._stops[episode]) - self._first(episode)
            lists: dict[str, Any] = {}
            for name in stored:
                lists[name] = batch[name][0].values if batch[name][0].is_valid else ()
                if (found := len(lists[name])) != steps:
                    place = f"{self.path}: {name}"
                    raise CorruptShardError(f"{place}: expected {steps:,} entries in row {episode}, found {found:,}")
            for start in range(0, steps, size):
                count = min(size, steps - start)
                made = {TERMINATED: np.zeros(count, bool), FROM_RESET: np.ones(count, bool)}
                made[TRAJECTORY] = np.full(count, episode)
                yield {
                    name: lists[name].slice(start, count) if name in lists else arrow.array(made[name])
                    for name in names
                }
            episode += 1

    def _episode(self, row: int) -> int:
        return min(int(np.searchsorted(self._stops, row, side="right")), len(self._stops) - 1)

    def _first(self, episode: int) -> int:
        return int(self._stops[episode - 1]) if episode else 0


def _ending(name: str) -> str | None:
    return next((ending for ending in _ENDINGS if name.endswith(ending)), None)


def _list_path(name: str, groups: Mapping[str | None, int]) -> str:
    """Return the TED path of a column: ``observation``, or ``observation/image`` where there are several."""
    if name == _REWARDS:
        return COLUMN_PATHS["reward"]
    if (ending := _ending(name)) is None:
        return name
    return _ENDINGS[ending] if groups[ending] == 1 else f"{_ENDINGS[ending]}/{name.removesuffix(ending)}"


def is_joined(names: Sequence[str]) -> bool:
    """Return whether columns are those of gradlab's transitions."""
    return {"step", *_JOINED} <= set(names)


class JoinedRows:
    """The steps of gradlab's transitions, with the pictures of their frame numbers; see ``ArrowFile``.

    The steps of an episode must be in order, from its reset on.
    """

    def __init__(self, file: ParquetParts, episodes: Sequence[Path], frames: Sequence[Path]) -> None:
        self._file, self.path = file, file.path
        self._columns = {_JOINED.get(name, name): name for name in file.names}
        self.names: Sequence[str] = [*self._columns, FROM_RESET]
        rows = np.arange(file.rows)
        begins = np.diff(_numbers(file, "episode_id"), prepend=-1) != 0
        if (_numbers(file, "step") != rows - np.maximum.accumulate(np.where(begins, rows, 0))).any():
            raise CorruptShardError(f"{file.path}: expected the steps of each episode in order, from 0 on")
        steps = _numbers(ParquetParts(episodes[0].parent, episodes), "length").sum()
        if steps != file.rows:
            raise CorruptShardError(f"{file.path}: expected {steps:,} steps of its episodes, found {file.rows:,}")
        self._finals = np.append(begins[1:], True)
        self._frames = ParquetParts(frames[0].parent, frames)
        self._ids = _numbers(self._frames, "frame_id")
        self._order = np.argsort(self._ids)
        self._group = lru_cache(_KEPT_ROWS // int(np.diff(self._frames.groups).max(initial=1)) + 1)(self._read_group)

    def group_start(self, row: int) -> int:
        """Return the first row of the row group that has a row."""
        return self._file.group_start(row)

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Mapping[str, Any], None, None]:
        """Yield Arrow arrays of at most ``size`` rows each, from ``group_start(row)`` on."""
        arrow, _ = pyarrow()
        first = self.group_start(row)
        stored = {name: self._columns[name] for name in names if name != FROM_RESET}
        for batch in self._file.batches([*stored.values(), "step"], size, row):
            self.path = self._file.path
            found = {name: batch[column] for name, column in stored.items()}
            count = len(batch["step"])
            with translated(self.path):
                for name in {"observation", _AFTER} & found.keys():
                    wanted = self._finals[first : first + count] if name == _AFTER else np.ones(count, np.bool_)
                    ids = zip(found[name].fill_null(-1).to_pylist(), wanted.tolist(), strict=True)
                    files = [self._picture(id) if is_wanted else None for id, is_wanted in ids]
                    found[name] = arrow.array(files, picture_type())
                if "action" in found:
                    found["action"] = found["action"].cast(arrow.string()).cast(arrow.int64())
            if FROM_RESET in names:
                found[FROM_RESET] = arrow.array(np.ones(count, np.bool_))
            first += count
            yield found

    def _picture(self, id: int) -> Any:
        place = int(np.searchsorted(self._ids, id, sorter=self._order))
        row = int(self._order[place]) if place < len(self._order) else -1
        if row < 0 or self._ids[row] != id:
            raise CorruptShardError(f"{self._frames.path} has no frame_id {id}")
        start = self._frames.group_start(row)
        return self._group(start)[row - start].as_py()

    def _read_group(self, start: int) -> Any:
        size = int(self._frames.groups[np.searchsorted(self._frames.groups, start, side="right")]) - start
        return next(self._frames.batches(["image"], size, start), {"image": ()})["image"]


def parts_beside(part: Path) -> list[list[Path]]:
    """Return the files of gradlab's episodes and frames, given a file of its transitions."""
    root = part.parent.parent.parent
    directories = (root / "episodes" / part.parent.name, root / "frames" / "assets")
    found = [listed(directory, "*.parquet") for directory in directories]
    if not all(found):
        raise SourceNotFoundError(
            f"{directories[not found[1]]} has no *.parquet; expected gradlab's {JOINED}, episodes and frames/assets"
        )
    return found


def _numbers(table: ParquetParts, name: str) -> NDArray[Any]:
    with translated(table.path):
        columns = [batch[name].to_numpy() for batch in table.batches([name], _SCANNED_ROWS)]
        found = np.concatenate([np.zeros(0, np.int64), *columns])
    if found.dtype.kind not in "iuf":
        raise CorruptShardError(f"{table.path}: {name}: expected numbers")
    return found


def is_unrewarded(names: Sequence[str]) -> bool:
    """Return whether columns are those of frames without rewards."""
    return {"frame_index", *_COLUMNS} <= set(names) and not {"reward", "rewards", "done", *_ZEROS} & set(names)


def table_of(
    file: ParquetParts,
    columns: Mapping[str, str],
    beside: Sequence[Sequence[Path]],
    lengths: NDArray[np.int64] | None,
) -> Table:
    """Return the table of files.

    Args:
        columns: TED path by the column's name; if empty, columns of other projects are recognised.
        beside: files of gradlab's episodes and frames; empty for other tables.
        lengths: [n] steps of every episode; None unless the table has one row per episode.
    """
    if lengths is not None:
        rows = ListRows(file, lengths)
        return ArrowTable(rows, rows.paths, rows.left)
    if beside:
        return ArrowTable(JoinedRows(file, *beside), left={"sessions": "another table"})
    if columns:
        return ArrowTable(file, columns)
    if is_gymrec(file.names):
        return ArrowTable(StepRows(file))
    return UnrewardedTable(file) if is_unrewarded(file.names) else ArrowTable(file)


class UnrewardedTable(ArrowTable):
    """A table of frames without rewards: rewards are zero, and no step terminates."""

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


_EPISODES_LAYOUT = (
    "expected Parquet of one row per episode: columns image_observations or continuous_observations, discrete_actions "
    "or continuous_actions, rewards, each a list with an entry per step"
)
_STEPS_LAYOUT = (
    "expected Parquet of one row per step: columns observation, action, next/reward, next/terminated, next/truncated, "
    "numbers, or lists of one length in every row"
)


def open_parquet(path: Path, split: str | None = None, **columns: str) -> TableRun:
    """Return the dataset in a Parquet file, or in the files of a directory.

    Args:
        split: which of several splits of the directory.
        columns: names of columns, by option; for tables of one row per step.
    """
    with expecting(_STEPS_LAYOUT):
        parts = parts_of(path, split, JOINED)
    layout = _EPISODES_LAYOUT if not columns and _has_episodes(parts[0]) else _STEPS_LAYOUT
    named = {column: COLUMN_PATHS[option] for option, column in columns.items()}
    with expecting(layout), opened(parts[0]) as file:
        notes = {**read_notes(file.note(KEY)), "format": "Parquet"}
        notes |= notes_of(file.names) if not columns else {}
        root, beside = parts[0].parent, list[list[Path]]()
        if not columns and is_joined(file.names):
            root, beside = root.parent.parent, parts_beside(parts[0])
        lengths = list_lengths(ParquetParts(path, parts)) if layout == _EPISODES_LAYOUT else None
        if lengths is not None and (count := int((lengths == 0).sum())):
            notes[EPISODES_WITHOUT_STEP] = count
    place = TablePlace(
        path,
        root,
        tuple(str(part.relative_to(root)) for part in chain(parts, *beside)),
        partial(_opened_steps, path, parts, beside, named, lengths),
        layout,
    )
    return open_table(place, notes)


@contextmanager
def _opened_steps(
    path: Path,
    parts: tuple[Path, ...],
    beside: Sequence[Sequence[Path]],
    columns: Mapping[str, str],
    lengths: NDArray[np.int64] | None,
) -> Iterator[Table]:
    yield table_of(ParquetParts(path, parts), columns, beside, lengths)


def _has_episodes(path: Path) -> bool:
    """Return whether a Parquet file has one row per episode; False if it is damaged."""
    try:
        with opened(path) as file:
            return has_episodes(file.names)
    except SourceError:
        return False
