"""LeRobot's datasets of versions 2 and 3: Parquet files of one or many episodes, with pictures in them or in videos."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, islice, pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.files.disk import read_object
from rlx.formats.common.fields import (
    NOT_OF_STEPS,
    ExtraFields,
    check_field,
    expecting,
    flags_of,
    missing_field,
    not_taken_note,
    with_flags,
)
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.pictures import lossy_encoding, lossy_notes
from rlx.formats.common.provenance import FILE_NAME, KEY, read_notes_beside
from rlx.formats.common.rows.episodes import (
    EARLY_FLAGS,
    GAPS,
    OUT_OF_ORDER,
    REPEATED,
    Batch,
    RowEpisode,
    RowStream,
    ending_notes,
    shard_bounds,
)
from rlx.formats.common.rows.scan import RowRuns
from rlx.formats.common.rows.table import picture_file, row_stream
from rlx.formats.common.skipping import DAMAGED, DAMAGES, add_hint, is_skipping, skippable, whole
from rlx.formats.common.source import batch_rows, id_of
from rlx.formats.lerobot.columns import Feature, add_fields, add_flags, described, is_noted, read_features, read_tasks
from rlx.formats.lerobot.layout import (
    CUT,
    DONE,
    EPISODE,
    EPISODE_LINES,
    EPISODES,
    FINALS,
    FRAME,
    INDEX,
    INFO,
    LENGTH,
    TASK,
    TASK_INDEX,
    TASK_LINES,
    TASKS,
    TERMINATED,
    TIMESTAMP,
    TRUNCATED,
)
from rlx.formats.lerobot.listing import (
    ListedEpisode,
    is_old,
    listed_episodes,
    plain_rows,
    unknown_episode_keys,
    whole_numbers,
)
from rlx.formats.lerobot.video import Video, VideoPlace, pyav
from rlx.schema import Field, Role, Schema
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


_LAYOUT = (
    "expected LeRobot's layout, v3.0: meta/info.json with features, meta/episodes/*/*.parquet with length and file of "
    "every episode, data/*/*.parquet with observation..., action, next.reward, next.done, one row per step; or v2.1: "
    "meta/episodes.jsonl instead, and a file per episode"
)


@dataclass(frozen=True, slots=True)
class LeRobot:
    """One dataset.

    Args:
        features: column of every field but the flags, if recorded.
        first_files: index of the first file of every shard, and the number of files.
        fps: steps per second, for videos of steps without times.
    """

    root: Path
    schema: Schema
    notes: Mapping[str, Any]
    features: Mapping[str, Feature]
    data: tuple[DataFile, ...]
    first_files: tuple[int, ...]
    fps: float = 1.0

    @property
    def id(self) -> str:
        """Id made of the directory's name."""
        return id_of(self.root)

    def shards(self) -> Sequence[int]:
        """Return the numbers of the shards: groups of whole files, about 100,000 steps each."""
        return range(len(self.first_files) - 1)

    def files(self, shard: int) -> Sequence[str]:
        """Return the files of steps and of frames of a shard, and that of the final observations of all."""
        data = self._files_of(shard)
        videos = (place.name for file in data for places in file.videos.values() for place in places)
        has_finals = any(episode.final_recorded for file in data for episode in file.episodes)
        return [*(file.name for file in data), *dict.fromkeys(videos), *([FINALS] if has_finals else [])]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes of the files of a shard."""
        before = self.data[: self.first_files[shard]]
        place = sum(episode.final_recorded for file in before for episode in file.episodes)
        with expecting(_LAYOUT):
            for data in self._files_of(shard):
                yield from self._file_blocks(data, place, dropped)
                place += sum(episode.final_recorded for episode in data.episodes)

    def _files_of(self, shard: int) -> Sequence[DataFile]:
        first, stop = self.first_files[shard : shard + 2]
        return self.data[first:stop]

    def _file_blocks(self, data: DataFile, place: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes of a file; ``place`` final observations come before theirs."""
        if data.damage is not None:
            for episode in data.episodes:
                with skippable(episode.name):
                    dropped[DAMAGED] += 1
                    raise CorruptShardError(data.damage)
            return
        row = 0
        with ExitStack() as stack:
            file = stack.enter_context(opened(self.root / data.name))
            streams: _Streams | None = None
            for episode in data.episodes:
                if streams is None:
                    streams = self._streams(file, data, row, place, dropped, stack)
                rows = _Columns(streams, self, row, place)
                if not (yield from whole(episode.name, episode.blocks(self.schema, rows, dropped), dropped)):
                    streams = None  # one may have ended there
                row += episode.rows
                place += episode.final_recorded
            for video in streams.videos.values() if streams is not None else ():
                video.finish()

    def _streams(
        self, file: ParquetFile, data: DataFile, row: int, place: int, dropped: Counter[str], stack: ExitStack
    ) -> _Streams:
        """Return the streams of a file from a row and a final observation on; the stack closes those of videos."""
        in_columns = {name: feature for name, feature in self.features.items() if not feature.is_video}
        columns = row_stream(
            file.path, FeatureRows(file, in_columns.values()), _names(in_columns), self.schema, data.runs, row
        )
        episode = bisect_right([*accumulate(data.lengths)], row)
        first, videos = sum(data.lengths[:episode]), dict[str, RowStream]()
        for name, feature in self.features.items():
            if feature.is_video:
                frames = frame_batches(self.root, feature, data, self.fps, self.schema, dropped, episode)
                videos[name] = RowStream(file.path, frames, first)
                stack.callback(videos[name].close)
        finals: RowStream | None = None
        if any(episode.final_recorded for episode in data.episodes):
            seen = {name: self.features[name] for name in self.schema.names(Role.OBSERVATION)}
            beside = stack.enter_context(opened(self.root / FINALS))
            finals = row_stream(beside.path, FeatureRows(beside, seen.values()), _names(seen), self.schema, None, place)
        return _Streams(columns, videos, finals)


