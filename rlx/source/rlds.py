"""RLDS as TensorFlow Datasets keeps it: TFRecord files in which an episode is an example."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from rlx.source.needed_fields import missing_field
from rlx.source.picture_file import is_jpeg
from rlx.source.protocol import block_steps
from rlx.source.provenance import KEY, told_notes
from rlx.source.rlds_features import Feature, MalformedFeatureError, steps_features
from rlx.source.tf_example import Feature as Values
from rlx.source.tf_example import MalformedExampleError, parse_example
from rlx.source.tfrecord import records

_INFO, _FEATURES, _METADATA = "dataset_info.json", "features.json", "metadata.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_LAYOUT = (
    "expected a version of a dataset of TensorFlow Datasets: dataset_info.json, features.json, *.tfrecord-* of an "
    "example an episode: steps/observation, action, reward, is_first, is_last, is_terminal, T + 1 rows of each"
)
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_MAX_SHARDS = 100_000
_MAX_EXAMPLES = 2**40
_MAX_VALUES = 2**24
_LAST, _TERMINAL, _FIRST = "is_last", "is_terminal", "is_first"
_FLAGS = frozenset({_FIRST, _LAST, _TERMINAL, "discount"})
_ID = "episode_id"
SINGLE = "single_step_episode"


@dataclass(frozen=True, slots=True)
class RLDS:
    """One version of a dataset.

    Args:
        root: its directory.
        id: its name.
        schema: what one step holds.
        notes: what rlx noted of the data when it wrote them, and what was left out.
        features: how every field but the flags is kept in an example.
        names: of the files, a shard each.
        lengths: how many examples each file has.
    """

    root: Path
    id: str
    schema: Schema
    notes: Mapping[str, Any]
    features: Mapping[str, Feature]
    names: tuple[str, ...]
    lengths: tuple[int, ...]

    def shards(self) -> Sequence[int]:
        """The files, of all splits."""
        return range(len(self.names))

    def files(self, shard: int) -> Sequence[str]:
        """The one file of a shard."""
        return [self.names[shard]]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The episodes of a file.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: it is damaged, or an example is not of these features; says which.
        """
        path, expected = self.root / self.names[shard], self.lengths[shard]
        first, found = sum(self.lengths[:shard]), 0
        with expecting(_LAYOUT):
            for number, record in enumerate(records(path)):
                try:
                    values = parse_example(record, max_values=min(len(record), _MAX_VALUES))
                    episode = _Episode(values, self.features, self.schema, first + number)
                    dropped[SINGLE] += episode.steps == 0
                    yield from episode.blocks()
                except (MalformedExampleError, MalformedFeatureError) as exc:
                    raise CorruptShardError(f"{path} is corrupt: record {number}: {exc}") from exc
                found = number + 1
            if found != expected:
                raise CorruptShardError(f"{path}: expected {expected:,} episodes as in {_INFO}, found {found:,}")


