"""LeRobot's datasets of version 3: Parquet files of many episodes each, pictures in them as PNG."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.files.disk import read_object
from rlx.formats.common.fields import NOT_OF_STEPS, check_field, expecting, missing_field, not_taken_note
from rlx.formats.common.parquet_file import ParquetFile, opened
from rlx.formats.common.pictures import is_jpeg
from rlx.formats.common.provenance import FILE_NAME, KEY, read_notes_beside
from rlx.formats.common.rows.episodes import Batch, RowStream, without_outcome
from rlx.formats.common.rows.table import picture_file
from rlx.formats.common.source import batch_rows, id_of
from rlx.formats.lerobot.columns import Feature, described, fields_of, is_noted, read_features, read_tasks
from rlx.formats.lerobot.files import DataFile, data_files, episode_columns, unknown_columns, with_finals
from rlx.formats.lerobot.layout import (
    DATA_PATH,
    DONE,
    EPISODES,
    FINALS,
    INFO,
    TASK,
    TASK_INDEX,
    TASKS,
    TERMINATED,
    TIMESTAMP,
    TRUNCATED,
)
from rlx.schema import Field, Role, Schema

_LAYOUT = (
    "expected LeRobot's layout, v3.0: meta/info.json with features, meta/episodes/*/*.parquet with length and place of "
    "every episode, data/*/*.parquet with observation..., action, next.reward, next.done, a row a step"
)


@dataclass(frozen=True, slots=True)
class LeRobot:
    """One dataset.

    Args:
        root: its directory.
        schema: what one step holds.
        notes: the notes that rlx wrote, the data that are not recorded or were left out, and the pictures that went
            through JPEG.
        features: the column of every field that has one, by the field's name.
        data: the files, a shard each.
    """

    root: Path
    schema: Schema
    notes: Mapping[str, Any]
    features: Mapping[str, Feature]
    data: tuple[DataFile, ...]

    @property
    def id(self) -> str:
        """Name of the directory."""
        return id_of(self.root)

    def shards(self) -> Sequence[int]:
        """Return the files of steps."""
        return range(len(self.data))

    def files(self, shard: int) -> Sequence[str]:
        """Return the one file of a shard, and that of the final observations of all."""
        has_finals = any(episode.final_recorded for episode in self.data[shard].episodes)
        return [self.data[shard].name, FINALS] if has_finals else [self.data[shard].name]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes of a file.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: it is damaged, or has NaN, nulls or pictures of another size in it.
        """
        data, row = self.data[shard], 0
        place = sum(episode.final_recorded for file in self.data[:shard] for episode in file.episodes)
        with expecting(_LAYOUT), ExitStack() as stack:
            file = stack.enter_context(opened(self.root / data.name))
            stream = RowStream(file.path, self._batches(file, self.features))
            finals: RowStream | None = None
            if FINALS in self.files(shard):
                seen = {name: self.features[name] for name in self.schema.names(Role.OBSERVATION)}
                beside = stack.enter_context(opened(self.root / FINALS))
                finals = RowStream(beside.path, self._batches(beside, seen, place), beside.group_start(place))
            for episode in data.episodes:
                stream.skip_to(row)
                yield from episode.blocks(self.schema, _Columns(stream, finals, self, row, place), dropped)
                row += episode.rows
                place += episode.final_recorded

    def _batches(
        self, file: ParquetFile, features: Mapping[str, Feature], row: int = 0
    ) -> Generator[Batch, None, None]:
        named = {feature.name: feature for feature in features.values()}
        for batch in file.batches([*named], batch_rows(self.schema), row):
            yield {name: named[name].rows(column, file.path) for name, column in batch.items()}


class _Columns:
    """The rows of an episode that begins at a row of its file; how many final observations come before its own."""

    def __init__(self, stream: RowStream, finals: RowStream | None, source: LeRobot, first: int, place: int) -> None:
        self._stream = stream
        self._finals = finals
        self._source = source
        self._first = first
        self._place = place

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field = self._source.schema[name]
        if name not in self._source.features:
            return field.zeros(stop - start)
        return self._read(self._stream, name, self._first + start, self._first + stop)

    def after(self, name: str, row: int) -> NDArray[np.generic]:  # noqa: ARG002  (it is the episode's last)
        assert self._finals is not None
        return self._read(self._finals, name, self._place, self._place + 1)

    def _read(self, stream: RowStream, name: str, start: int, stop: int) -> NDArray[np.generic]:
        field, column = self._source.schema[name], self._source.features[name].name
        rows = stream.rows(column, start, stop)
        check_field(name, field, rows, f"{stream.path}: {column}", start)
        return rows.reshape(-1, *field.shape)


