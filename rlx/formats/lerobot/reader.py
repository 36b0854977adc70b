"""LeRobot's datasets of versions 2 and 3: Parquet files of one or many episodes, with pictures in them or in videos."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, islice
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
    missing_field,
    not_taken_note,
    with_flags,
)
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.pictures import lossy_encoding, lossy_notes
from rlx.formats.common.provenance import FILE_NAME, KEY, read_notes_beside
from rlx.formats.common.rows.episodes import EARLY_FLAGS, RowStream, ending_notes, shard_bounds
from rlx.formats.common.rows.table import picture_file, row_stream
from rlx.formats.common.skipping import DAMAGED, skippable, whole
from rlx.formats.common.source import id_of
from rlx.formats.lerobot.columns import Feature, add_fields, add_flags, described, is_noted, read_features, read_tasks
from rlx.formats.lerobot.files import DataFile, FeatureRows, data_files, frame_batches, with_finals
from rlx.formats.lerobot.layout import (
    DONE,
    EPISODE_LINES,
    EPISODES,
    FINALS,
    INFO,
    TASK,
    TASK_INDEX,
    TASK_LINES,
    TASKS,
    TERMINATED,
    TIMESTAMP,
    TRUNCATED,
)
from rlx.formats.lerobot.listing import is_old, listed_episodes, unknown_episode_keys
from rlx.formats.lerobot.video import pyav
from rlx.schema import Field, Role, Schema

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
    ) -> "_Streams":
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
