"""LeRobot's datasets of version 3: Parquet files of many episodes each, pictures in them as PNG."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.schema import Field, Role, Schema
from rlx.source.base import local_path
from rlx.source.expected_layout import expecting
from rlx.source.extra_fields import NOT_NUMBERS_OR_TEXT, not_taken_note
from rlx.source.finite import check_field
from rlx.source.json_file import read_object
from rlx.source.lerobot_features import DONE, TRUNCATED, Feature, fields_of, picture_file, read_features
from rlx.source.lerobot_finals import FILE_NAME as FINALS
from rlx.source.lerobot_finals import with_finals
from rlx.source.needed_fields import missing_field
from rlx.source.one_file import id_of
from rlx.source.parquet_file import ParquetFile, opened
from rlx.source.picture_file import is_jpeg
from rlx.source.protocol import batch_rows
from rlx.source.provenance import FILE_NAME, KEY, told_beside
from rlx.source.row_episodes import RowEpisode, without_outcome
from rlx.source.row_stream import Batch, RowStream
from rlx.store.arrow import to_rows

_INFO = Path("meta/info.json")
_LAYOUT = (
    "expected LeRobot's layout, v3.0: meta/info.json with features, meta/episodes/*/*.parquet with length and place of "
    "every episode, data/*/*.parquet with observation..., action, next.reward, next.done, a row a step"
)
_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_EPISODE, _LENGTH = "episode_index", "length"
_CHUNK, _FILE = "data/chunk_index", "data/file_index"
_SCANNED_ROWS = 2**14
_MAX_NUMBER = 2**40


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of steps: its name, and the episodes in it."""

    name: str
    episodes: tuple[RowEpisode, ...]