def recognises(path: Path) -> bool:
    """Return whether a directory is a dataset of LeRobot, of whatever version."""
    return (path / INFO).is_file()


@expecting(_LAYOUT)
def open_lerobot(path: Path) -> LeRobot:
    """Return the dataset in a directory.

    Raises:
        SourceNotFoundError: the directory does not exist, or a file of it is missing.
        CorruptShardError: what describes it is damaged, or the files do not hold what it says.
        SourceError: it is of another version, has no episode, or keeps observations as video.
    """
    path = path.absolute()
    info = read_object(path / INFO)
    if not str(version := info.get("codebase_version")).startswith("v3."):
        raise SourceError(
            f"{path / INFO}: codebase_version: expected v3.0, found {version!r:.40}",
            hint="python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id ID brings it up to date",
        )
    noted = read_object(path / FILE_NAME).get(KEY) if (path / FILE_NAME).is_file() else None
    found, extras = read_features(info, path / INFO)
    flags = [name for name in (DONE, TERMINATED, TRUNCATED) if name in found]
    fps = info.get("fps")
    fps = fps if isinstance(fps, int | float) and fps > 0 and TIMESTAMP in found else None
    data = tuple(data_files(path, info.get("data_path", DATA_PATH), flags, fps))
    if not data:
        raise SourceError(f"{path} has no episode")
    if not is_noted(noted, TIMESTAMP) and (noted is not None or (fps and not any(file.is_timed for file in data))):
        found.pop(TIMESTAMP, None)
    if TASK_INDEX in found and (noted is None or is_noted(noted, TASK)):
        if (tasks := read_tasks(path)) is not None:
            found[TASK] = tasks
        else:
            extras.leave(TASK_INDEX, f"{TASKS} is missing")
    with opened(path / data[0].name) as file:
        for name in unknown_columns(file, [*info["features"], *found]):
            extras.leave(name, f"not among the features of {INFO}")
    for name in episode_columns(path):
        extras.leave(f"{EPISODES}: {name}", NOT_OF_STEPS)
    fields, features = fields_of(found, noted, extras)
    notes: dict[str, Any] = {**read_notes_beside(path), "format": "LeRobot"}
    if noted is None:
        notes["lerobot"] = described(info, features, extras)
    if "reward" not in fields:
        fields["reward"] = Field("float32", (), Role.NEXT)
        notes["rewards"] = "unrecorded: zeros"
    if DONE not in flags:
        notes["terminated"] = "unrecorded"
    notes |= not_taken_note(extras.not_taken)
    if (missing := missing_field(fields)) is not None:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in extras.not_taken.items())
        raise SourceError(f"{path / INFO}: features: {missing} is missing; not taken are {reasons or 'none'}")
    fields |= {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
    try:
        schema = Schema(fields)
    except SchemaMismatchError as exc:
        raise SourceError(f"{path / INFO}: features: {exc}") from exc
    episodes = with_finals(path, [episode for file in data for episode in file.episodes])
    for name, count in (("total_episodes", len(episodes)), ("total_frames", sum(one.rows for one in episodes))):
        if info.get(name) != count:
            raise CorruptShardError(
                f"{path / INFO}: {name}: expected {count:,} as meta/episodes lists, found {info.get(name)!r:.80}"
            )
    notes |= without_outcome(episodes)
    left = iter(episodes)
    data = tuple(replace(file, episodes=tuple(islice(left, len(file.episodes)))) for file in data)
    if lossy := _lossy(path / data[0].name, features):
        notes["lossy_jpeg"] = lossy
    return LeRobot(path, schema, notes, features, data)


def _lossy(path: Path, features: Mapping[str, Feature]) -> list[str]:
    """Return names of the fields whose pictures are JPEG, by the first of them in a file."""
    images = {name: feature.name for name, feature in features.items() if feature.is_image}
    if not images:
        return []
    with opened(path) as file:
        first = next(file.batches(list(images.values()), 1))
    return [name for name, column in images.items() if is_jpeg(picture_file(first[column][0]) or b"")]
