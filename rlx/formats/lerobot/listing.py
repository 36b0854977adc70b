"""The episodes listed in a LeRobot dataset, in tables (version 3) or JSON lines (version 2)."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.files.disk import check_readable, listed, opened_file, parse_object
from rlx.files.location import checked_name
from rlx.formats.common.parquet_file import opened
from rlx.formats.lerobot.layout import (
    DATA_CHUNK,
    DATA_FILE,
    DATA_PATH,
    EPISODE,
    EPISODE_LINES,
    EPISODES,
    FIRST_INDEX,
    INFO,
    LENGTH,
    OLD_DATA_PATH,
    OLD_VIDEO_PATH,
    STOP_INDEX,
    VIDEO_PATH,
)
from rlx.formats.lerobot.video import VideoPlace
from rlx.store.foreign_types import to_rows

_SCANNED_ROWS = 2**14
_MAX_NUMBER = 2**40
_MAX_LINE_KEYS = 100
_OLD_CHUNK_FILES = 1000
_PLACEHOLDER = re.compile(r"\{(\w{1,32})(?::0([1-9])d)?\}")
_KNOWN = frozenset({EPISODE, LENGTH, "tasks", FIRST_INDEX, STOP_INDEX})


@dataclass(frozen=True, slots=True)
class ListedEpisode:
    """One episode: its file of steps, and the location of its frames by feature."""

    number: int
    rows: int
    file: str
    videos: Mapping[str, VideoPlace] = field(default_factory=dict)


def is_old(info: Mapping[str, Any]) -> bool:
    """Return whether a dataset has the layout of version 2, with a file per episode."""
    return str(info.get("codebase_version")) in ("v2.0", "v2.1")


def listed_episodes(root: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[ListedEpisode]:
    """Return the episodes in order; raises CorruptShardError unless they are numbered from 0."""
    episodes = _old_episodes(root, info, videos) if is_old(info) else _table(root, info, videos)
    numbers = [episode.number for episode in episodes]
    place = root / (EPISODE_LINES if is_old(info) else EPISODES)
    if numbers != list(range(len(numbers))):
        raise CorruptShardError(f"{place}: {EPISODE}: expected 0, 1, 2 and so on, found {numbers[:20]!s:.200}")
    if bad := [episode.rows for episode in episodes if not 0 <= episode.rows < _MAX_NUMBER]:
        raise CorruptShardError(f"{place}: {LENGTH}: expected a number of steps, found {bad[0]}")
    return _with_stops(episodes)


def unknown_episode_keys(root: Path, info: Mapping[str, Any]) -> list[str]:
    """Return the keys of listed episodes that are not location, statistics or tasks."""
    if is_old(info):
        found = {key: None for line in json_lines(root / EPISODE_LINES) for key in line}
        return [key for key in list(found)[:_MAX_LINE_KEYS] if key not in _KNOWN]
    path = listed(root / EPISODES, "*/*.parquet")[0]
    with opened(path) as file:
        return [
            name
            for name in file.names
            if name not in _KNOWN and name.split("/")[0] not in ("data", "meta", "stats", "videos")
        ]


def json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file of JSON lines."""
    check_readable(path)
    with opened_file(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield parse_object(line, f"{path}: line {number:,}")


def _table(root: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[ListedEpisode]:
    paths = listed(root / EPISODES, "*/*.parquet")
    if not paths:
        raise SourceError(f"{root / EPISODES} has no */*.parquet")
    counts = [EPISODE, LENGTH, DATA_CHUNK, DATA_FILE]
    of_video = {name: [f"videos/{name}/{key}" for key in ("chunk_index", "file_index")] for name in videos}
    counts += [column for columns in of_video.values() for column in columns]
    starts = {name: f"videos/{name}/from_timestamp" for name in videos}
    episodes: list[ListedEpisode] = []
    for path in paths:
        with opened(path) as file:
            for batch in file.batches([*counts, *starts.values()], _SCANNED_ROWS):
                columns = {name: whole_numbers(path, name, batch[name]) for name in counts}
                times = {name: _times(path, column, batch[column]) for name, column in starts.items()}
                for row, number in enumerate(columns[EPISODE]):
                    place = {"chunk_index": columns[DATA_CHUNK][row], "file_index": columns[DATA_FILE][row]}
                    places = {}
                    for name in videos:
                        chunk, part = (columns[column][row] for column in of_video[name])
                        video: dict[str, int | str] = {"video_key": name, "chunk_index": chunk, "file_index": part}
                        places[name] = VideoPlace(_name(info, "video_path", VIDEO_PATH, **video), times[name][row])
                    file_name = _name(info, "data_path", DATA_PATH, **place)
                    episodes.append(ListedEpisode(number, columns[LENGTH][row], file_name, places))
    return episodes


def _old_episodes(root: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[ListedEpisode]:
    size = info.get("chunks_size", _OLD_CHUNK_FILES)
    if type(size) is not int or size < 1:
        raise CorruptShardError(f"{root / INFO}: chunks_size: expected a number of files, found {size!r:.80}")
    episodes: list[ListedEpisode] = []
    for line in json_lines(root / EPISODE_LINES):
        number, rows = line.get(EPISODE), line.get(LENGTH)
        if type(number) is not int or type(rows) is not int:
            raise CorruptShardError(
                f"{root / EPISODE_LINES}: expected {EPISODE} and {LENGTH}, found {number!r:.40} and {rows!r:.40}"
            )
        place = {"episode_chunk": number // size, "episode_index": number}
        places = {
            name: VideoPlace(_name(info, "video_path", OLD_VIDEO_PATH, video_key=name, **place), 0.0) for name in videos
        }
        episodes.append(ListedEpisode(number, rows, _name(info, "data_path", OLD_DATA_PATH, **place), places))
    return episodes


def _with_stops(episodes: Sequence[ListedEpisode]) -> list[ListedEpisode]:
    """Return the episodes with the times at which the next ones in their videos start."""
    starts: dict[str, set[float]] = defaultdict(set)
    for episode in episodes:
        for place in episode.videos.values():
            starts[place.name].add(place.start)
    stops = {name: dict(pairwise([*sorted(found), inf])) for name, found in starts.items()}
    return [
        replace(
            episode,
            videos={
                name: replace(place, stop=stops[place.name][place.start]) for name, place in episode.videos.items()
            },
        )
        for episode in episodes
    ]


def _name(info: Mapping[str, Any], key: str, default: str, **values: int | str) -> str:
    """Return the name of a file of steps or frames; raises CorruptShardError if it leads out of the directory."""
    template = info.get(key) or default

    def filled(found: re.Match[str]) -> str:
        value, width = values.get(found[1]), found[2]
        if value is None or (width and isinstance(value, str)):
            raise CorruptShardError(f"{INFO}: {key}: expected {default}, found {template!r:.100}")
        return f"{value:0{width}d}" if width else str(value)

    # Not str.format: a template from a file could reach into the values' attributes, or ask for any width.
    name = _PLACEHOLDER.sub(filled, str(template))
    if "{" in name or "}" in name:
        raise CorruptShardError(f"{INFO}: {key}: expected {default}, found {template!r:.100}")
    return checked_name(name)


def whole_numbers(path: Path, name: str, column: Any) -> list[int]:
    """Return the numbers of a column; raises CorruptShardError unless they are integers."""
    rows = plain_rows(path, name, column)
    if rows.dtype.kind not in "iu":
        raise CorruptShardError(f"{path}: {name}: expected whole numbers, found {rows.dtype}")
    numbers: list[int] = rows.tolist()
    return numbers


def plain_rows(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Return a column of one value per row; raises CorruptShardError for one of lists, or with nulls."""
    try:
        return to_rows(column, ())
    except ValueError as exc:
        raise CorruptShardError(f"{path}: {name}: {exc}") from exc


def _times(path: Path, name: str, column: Any) -> list[float]:
    rows = plain_rows(path, name, column)
    times: list[float] = rows.tolist() if rows.dtype.kind in "iuf" else []
    if bad := [time for time in times if not isfinite(time) or time < 0]:
        raise CorruptShardError(f"{path}: {name}: expected seconds from the start of a video, found {bad[0]}")
    if len(times) != len(column):
        raise CorruptShardError(f"{path}: {name}: expected seconds, found {rows.dtype}")
    return times
