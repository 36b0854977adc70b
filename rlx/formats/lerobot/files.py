"""The files of steps of a LeRobot dataset: the episodes in each, their final observations and their frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.fields import flags_of
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.rows.episodes import GAPS, OUT_OF_ORDER, REPEATED, Batch, RowEpisode, RowStream
from rlx.formats.common.rows.scan import RowRuns
from rlx.formats.common.rows.table import row_stream
from rlx.formats.common.skipping import DAMAGES, add_hint, is_skipping
from rlx.formats.common.source import batch_rows
from rlx.formats.lerobot.columns import Feature
from rlx.formats.lerobot.layout import (
    CUT,
    DONE,
    EPISODE,
    FINALS,
    FRAME,
    INDEX,
    LENGTH,
    TERMINATED,
    TIMESTAMP,
    TRUNCATED,
)
from rlx.formats.lerobot.listing import ListedEpisode, plain_rows, whole_numbers
from rlx.formats.lerobot.video import Video, VideoPlace
from rlx.schema import Schema
from rlx.store.foreign_types import to_rows

_SCANNED_ROWS = 2**14


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of steps.

    Args:
        episodes: those that are listed, perhaps in pieces.
        lengths: rows of each listed episode.
        videos: location of the frames of every listed episode, by the feature's name.
        has_times: whether steps have other times than ``fps`` gives.
        runs: its rows, episode by episode; None if that is their order.
        notes: counts of what was done about the order of rows.
        early: how often each flag is set before the end of an episode.
        damage: why its episodes cannot be read, if that is known.
    """

    name: str
    episodes: tuple[RowEpisode, ...]
    lengths: tuple[int, ...]
    videos: Mapping[str, tuple[VideoPlace, ...]]
    has_times: bool
    runs: RowRuns | None
    notes: Counter[str]
    early: Counter[str]
    damage: str | None = None


def data_files(
    root: Path, episodes: Iterable[ListedEpisode], flags: Sequence[str], fps: float | None
) -> Iterator[DataFile]:
    """Yield the files of steps, in the order of their episodes.

    Args:
        flags: those of the columns ``next.done``, ``next.terminated`` and ``next.truncated`` that exist.
        fps: steps per second, if known, and if there is a column of times.
    """
    for name, group in groupby(episodes, key=lambda one: one.file):
        listed = list(group)
        try:
            found = _scanned(root, name, listed, flags, fps)
        except DAMAGES as exc:
            if not is_skipping():
                add_hint(exc)
                raise
            found = _unread(name, listed, str(exc))
        yield found


def _unread(name: str, listed: Sequence[ListedEpisode], damage: str) -> DataFile:
    """Return a file whose episodes cannot be read."""
    rows = tuple(one.rows for one in listed)
    episodes = tuple(
        RowEpisode(one.number, one.rows, terminated=False, truncated=False, final_recorded=False) for one in listed
    )
    return DataFile(name, episodes, rows, {}, False, None, Counter(), Counter(), damage)


def _scanned(
    root: Path, name: str, episodes: Sequence[ListedEpisode], flags: Sequence[str], fps: float | None
) -> DataFile:
    """Return a file with its episodes; the last row of each determines how it ended."""
    path = root / name
    rows = sum(episode.rows for episode in episodes)
    with opened(path) as file:
        if file.rows != rows:
            raise CorruptShardError(f"{path}: expected {rows:,} rows as in its episodes, found {file.rows:,}")
        located = next(([column] for column in (FRAME, INDEX) if column in file.names), [])
        times = [TIMESTAMP] if fps is not None and TIMESTAMP in file.names else []
        scan, runs = _Scan(path, episodes, fps), None
        for batch in _plain(file, [EPISODE, *located, *flags, *times]):
            scan.add(batch)
        if not scan.is_in_order:
            batches = [*_plain(file, [EPISODE, *located, *flags, *times])]
            whole = {column: np.concatenate([batch[column] for batch in batches]) for column in batches[0]}
            order = np.lexsort([whole[column] for column in (*located, EPISODE)])
            starts = np.flatnonzero(np.diff(order, prepend=-2) != 1)
            runs = RowRuns(order[starts], np.diff(starts, append=rows), 1)
            scan = _Scan(path, episodes, fps)
            scan.add({column: values[order] for column, values in whole.items()})
            scan.notes[OUT_OF_ORDER] = len(starts) - 1
            if not scan.is_in_order:
                raise CorruptShardError(f"{path}: {EPISODE}: expected as many rows of every episode as listed")
    videos = {called: tuple(episode.videos[called] for episode in episodes) for called in episodes[0].videos}
    lengths = tuple(episode.rows for episode in episodes)
    return DataFile(name, tuple(scan.found()), lengths, videos, scan.has_times, runs, scan.notes, scan.early)