class _Episode:
    """One example of T + 1 rows, of whose last row only the observation counts."""

    def __init__(
        self, values: Mapping[str, Values], features: Mapping[str, Feature], schema: Schema, place: int
    ) -> None:
        self._values = values
        self._features = features
        self._schema = schema
        is_last = self._flags(_LAST)
        self.steps = len(is_last) - 1
        if self.steps < 0:
            raise MalformedFeatureError(f"steps/{_LAST}: expected a step at least, found none")
        if is_last[:-1].any():
            raise MalformedFeatureError(f"steps/{_LAST}: expected it of the last step only")
        terminal, first = self._flags(_TERMINAL), self._flags(_FIRST)
        if not len(terminal) == len(first) == len(is_last):
            raise MalformedFeatureError(
                f"steps/{_TERMINAL}, steps/{_FIRST}: expected {len(is_last):,} rows, "
                f"found {len(terminal):,} and {len(first):,}"
            )
        self._terminated, self._from_reset = bool(terminal[-1]), bool(first[0])
        self._number = self._id(place)
        for name, feature in features.items():
            found = feature.count(self._feature(name))
            if found != self.steps + 1:
                raise MalformedFeatureError(f"steps/{name}: expected {self.steps + 1:,} rows, found {found:,}")

    def blocks(self) -> Iterator[Block]:
        """The episode, in pieces."""
        size = block_steps(self._schema)
        for start in range(0, self.steps, size):
            stop = min(start + size, self.steps)
            is_end = stop == self.steps
            ends = np.zeros(stop - start, bool)
            ends[-1] = is_end
            data: dict[str, NDArray[Any]] = {
                name: self._rows(name, start, stop + (is_end and self._schema[name].role == Role.OBSERVATION))
                for name in self._features
            }
            data["terminated"], data["truncated"] = ends & self._terminated, ends & (not self._terminated)
            yield Block(
                data,
                lengths=np.array([stop - start]),
                episodes=np.array([self._number]),
                from_reset=np.array([self._from_reset]),
                final_recorded=np.array([True]),
                is_open=not is_end,
            )

    def _rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        try:
            rows = self._features[name].rows(self._feature(name), start, stop)
        except MalformedFeatureError as exc:
            raise MalformedFeatureError(f"steps/{name}: {exc}") from exc
        try:
            check_field(name, self._schema[name], rows, f"steps/{name}", start)
        except CorruptShardError as exc:
            raise MalformedFeatureError(str(exc)) from exc  # to be told with the record's number
        return rows

    def _feature(self, name: str) -> Values:
        values = self._values.get(f"steps/{name}")
        if values is None:
            raise MalformedFeatureError(f"steps/{name}: expected {self.steps + 1:,} rows, found none")
        return values

    def _flags(self, name: str) -> NDArray[np.bool_]:
        values = self._values.get(f"steps/{name}")
        if not isinstance(values, np.ndarray) or values.dtype != np.int64:
            raise MalformedFeatureError(f"steps/{name}: expected a flag a step, found none")
        flags: NDArray[np.bool_] = values != 0
        return flags

    def _id(self, place: int) -> int:
        values = self._values.get(_ID)
        is_number = isinstance(values, np.ndarray) and values.dtype == np.int64 and len(values) == 1
        return int(values[0]) if is_number and isinstance(values, np.ndarray) else place


def recognises(path: Path) -> bool:
    """Whether a directory is one version of a dataset of TensorFlow Datasets."""
    return (path / _INFO).is_file() and (path / _FEATURES).is_file()


@expecting(_LAYOUT)
def open_rlds(path: Path) -> RLDS:
    """The dataset in the directory of one of its versions.

    Raises:
        SourceNotFoundError: there is no such directory, or one of the files that describe it is missing.
        CorruptShardError: what describes it is damaged, or its steps lack what RLDS needs.
        SourceError: it is kept in another file format, or has no episode.
    """
    path = path.absolute()
    info = read_object(path / _INFO)
    names, lengths = _files(info, path / _INFO)
    found = steps_features(read_object(path / _FEATURES), str(path / _FEATURES))
    told = read_object(path / _METADATA).get(KEY) if (path / _METADATA).is_file() else None
    if missing := [name for name in (_FIRST, _LAST, _TERMINAL, "reward") if not found.get(name)]:
        raise CorruptShardError(f"{path / _FEATURES}: steps/{missing[0]} is missing, or no numbers of a known shape")
    features = {name: feature for name, feature in found.items() if feature and name not in _FLAGS}
    schema = _schema(features, _roles(told), path / _FEATURES)
    notes = {**told_notes(told), "format": "RLDS"}
    left_out = [name for name, feature in found.items() if feature is None]
    notes |= not_taken_note(dict.fromkeys(left_out, NOT_NUMBERS_OR_TEXT))
    if lossy := [name for name, feature in features.items() if _is_lossy(path, names, name, feature)]:
        notes["lossy_jpeg"] = lossy
    return RLDS(path, _id(info), schema, notes, features, tuple(names), tuple(lengths))