def _names(features: Mapping[str, Feature]) -> list[str]:
    return [feature.name for feature in features.values()]


@dataclass(frozen=True, slots=True)
class _Streams:
    """The streams of a file: of its columns, of its videos, by field, and of final observations, if any."""

    columns: RowStream
    videos: Mapping[str, RowStream]
    finals: RowStream | None


@dataclass(frozen=True, slots=True)
class _Columns:
    """The rows of an episode, from row ``first`` of its file; ``place`` is the row of its final observation."""

    streams: _Streams
    source: LeRobot
    first: int
    place: int

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field = self.source.schema[name]
        if name not in self.source.features:
            return field.zeros(stop - start)
        stream = self.streams.videos.get(name, self.streams.columns)
        return self._read(stream, name, self.first + start, self.first + stop)

    def after(self, name: str, row: int) -> NDArray[np.generic]:  # noqa: ARG002  (it is the episode's last)
        assert self.streams.finals is not None
        return self._read(self.streams.finals, name, self.place, self.place + 1)

    def _read(self, stream: RowStream, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field, column = self.source.schema[name], self.source.features[name].name
        rows = stream.rows(column, start, stop)
        check_field(name, field, rows, f"{stream.path}: {column}", start)
        return rows.reshape(len(rows), *field.shape)


@expecting(_LAYOUT)
def open_lerobot(path: Path) -> LeRobot:
    """Return the dataset in a directory."""
    path = path.absolute()
    info = read_object(path / INFO)
    if not (is_old(info) or str(info.get("codebase_version")).startswith("v3.")):
        raise SourceError(
            f"{path / INFO}: codebase_version: expected v2.0, v2.1 or v3.0, found {info.get('codebase_version')!r:.40}",
            hint="LeRobot's convert_dataset_v1_to_v2 or a later script of that name brings it up to date",
        )
    noted = read_object(path / FILE_NAME).get(KEY) if (path / FILE_NAME).is_file() else None
    found, extras = read_features(info, path / INFO)
    flags = [name for name in (DONE, TERMINATED, TRUNCATED) if name in found]
    fps = info.get("fps")
    rate = float(fps) if isinstance(fps, int | float) and 0 < fps < inf else None
    videos = [name for name, feature in found.items() if feature.is_video]
    if videos:
        pyav()
        if rate is None:
            raise CorruptShardError(f"{path / INFO}: fps: expected frames per second, found {fps!r:.40}")
    fps = rate if TIMESTAMP in found else None
    data = tuple(data_files(path, listed_episodes(path, info, videos), flags, fps))
    if not data:
        raise SourceError(f"{path} has no episode")
    if not (intact := [file for file in data if file.damage is None]):
        raise CorruptShardError(str(data[0].damage))
    follows_fps = fps is not None and not any(one.has_times for one in intact)
    _take_columns(path, info, intact, found, extras, noted, follows_fps=follows_fps)
    early = sum((file.early for file in data), Counter[str]())
    features = add_fields(found, noted, extras) | add_flags({name: found[name] for name in early}, extras)
    fields = extras.fields
    notes: dict[str, Any] = {**read_notes_beside(path), "format": "LeRobot"}
    if noted is None:
        notes["lerobot"] = described(info, features, extras)
    if "reward" not in fields:
        fields["reward"] = Field("float32", (), Role.NEXT)
        notes["rewards"] = "unrecorded: zeros"
    if DONE not in flags:
        notes["terminated"] = "unrecorded"
    notes |= not_taken_note(extras.not_taken)
    schema = _schema(path, fields, extras)
    episodes = with_finals(path, [episode for file in data for episode in file.episodes])
    for name, count in (
        ("total_episodes", sum(len(file.lengths) for file in data)),
        ("total_frames", sum(one.rows for one in episodes)),
    ):
        if info.get(name) != count:
            listed = EPISODE_LINES if is_old(info) else EPISODES
            raise CorruptShardError(
                f"{path / INFO}: {name}: expected {count:,} as {listed} lists, found {info.get(name)!r:.80}"
            )
    notes |= ending_notes(episodes) | sum((file.notes for file in data), Counter[str]())
    notes |= {EARLY_FLAGS: dict(early)} if early else {}
    left = iter(episodes)
    data = tuple(replace(file, episodes=tuple(islice(left, len(file.episodes)))) for file in data)
    if not (filled := [file for file in intact if any(file.lengths)]):
        raise SourceError(f"{path} has no step")
    notes |= _lossy(path / filled[0].name, features)
    if lossy := [name for name, feature in features.items() if feature.is_video]:
        notes["lossy_video"] = lossy
    bounds = shard_bounds(sum(episode.rows for episode in file.episodes) for file in data)
    return LeRobot(path, schema, notes, features, data, bounds, rate or 1.0)


def _take_columns(
    path: Path,
    info: Mapping[str, Any],
    data: Sequence[DataFile],
    found: dict[str, Feature],
    extras: ExtraFields,
    noted: Any,
    *,
    follows_fps: bool,
) -> None:
    """Drop times that follow from ``fps``, add the texts of tasks, and note columns without a feature."""
    if not is_noted(noted, TIMESTAMP) and (noted is not None or follows_fps):
        found.pop(TIMESTAMP, None)
    if TASK_INDEX in found and (noted is None or is_noted(noted, TASK)):
        if (tasks := read_tasks(path, info)) is not None:
            found[TASK] = tasks
        else:
            extras.leave(TASK_INDEX, f"{TASK_LINES if is_old(info) else TASKS} is missing")
    with opened(path / data[0].name) as file:
        for name in file.names:
            if name not in {*info["features"], *found}:
                extras.leave(name, f"not among the features of {INFO}")
    for name in unknown_episode_keys(path, info):
        extras.leave(f"{EPISODE_LINES if is_old(info) else EPISODES}: {name}", NOT_OF_STEPS)


def _schema(path: Path, fields: dict[str, Field], extras: ExtraFields) -> Schema:
    if (missing := missing_field(fields)) is not None:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in extras.not_taken.items())
        raise SourceError(f"{path / INFO}: features: {missing} is missing; not taken are {reasons or 'none'}")
    return with_flags(fields, f"{path / INFO}: features", SourceError)


def _lossy(path: Path, features: Mapping[str, Feature]) -> dict[str, list[str]]:
    """Return the notes of fields whose pictures are lossy, by the first row of a file."""
    images = {name: feature.name for name, feature in features.items() if feature.is_image}
    if not images:
        return {}
    with opened(path) as file:
        first = next(file.batches(list(images.values()), 1))
    return lossy_notes({name: lossy_encoding(picture_file(first[column][0]) or b"") for name, column in images.items()})