def _plain(file: ParquetFile, names: Sequence[str]) -> Iterator[Batch]:
    """Yield columns of one value per row; unreadable times are NaN."""
    for batch in file.batches(names, _SCANNED_ROWS):
        rows: dict[str, NDArray[Any]] = {}
        for name, column in batch.items():
            if name in (EPISODE, FRAME, INDEX):
                rows[name] = np.array(whole_numbers(file.path, name, column), np.int64)
            elif name != TIMESTAMP:
                rows[name] = plain_rows(file.path, name, column)
            else:
                try:
                    rows[name] = to_rows(column, ())
                except ValueError:
                    rows[name] = np.full(len(column), np.nan)
        yield rows


class _Scan:
    """Scan of the rows of a file in the order of its episodes.

    Attributes:
        is_in_order: whether the rows so far are those of the listed episodes, in the order of their numbers.
        early: how often each flag is set before the end of an episode.
    """

    def __init__(self, path: Path, episodes: Sequence[ListedEpisode], fps: float | None) -> None:
        self.is_in_order, self.has_times = True, False
        self.notes, self.early = Counter[str](), Counter[str]()
        self._path, self._episodes, self._fps = path, episodes, fps
        lengths = np.array([episode.rows for episode in episodes])
        self._numbers = np.array([episode.number for episode in episodes])
        self._stops = np.cumsum(lengths)
        self._starts = self._stops - lengths
        self._row, self._before = 0, -1
        self._ends: dict[str, NDArray[np.bool_]] = {}
        self._breaks: list[NDArray[np.int64]] = []
        self._is_late = np.zeros(len(episodes), bool)

    def add(self, batch: Batch) -> None:
        """Take the next rows of the columns."""
        count = len(batch[EPISODE])
        rows = np.arange(self._row, self._row + count)
        place = np.searchsorted(self._stops, rows, side="right")
        since = rows - self._starts[place]
        self.is_in_order &= bool((batch[EPISODE] == self._numbers[place]).all())
        for name in {FRAME, INDEX} & batch.keys():
            ahead = batch[name] - np.append(self._before, batch[name][:-1])
            self._before = batch[name][-1]
            self.is_in_order &= bool((ahead[since > 0] >= 0).all())
            breaks = (since > 0) & (ahead != 1)
            self._breaks.append(rows[breaks])
            self.notes[GAPS] += int((breaks & (ahead > 1)).sum())
            self.notes[REPEATED] += int((breaks & (ahead < 1)).sum())
            is_late = (since == 0) & (name == FRAME) & (batch[name] != 0)
            self._is_late[place[is_late]] = True
            self.notes[GAPS] += int(is_late.sum())
        for name in {DONE, TERMINATED, TRUNCATED} & batch.keys():
            flags = flags_of(batch[name], f"{self._path}: {name}", self._row)
            is_last = rows == self._stops[place] - 1
            self._ends.setdefault(name, np.zeros(len(self._episodes), bool))[place[is_last]] = flags[is_last]
            self.early[name] += int((flags & ~is_last).sum())
        if TIMESTAMP in batch:
            self.has_times |= not np.array_equal(batch[TIMESTAMP], (since / (self._fps or 1)).astype(np.float32))
        self._row += count

    def found(self) -> Iterator[RowEpisode]:
        """Yield the episodes; one in which a frame is missing or repeated is in pieces."""
        never = np.zeros(len(self._episodes), bool)
        truncated = self._ends.get(TRUNCATED, never)
        terminated = self._ends.get(TERMINATED, self._ends.get(DONE, never) & ~truncated)
        breaks = np.concatenate([np.zeros(0, np.int64), *self._breaks])
        for place, (start, stop) in enumerate(zip(self._starts.tolist(), self._stops.tolist(), strict=True)):
            inside = breaks[slice(*np.searchsorted(breaks, [start + 1, stop]))].tolist()
            for first, end in pairwise([start, *inside, stop]):
                is_last = end == stop
                yield RowEpisode(
                    int(self._numbers[place]),
                    end - first,
                    terminated=is_last and bool(terminated[place]),
                    truncated=is_last and bool(truncated[place]),
                    final_recorded=False,
                    from_reset=first == start and not self._is_late[place],
                )