def _schema(features: Mapping[str, Feature], roles: Mapping[str, str], place: Path) -> Schema:
    try:
        fields = {name: Field(one.dtype, one.shape, _role(name, roles)) for name, one in features.items()}
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc
    if (missing := missing_field(fields)) is not None:
        raise CorruptShardError(f"{place}: steps/{missing} is missing, or no numbers of a known shape")
    order = sorted(fields, key=lambda name: (name.split("/")[0] != "observation", name.split("/")[0] != "action"))
    flags = {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
    try:
        return Schema({name: fields[name] for name in order} | flags)
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc


def _role(name: str, roles: Mapping[str, str]) -> Role:
    if name.split("/")[0] == "observation":
        return Role.OBSERVATION
    if name == "reward":
        return Role.NEXT
    return Role(roles[name]) if roles.get(name) in [*Role] else Role.STEP


def _roles(told: Any) -> dict[str, str]:
    """Where rlx said that the fields lie in TED, if it wrote the dataset."""
    try:
        return {str(name): str(field["role"]) for name, field in told["schema"].items()}
    except (TypeError, KeyError, AttributeError):
        return {}


def _is_lossy(root: Path, names: Sequence[str], name: str, feature: Feature) -> bool:
    """Whether the pictures of the first episode are JPEG."""
    if feature.encoding != "image" or not (root / names[0]).is_file():
        return False
    try:
        values = parse_example(next(records(root / names[0]))).get(f"steps/{name}")
    except (SourceError, MalformedExampleError, StopIteration):
        return False  # to be told by whoever reads the shard
    return isinstance(values, list) and bool(values) and is_jpeg(values[0])


def _files(info: Mapping[str, Any], place: Path) -> tuple[list[str], list[int]]:
    """Names of the files of all splits, and how many examples each one has."""
    if (found := info.get("fileFormat") or "tfrecord") != "tfrecord":
        raise SourceError(f"{place}: fileFormat: expected tfrecord, found {found!r:.40}")
    try:
        names_and_lengths = [one for split in info["splits"] for one in _split_files(info["name"], split)]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(f"{place}: expected splits with name and shardLengths, found {exc!r:.200}") from exc
    if not sum(length for _, length in names_and_lengths):
        raise SourceError(f"{place.parent} has no episode")
    return [name for name, _ in names_and_lengths], [length for _, length in names_and_lengths]


def _split_files(dataset: str, split: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Names of the files of a split, and how many examples each one has."""
    counts = [int(count) for count in split.get("shardLengths", [])]
    if len(counts) > _MAX_SHARDS or any(not 0 <= count < _MAX_EXAMPLES for count in counts):
        raise ValueError(f"shardLengths {counts!r:.80}")
    for shard, count in enumerate(counts):
        index, of = f"{shard:05d}", f"{len(counts):05d}"
        values = {"DATASET": dataset, "SPLIT": split["name"], "FILEFORMAT": "tfrecord"}
        values |= {"SHARD_INDEX": index, "NUM_SHARDS": of, "SHARD_X_OF_Y": f"{index}-of-{of}"}
        name = _filled(split.get("filepathTemplate") or _TEMPLATE, values)
        local_path(Path(), name)
        yield name, count


def _filled(template: str, values: Mapping[str, str]) -> str:
    # Not str.format: a template from a file could reach into the values' attributes.
    for key, value in values.items():
        template = template.replace("{" + key + "}", value)
    if "{" in template:
        raise ValueError(f"filepathTemplate {template!r:.80}")
    return template


def _id(info: Mapping[str, Any]) -> str:
    name = info.get("name")
    return name if isinstance(name, str) and _WORD.fullmatch(name) else "dataset"
