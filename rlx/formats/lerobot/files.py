"""The files of steps of a LeRobot dataset: the episodes in each, their final observations and their frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.formats.common.fields import flags_of
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.rows.episodes import Batch, RowEpisode, RowStream
from rlx.formats.lerobot.columns import Feature
from rlx.formats.lerobot.layout import CUT, DONE, EPISODE, FINALS, LENGTH, TERMINATED, TIMESTAMP, TRUNCATED
from rlx.formats.lerobot.listing import ListedEpisode, plain_rows, whole_numbers
from rlx.formats.lerobot.video import Video, VideoPlace
from rlx.store.foreign_types import to_rows

_SCANNED_ROWS = 2**14


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of steps.

    Args:
        videos: location of the frames of every episode, by the feature's name.
        has_times: whether steps have other times than ``fps`` gives.
    """

    name: str
    episodes: tuple[RowEpisode, ...]
    videos: Mapping[str, tuple[VideoPlace, ...]] = field(default_factory=dict)
    has_times: bool = False


def data_files(
    root: Path, episodes: Iterable[ListedEpisode], flags: Sequence[str], fps: float | None
) -> Iterator[DataFile]:
    """Yield the files of steps, in the order of their episodes.

    Args:
        flags: those of the columns ``next.done``, ``next.terminated`` and ``next.truncated`` that exist.
        fps: steps per second, if known, and if there is a column of times.
    """
    for name, group in groupby(episodes, key=lambda one: one.file):
        yield _scanned(root, name, list(group), flags, fps)


def _scanned(
    root: Path, name: str, episodes: Sequence[ListedEpisode], flags: Sequence[str], fps: float | None
) -> DataFile:
    """Return a file with its episodes; the last row of each determines how it ended."""
    path = root / name
    found: list[tuple[bool, bool]] = []
    lengths = [episode.rows for episode in episodes]
    has_times = False
    with opened(path) as file:
        if file.rows != sum(lengths):
            raise CorruptShardError(f"{path}: expected {sum(lengths):,} rows as in its episodes, found {file.rows:,}")
        stops, row = np.cumsum(lengths), 0
        times = [TIMESTAMP] if fps is not None and TIMESTAMP in file.names else []
        for batch in file.batches([EPISODE, *flags, *times], _SCANNED_ROWS):
            numbers = np.array(whole_numbers(path, EPISODE, batch[EPISODE]))
            rows = np.arange(row, row + len(numbers))
            place = np.searchsorted(stops, rows, side="right")
            if (numbers != np.array([episode.number for episode in episodes])[place]).any():
                raise CorruptShardError(f"{path}: {EPISODE}: expected the episodes in order, as long as listed")
            columns = {flag: flags_of(plain_rows(path, flag, batch[flag]), f"{path}: {flag}", row) for flag in flags}
            last = stops[(stops > row) & (stops <= row + len(numbers))] - row - 1
            found += _ends({flag: column[last] for flag, column in columns.items()}, len(last))
            if times:
                since = rows - (stops - lengths)[place]
                has_times |= _are_others(batch[TIMESTAMP], since, fps or 1)
            row += len(numbers)
    made = (RowEpisode(one.number, one.rows, *end, False) for one, end in zip(episodes, found, strict=True))
    videos = {called: tuple(episode.videos[called] for episode in episodes) for called in episodes[0].videos}
    return DataFile(name, tuple(made), videos, has_times)


def _ends(columns: dict[str, NDArray[np.bool_]], count: int) -> list[tuple[bool, bool]]:
    truncated = columns.get(TRUNCATED, np.zeros(count, bool))
    terminated = columns.get(TERMINATED, columns.get(DONE, truncated) & ~truncated)
    return list(zip(terminated.tolist(), truncated.tolist(), strict=True))


def _are_others(times: Any, since: NDArray[Any], fps: float) -> bool:
    """Return whether times differ from those of steps at this rate."""
    try:
        return not np.array_equal(to_rows(times, ()), (since / fps).astype(np.float32))
    except ValueError:
        return True


def with_finals(root: Path, episodes: Sequence[RowEpisode]) -> list[RowEpisode]:
    """Return the episodes, with ``final_recorded`` and ``cut`` as in the table of final observations, if any."""
    path, known = root / FINALS, list(episodes)
    if not path.is_file():
        return known
    last = -1
    with opened(path) as file:
        names = (EPISODE, LENGTH, *([CUT] if CUT in file.names else []))
        for batch in file.batches(names, _SCANNED_ROWS):
            numbers, lengths, *cuts = (plain_rows(path, name, batch[name]).tolist() for name in names)
            for number, length, *cut in zip(numbers, lengths, *cuts, strict=True):
                if not (last < number < len(known) and known[int(number)].rows == length):
                    raise CorruptShardError(
                        f"{path}: expected the numbers and lengths of episodes, found {number} of {length} steps",
                        hint=f"rm {path} if the dataset was changed since rlx wrote it; last steps are left out then",
                    )
                known[int(number)] = replace(known[int(number)], final_recorded=True, cut=cut == [True])
                last = number
    return known


def frame_batches(
    root: Path, feature: Feature, data: DataFile, fps: float, size: int, dropped: Counter[str]
) -> Generator[Batch, None, None]:
    """Yield the frames of the steps of a file by their times, at most ``size`` per batch."""
    first = 0
    with ExitStack() as stack:
        times = _times(stack.enter_context(opened(root / data.name)), size)
        video: Video | None = None
        for episode, place in zip(data.episodes, data.videos[feature.name], strict=True):
            path = root / place.name
            if video is None or video.path != path:
                if video is not None:
                    video.close()
                video = stack.enter_context(Video(path, feature.shape))
            video.seek(place.start)
            for start in range(0, episode.rows, size):
                stop = min(start + size, episode.rows)
                since = (
                    np.arange(start, stop) / fps
                    if times is None
                    else times.rows(TIMESTAMP, first + start, first + stop).astype(np.float64)
                )
                yield {feature.name: video.frames((place.start + since).tolist(), dropped)}
            video.skip_to(place.stop, dropped)
            first += episode.rows


def _times(file: ParquetFile, size: int) -> RowStream | None:
    if TIMESTAMP not in file.names:
        return None
    clock = Feature(TIMESTAMP, "float32", (1,), is_image=False)
    batches = ({TIMESTAMP: clock.rows(batch[TIMESTAMP], file.path)} for batch in file.batches([TIMESTAMP], size))
    return RowStream(file.path, batches)
