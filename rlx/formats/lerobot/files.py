"""The files of steps of a dataset of LeRobot, and the episodes in each, with or without final observations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.files.location import checked_name
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.rows.episodes import RowEpisode
from rlx.formats.lerobot.layout import (
    CUT,
    DATA_CHUNK,
    DATA_FILE,
    DATA_PATH,
    DONE,
    EPISODE,
    EPISODES,
    FINALS,
    FIRST_INDEX,
    INFO,
    LENGTH,
    STOP_INDEX,
    TERMINATED,
    TIMESTAMP,
    TRUNCATED,
)
from rlx.store.arrow import to_rows

_SCANNED_ROWS = 2**14
_MAX_NUMBER = 2**40
_FINAL_COLUMNS = (EPISODE, LENGTH)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of steps.

    Args:
        name: of it.
        episodes: in it.
        is_timed: whether the steps of every episode have other times than ``fps`` says.
    """

    name: str
    episodes: tuple[RowEpisode, ...]
    is_timed: bool = False


def data_files(root: Path, template: Any, flags: Sequence[str], fps: float | None) -> Iterator[DataFile]:
    """Yield the files of steps, in the order of their episodes.

    Args:
        root: the dataset's directory.
        template: what ``info.json`` says of the files' names.
        flags: those of the columns ``next.done``, ``next.terminated`` and ``next.truncated`` that there are.
        fps: steps a second, if that is known and there is a column of times.

    Raises:
        SourceError: the table of episodes is missing.
        CorruptShardError: a table is damaged, or the files do not hold the episodes that it lists.
    """
    table = zip(*_episode_table(root), strict=True)
    for place, group in groupby(table, key=lambda one: one[2:]):
        episodes = [(number, length) for number, length, *_ in group]
        name = _name(template, *place)
        yield _scanned(root, name, episodes, flags, fps)


def episode_columns(root: Path) -> list[str]:
    """Return names of the columns of the table of episodes that say something of them beside place, statistics and
    tasks.
    """
    path = next(iter(sorted((root / EPISODES).glob("*/*.parquet"))))
    known = {EPISODE, LENGTH, "tasks", FIRST_INDEX, STOP_INDEX}
    with opened(path) as file:
        return [
            name for name in file.names if name not in known and name.split("/")[0] not in ("data", "meta", "stats")
        ]


def _episode_table(root: Path) -> list[list[int]]:
    """Return number and length of every episode, and the numbers of its chunk and file."""
    columns: list[list[int]] = [[], [], [], []]
    paths = sorted((root / EPISODES).glob("*/*.parquet"))
    if not paths:
        raise SourceError(f"{root / EPISODES} has no */*.parquet")
    for path in paths:
        with opened(path) as file:
            names = (EPISODE, LENGTH, DATA_CHUNK, DATA_FILE)
            for batch in file.batches(names, _SCANNED_ROWS):
                for column, name in zip(columns, names, strict=True):
                    column += _numbers(path, name, batch[name])
    numbers, lengths = columns[:2]
    if numbers != list(range(len(numbers))):
        raise CorruptShardError(f"{root / EPISODES}: {EPISODE}: expected 0, 1, 2 and so on, found {numbers[:20]}")
    if bad := [length for length in lengths if not 0 < length < _MAX_NUMBER]:
        raise CorruptShardError(f"{root / EPISODES}: {LENGTH}: expected at least one step, found {bad[0]}")
    return columns


def _scanned(
    root: Path, name: str, episodes: Sequence[tuple[int, int]], flags: Sequence[str], fps: float | None
) -> DataFile:
    """Return a file, and how each of its episodes ended by the last row."""
    path = root / name
    found: list[tuple[bool, bool]] = []
    lengths = [length for _, length in episodes]
    is_timed = False
    with opened(path) as file:
        if file.rows != sum(lengths):
            raise CorruptShardError(
                f"{path}: expected {sum(lengths):,} rows, as its episodes are long, found {file.rows:,}"
            )
        stops, row = np.cumsum(lengths), 0
        times = [TIMESTAMP] if fps is not None and TIMESTAMP in file.names else []
        for batch in file.batches([EPISODE, *flags, *times], _SCANNED_ROWS):
            numbers = np.array(_numbers(path, EPISODE, batch[EPISODE]))
            rows = np.arange(row, row + len(numbers))
            place = np.searchsorted(stops, rows, side="right")
            if (numbers != np.array([number for number, _ in episodes])[place]).any():
                raise CorruptShardError(
                    f"{path}: {EPISODE}: expected the episodes in order, each as long as it is said"
                )
            columns = {flag: _flags(path, flag, batch[flag]) for flag in flags}
            last = stops[(stops > row) & (stops <= row + len(numbers))] - row - 1
            found += _ends({flag: column[last] for flag, column in columns.items()}, len(last))
            if times:
                since = rows - (stops - lengths)[place]
                is_timed |= _are_others(batch[TIMESTAMP], since, fps or 1)
            row += len(numbers)
    made = (RowEpisode(*one, *end, False) for one, end in zip(episodes, found, strict=True))
    return DataFile(name, tuple(made), is_timed)