@dataclass(frozen=True, slots=True)
class LeRobot:
    """One dataset.

    Args:
        root: its directory.
        schema: what one step holds.
        notes: what rlx noted of the data when it wrote them, what is not recorded, what was left out, and which
            pictures went through JPEG.
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
        """The files of steps."""
        return range(len(self.data))

    def files(self, shard: int) -> Sequence[str]:
        """The one file of a shard, and that of the final observations of all."""
        has_finals = any(episode.final_recorded for episode in self.data[shard].episodes)
        return [self.data[shard].name, FINALS] if has_finals else [self.data[shard].name]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The episodes of a file.

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
            return np.zeros((stop - start, *field.shape), field.dtype)
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
    """Whether a directory is a dataset of LeRobot, of whatever version."""
    return (path / _INFO).is_file()


@expecting(_LAYOUT)
def open_lerobot(path: Path) -> LeRobot:
    """The dataset in a directory.

    Raises:
        SourceNotFoundError: there is no such directory, or a file of it is missing.
        CorruptShardError: what describes it is damaged, or the files do not hold what it says.
        SourceError: it is of another version, has no episode, or keeps what was seen as video.
    """
    path = path.absolute()
    info = read_object(path / _INFO)
    if not str(version := info.get("codebase_version")).startswith("v3."):
        raise SourceError(
            f"{path / _INFO}: codebase_version: expected v3.0, found {version!r:.40}",
            hint="python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id ID brings it up to date",
        )
    found, left_out = read_features(info, path / _INFO)
    told = read_object(path / FILE_NAME).get(KEY) if (path / FILE_NAME).is_file() else None
    fields, features = fields_of(found, told)
    notes: dict[str, Any] = {**told_beside(path), "format": "LeRobot"}
    if "reward" not in fields:
        fields["reward"] = Field("float32", (), Role.NEXT)
        notes["rewards"] = "unrecorded: zeros"
    if DONE not in found:
        notes["terminated"] = "unrecorded"
    notes |= not_taken_note(dict.fromkeys(left_out, NOT_NUMBERS_OR_TEXT))
    if (missing := missing_field(fields)) is not None:
        raise SourceError(
            f"{path / _INFO}: features: {missing} is missing; left out are {', '.join(left_out) or 'none'}"
        )
    fields |= {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
    try:
        schema = Schema(fields)
    except SchemaMismatchError as exc:
        raise SourceError(f"{path / _INFO}: features: {exc}") from exc
    data = tuple(_data(path, info.get("data_path", _PATH), [name for name in (DONE, TRUNCATED) if name in found]))
    if not data:
        raise SourceError(f"{path} has no episode")
    episodes = with_finals(path, [episode for file in data for episode in file.episodes])
    for name, count in (("total_episodes", len(episodes)), ("total_frames", sum(one.rows for one in episodes))):
        if info.get(name) != count:
            raise CorruptShardError(
                f"{path / _INFO}: {name}: expected {count:,} as meta/episodes lists, found {info.get(name)!r:.80}"
            )
    notes |= without_outcome(episodes)
    left = iter(episodes)
    data = tuple(DataFile(file.name, tuple(islice(left, len(file.episodes)))) for file in data)
    if lossy := _lossy(path / data[0].name, features):
        notes["lossy_jpeg"] = lossy
    return LeRobot(path, schema, notes, features, data)


def _lossy(path: Path, features: Mapping[str, Feature]) -> list[str]:
    """Names of the fields whose pictures are JPEG, by the first of them in a file."""
    images = {name: feature.name for name, feature in features.items() if feature.is_image}
    if not images:
        return []
    with opened(path) as file:
        first = next(file.batches(list(images.values()), 1))
    return [name for name, column in images.items() if is_jpeg(picture_file(first[column][0]) or b"")]


def _data(root: Path, template: Any, flags: Sequence[str]) -> Iterator[DataFile]:
    """The files of steps, in the order of their episodes."""
    table = zip(*_episode_table(root), strict=True)
    for place, group in groupby(table, key=lambda one: one[2:]):
        episodes = [(number, length) for number, length, *_ in group]
        name = _name(template, *place)
        ends = _ends(root / name, episodes, flags)
        yield DataFile(name, tuple(RowEpisode(*one, *end, False) for one, end in zip(episodes, ends, strict=True)))


def _episode_table(root: Path) -> list[list[int]]:
    """Number and length of every episode, number of the chunk and of the file that it lies in."""
    columns: list[list[int]] = [[], [], [], []]
    paths = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not paths:
        raise SourceError(f"{root / 'meta/episodes'} has no */*.parquet")
    for path in paths:
        with opened(path) as file:
            names = (_EPISODE, _LENGTH, _CHUNK, _FILE)
            for batch in file.batches(names, _SCANNED_ROWS):
                for column, name in zip(columns, names, strict=True):
                    column += _numbers(path, name, batch[name])
    numbers, lengths = columns[:2]
    if numbers != list(range(len(numbers))):
        raise CorruptShardError(
            f"{root / 'meta/episodes'}: {_EPISODE}: expected 0, 1, 2 and so on, found {numbers[:20]}"
        )
    if bad := [length for length in lengths if not 0 < length < _MAX_NUMBER]:
        raise CorruptShardError(f"{root / 'meta/episodes'}: {_LENGTH}: expected at least a step, found {bad[0]}")
    return columns


def _ends(path: Path, episodes: Sequence[tuple[int, int]], flags: Sequence[str]) -> list[tuple[bool, bool]]:
    """Whether each episode of a file terminated, and whether it was truncated, by its last row."""
    found: list[tuple[bool, bool]] = []
    lengths = [length for _, length in episodes]
    with opened(path) as file:
        if file.rows != sum(lengths):
            raise CorruptShardError(
                f"{path}: expected {sum(lengths):,} rows, as its episodes are long, found {file.rows:,}"
            )
        stops = np.cumsum(lengths)
        wanted, row = np.repeat([number for number, _ in episodes], lengths), 0
        for batch in file.batches([_EPISODE, *flags], _SCANNED_ROWS):
            numbers = np.array(_numbers(path, _EPISODE, batch[_EPISODE]))
            if (numbers != wanted[row : row + len(numbers)]).any():
                raise CorruptShardError(
                    f"{path}: {_EPISODE}: expected the episodes in order, each as long as it is said"
                )
            told = {name: _flags(path, name, batch[name]) for name in flags}
            last = stops[(stops > row) & (stops <= row + len(numbers))] - row - 1
            truncated = told[TRUNCATED][last] if TRUNCATED in told else np.zeros(len(last), bool)
            done = told[DONE][last] if DONE in told else truncated
            found += zip((done & ~truncated).tolist(), truncated.tolist(), strict=True)
            row += len(numbers)
    return found


def _name(template: Any, chunk: int, file: int) -> str:
    """Name of a file of steps; raises where it would lie elsewhere than below the dataset's directory."""
    # Not str.format: a template from a file could reach into the values' attributes, or ask for any width.
    name = str(template)
    for key, value in (("chunk_index", chunk), ("file_index", file)):
        name = name.replace(f"{{{key}:03d}}", f"{value:03d}").replace(f"{{{key}}}", str(value))
    if "{" in name or "}" in name:
        raise CorruptShardError(f"{_INFO}: data_path: expected {_PATH}, found {template!r:.100}")
    local_path(Path(), name)
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