def with_finals(root: Path, episodes: Sequence[RowEpisode]) -> list[RowEpisode]:
    """Return the episodes, with ``final_recorded`` and ``cut`` as in the table of final observations, if any."""
    path, known = root / FINALS, list(episodes)
    if not path.is_file():
        return known
    # The last piece of each episode, and its rows.
    places = {episode.number: place for place, episode in enumerate(known)}
    rows = Counter[int]()
    for episode in known:
        rows[episode.number] += episode.rows
    last = -1
    with opened(path) as file:
        names = (EPISODE, LENGTH, *([CUT] if CUT in file.names else []))
        for batch in file.batches(names, _SCANNED_ROWS):
            numbers, lengths, *cuts = (plain_rows(path, name, batch[name]).tolist() for name in names)
            for number, length, *cut in zip(numbers, lengths, *cuts, strict=True):
                if not (last < number in places and rows[number] == length):
                    raise CorruptShardError(
                        f"{path}: expected the numbers and lengths of episodes, found {number} of {length} steps",
                        hint=f"rm {path} if the dataset was changed since rlx wrote it; last steps are left out then",
                    )
                place = places[number]
                known[place] = replace(known[place], final_recorded=True, cut=cut == [True])
                last = number
    return known


def frame_batches(
    root: Path, feature: Feature, data: DataFile, fps: float, schema: Schema, dropped: Counter[str], episode: int = 0
) -> Generator[Batch, None, None]:
    """Yield the frames of the steps of a file by their times, in batches of rows, from a listed episode on."""
    first, size = sum(data.lengths[:episode]), batch_rows(schema)
    with ExitStack() as stack:
        times = _times(stack.enter_context(opened(root / data.name)), schema, data.runs)
        video: Video | None = None
        for rows, place in zip(data.lengths[episode:], data.videos[feature.name][episode:], strict=True):
            path = root / place.name
            if video is None or video.path != path:
                if video is not None:
                    video.close()
                video = stack.enter_context(Video(path, feature.shape))
            video.seek(place.start)
            for start in range(0, rows, size):
                stop = min(start + size, rows)
                since = (
                    np.arange(start, stop) / fps
                    if times is None
                    else times.rows(TIMESTAMP, first + start, first + stop).astype(np.float64)
                )
                yield {feature.name: video.frames((place.start + since).tolist(), dropped)}
            video.skip_to(place.stop, dropped)
            first += rows


def _times(file: ParquetFile, schema: Schema, runs: RowRuns | None) -> RowStream | None:
    if TIMESTAMP not in file.names:
        return None
    clock = Feature(TIMESTAMP, "float32", (1,), is_image=False)
    return row_stream(file.path, FeatureRows(file, [clock]), [TIMESTAMP], schema, runs)


class FeatureRows:
    """The columns of features in a file; see ``Rows``."""

    def __init__(self, file: ParquetFile, features: Iterable[Feature]) -> None:
        self._file = file
        self._features = {feature.name: feature for feature in features}

    def group_start(self, row: int) -> int:
        """Return the first row of the row group that has a row."""
        return self._file.group_start(row)

    def batches(self, paths: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:
        """Yield rows of columns, at most ``size`` each, from ``group_start(row)`` on."""
        for batch in self._file.batches(paths, size, row):
            yield {name: self._features[name].rows(column, self._file.path) for name, column in batch.items()}