def _ends(columns: dict[str, NDArray[np.bool_]], count: int) -> list[tuple[bool, bool]]:
    """Return whether each of some last steps terminated, and whether it was truncated."""
    truncated = columns.get(TRUNCATED, np.zeros(count, bool))
    terminated = columns.get(TERMINATED, columns.get(DONE, truncated) & ~truncated)
    return list(zip(terminated.tolist(), truncated.tolist(), strict=True))


def _are_others(times: Any, since: NDArray[Any], fps: float) -> bool:
    """Return whether times are not those of steps that follow each other at this rate."""
    try:
        return not np.array_equal(to_rows(times, ()), (since / fps).astype(np.float32))
    except ValueError:
        return True


def with_finals(root: Path, episodes: Sequence[RowEpisode]) -> list[RowEpisode]:
    """Return the episodes of a dataset, each with whether its final observation is in the table, and whether it was
    cut.

    Raises:
        CorruptShardError: the table is damaged, or the dataset was changed after rlx wrote it.
    """
    path, known = root / FINALS, list(episodes)
    if not path.is_file():
        return known
    last = -1
    with opened(path) as file:
        names = (*_FINAL_COLUMNS, *([CUT] if CUT in file.names else []))
        for batch in file.batches(names, _SCANNED_ROWS):
            try:
                numbers, lengths, *cuts = (to_rows(batch[name], ()).tolist() for name in names)
            except ValueError as exc:
                raise CorruptShardError(f"{path}: {' or '.join(_FINAL_COLUMNS)}: {exc}") from exc
            for number, length, *cut in zip(numbers, lengths, *cuts, strict=True):
                if not (last < number < len(known) and known[int(number)].rows == length):
                    raise CorruptShardError(
                        f"{path}: expected the numbers and lengths of episodes, found {number} of {length} steps",
                        hint=f"rm {path} if the dataset was changed since rlx wrote it; last steps are left out then",
                    )
                known[int(number)] = replace(known[int(number)], final_recorded=True, cut=cut == [True])
                last = number
    return known


def unknown_columns(file: ParquetFile, known: Sequence[str]) -> list[str]:
    """Return the names of the other columns."""
    return [name for name in file.names if name not in known]


def _name(template: Any, chunk: int, file: int) -> str:
    """Return name of a file of steps; raises CorruptShardError if it is outside the dataset's directory."""
    # Not str.format: a template from a file could reach into the values' attributes, or ask for any width.
    name = str(template)
    for key, value in (("chunk_index", chunk), ("file_index", file)):
        name = name.replace(f"{{{key}:03d}}", f"{value:03d}").replace(f"{{{key}}}", str(value))
    if "{" in name or "}" in name:
        raise CorruptShardError(f"{INFO}: data_path: expected {DATA_PATH}, found {template!r:.100}")
    checked_name(name)
    return name


def _numbers(path: Path, name: str, column: Any) -> list[int]:
    try:
        rows = to_rows(column, ())
    except ValueError as exc:
        raise CorruptShardError(f"{path}: {name}: {exc}") from exc
    if rows.dtype.kind not in "iu":
        raise CorruptShardError(f"{path}: {name}: expected whole numbers, found {rows.dtype}")
    numbers: list[int] = rows.tolist()
    return numbers


def _flags(path: Path, name: str, column: Any) -> NDArray[np.bool_]:
    try:
        flags: NDArray[np.bool_] = to_rows(column, ()) != 0
    except ValueError as exc:
        raise CorruptShardError(f"{path}: {name}: {exc}") from exc
    return flags
