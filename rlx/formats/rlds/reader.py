"""RLDS as TensorFlow Datasets stores it: TFRecord or ArrayRecord files with one example per episode."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, OptionError, SourceError
from rlx.files.disk import read_object
from rlx.files.location import checked_name
from rlx.formats.common import record_files
from rlx.formats.common.fields import (
    NOT_OF_STEPS,
    NOT_UTF_8,
    ExtraFields,
    check_field,
    expecting,
    flags_of,
    missing_field,
    not_taken_note,
    with_flags,
)
from rlx.formats.common.pictures import is_jpeg
from rlx.formats.common.provenance import KEY, noted_fields, read_notes
from rlx.formats.common.record_files import record_reads
from rlx.formats.common.rows.episodes import WITHOUT_STEP, episode_blocks, last_flag
from rlx.formats.common.skipping import DAMAGES, skippable, whole
from rlx.formats.common.source import MalformedError
from rlx.formats.common.tf_example import Feature as Values
from rlx.formats.common.tf_example import parse_example
from rlx.formats.rlds.layout import (
    ARRAY_RECORD,
    CUT,
    DISCOUNT,
    EPISODE_ID,
    FEATURES,
    FILE_FORMAT,
    FIRST,
    FLAGS,
    INFO,
    LAST,
    LAYOUT,
    METADATA,
    TEMPLATE,
    TERMINAL,
    Feature,
    episode_features,
    steps_features,
)
from rlx.schema import FLAGS as SCHEMA_FLAGS
from rlx.schema import TEXT, Role, Schema, is_action
from rlx.wording import missing as is_missing

_MAX_SHARDS = 100_000
_MAX_EXAMPLES = 2**40
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
_MAX_VALUES = 2**24
SPLIT = "split"
# What RLDS does not have in these rows, so that it is counted instead of read.
_LAST_ROW, _FIRST_LATE, _TERMINAL_EARLY = "{}_in_the_last_row", "is_first_in_mid_episode", "is_terminal_in_mid_episode"


@dataclass(frozen=True, slots=True)
class SplitFile:
    """One file.

    Args:
        kind: tfrecord or array_record.
    """

    name: str
    split: str
    episodes: int
    kind: str = FILE_FORMAT

    def records(self, root: Path) -> Iterator[Callable[[], bytes]]:
        """Yield what returns each example of the file, below the dataset's directory."""
        if self.kind == FILE_FORMAT:
            yield from record_reads(root / self.name)
        elif self.episodes:  # array-record opens no file without records
            with record_files.opened(root / self.name) as file:
                yield from (partial(file.read, number) for number in range(file.count))


def files_of(
    info: Mapping[str, Any], place: Path, split: str | None = None, pattern: str | None = None
) -> list[SplitFile]:
    """Return the files of all splits, or of one.

    Args:
        split: name of the only split to take.
        pattern: glob of the names of the files to take.

    Raises:
        SourceError: no file or episode is left, or the split or the file format is unknown.
    """
    if (kind := info.get("fileFormat") or FILE_FORMAT) not in (FILE_FORMAT, ARRAY_RECORD):
        raise SourceError(f"{place}: fileFormat: expected {FILE_FORMAT} or {ARRAY_RECORD}, found {kind!r:.40}")
    try:
        files = [one for described in info["splits"] for one in _split_files(info["name"], described, kind)]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(f"{place}: expected splits with name and shardLengths, found {exc!r:.200}") from exc
    splits = list(dict.fromkeys(one.split for one in files))
    if split is not None and split not in splits:
        raise SourceError(f"{place}: unknown split {split!r}, expected one of {', '.join(splits)}")
    chosen = [one for one in files if split in (None, one.split) and fnmatchcase(one.name, pattern or "*")]
    if files and not chosen:
        raise SourceError(f"{place}: no file is called {pattern}, found names such as {files[0].name}")
    if not sum(one.episodes for one in chosen):
        raise SourceError(f"{place.parent} has no episode")
    return chosen


def _split_files(dataset: str, split: Mapping[str, Any], kind: str) -> Iterator[SplitFile]:
    counts = [int(count) for count in split.get("shardLengths", [])]
    if len(counts) > _MAX_SHARDS or any(not 0 <= count < _MAX_EXAMPLES for count in counts):
        raise ValueError(f"shardLengths {counts!r:.80}")
    for shard, count in enumerate(counts):
        index, of = f"{shard:05d}", f"{len(counts):05d}"
        values = {"DATASET": dataset, "SPLIT": split["name"], "FILEFORMAT": kind}
        values |= {"SHARD_INDEX": index, "NUM_SHARDS": of, "SHARD_X_OF_Y": f"{index}-of-{of}"}
        name = _filled(split.get("filepathTemplate") or TEMPLATE, values)
        checked_name(name)
        yield SplitFile(name, str(split["name"]), count, kind)


def _filled(template: str, values: Mapping[str, str]) -> str:
    # Not str.format: a template from a file could reach into the values' attributes.
    for key, value in values.items():
        template = template.replace("{" + key + "}", value)
    if "{" in template:
        raise ValueError(f"filepathTemplate {template!r:.80}")
    return template


@dataclass(frozen=True, slots=True)
class RLDS:
    """One version of a dataset.

    Args:
        features: feature of every field but the flags.
        found: the files, each a shard.
        is_split: whether a field has the split of every step.
        is_step: whether the last row of an episode is a step, too.
    """

    root: Path
    id: str
    schema: Schema
    notes: Mapping[str, Any]
    features: Mapping[str, Feature]
    found: tuple[SplitFile, ...]
    is_split: bool = False
    is_step: bool = False

    def shards(self) -> Sequence[int]:
        """Return the numbers of the shards, one per file."""
        return range(len(self.found))

    def files(self, shard: int) -> Sequence[str]:
        """Return the one file of a shard."""
        return [self.found[shard].name]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes of a file."""
        file, found = self.found[shard], 0
        first = sum(one.episodes for one in self.found[:shard])
        with expecting(LAYOUT):
            try:
                for number, read in enumerate(file.records(self.root)):
                    name = f"{file.name}: record {number}"
                    yield from whole(name, self._episode(file, number, first + number, read, dropped), dropped)
                    found = number + 1
                if found != file.episodes:
                    raise CorruptShardError(
                        f"{self.root / file.name}: expected {file.episodes:,} episodes as in {INFO}, found {found:,}"
                    )
            except DAMAGES:
                with skippable(f"{file.name}: records {found} to {file.episodes - 1}"):
                    raise

    def _episode(
        self, file: SplitFile, number: int, place: int, read: Callable[[], bytes], dropped: Counter[str]
    ) -> Iterator[Block]:
        record = read()
        try:
            values = parse_example(record, max_values=min(len(record), _MAX_VALUES))
            split = file.split if self.is_split else None
            yield from Episode(values, self.features, self.schema, place, split, is_step=self.is_step).blocks(dropped)
        except (MalformedError, CorruptShardError) as exc:
            raise CorruptShardError(f"{self.root / file.name} is corrupt: record {number}: {exc}") from exc


@expecting(LAYOUT)
def open_rlds(path: Path, *, split: str | None = None, files: str | None = None, last: str = "observation") -> RLDS:
    """Return the dataset in the directory of one of its versions; the field ``split`` names the split of each step.

    Args:
        split: name of the only split to take; the field of splits is then left out.
        files: glob of the names of the files to take; others may be missing.
        last: what the last row of an episode is: ``observation``, as RLDS has it, or a ``step``, as in files whose last
            rows have an action and a reward.
    """
    if last not in ("observation", "step"):
        raise OptionError(f"`from_` rlds: last={last}: expected observation or step")
    path = path.absolute()
    info = read_object(path / INFO)
    chosen = files_of(info, path / INFO, split, files)
    described, place = read_object(path / FEATURES), path / FEATURES
    found = steps_features(described, str(place))
    noted = read_object(path / METADATA).get(KEY) if (path / METADATA).is_file() else None
    if missing := [name for name in (*FLAGS, "reward") if not found.get(name)]:
        what, is_there = f"{place}: steps/{missing[0]}", missing[0] in found
        raise CorruptShardError(f"{what}: no numbers of a known shape" if is_there else is_missing(what, found))
    first, said = _first(path, chosen), read_notes(noted)
    roles = {name: field.role for name, field in noted_fields(said).items()}
    known = FLAGS if DISCOUNT in roles or noted is None else (*FLAGS, DISCOUNT)
    extras, features = ExtraFields(("terminated", "truncated")), {}
    for name, feature in found.items():
        if name in known:
            continue
        if feature is not None and feature.encoding == "text" and _is_no_text(first.get(f"steps/{name}")):
            extras.leave(name, NOT_UTF_8)
        elif feature is None:
            extras.leave(name, "neither numbers nor text of a known shape")
        elif extras.add(name, name, (feature.dtype, feature.shape), _role(name, roles)):
            features[name] = feature
    for name in episode_features(described, str(place)):
        if name not in (EPISODE_ID, CUT):
            extras.leave(name, NOT_OF_STEPS)
    if EPISODE_ID in first and not isinstance(first[EPISODE_ID], np.ndarray):
        extras.leave(EPISODE_ID, "not a whole number: episodes are numbered in their order")
    splits = sorted({one.split for one in chosen})
    is_split = len(splits) > 1 and extras.add(f"the splits {', '.join(splits)}", SPLIT, (TEXT, ()), Role.STEP)
    schema = _schema(extras, place)
    notes = {**said, "format": "RLDS", **not_taken_note(extras.not_taken)}
    images = [name for name, feature in features.items() if feature.encoding == "image"]
    if lossy := [name for name in images if _is_lossy(first.get(f"steps/{name}"))]:
        notes["lossy_jpeg"] = lossy
    return RLDS(path, _id(info), schema, notes, features, tuple(chosen), is_split, last == "step")


def _schema(extras: ExtraFields, place: Path) -> Schema:
    fields = extras.fields
    if (missing := missing_field(fields)) is not None:
        what, reason = f"{place}: steps/{missing}", extras.not_taken.get(missing)
        raise CorruptShardError(f"{what} {reason}" if reason else is_missing(what, [*fields, *extras.not_taken]))
    order = sorted(fields, key=lambda name: (name.split("/")[0] != "observation", name.split("/")[0] != "action"))
    return with_flags({name: fields[name] for name in order}, str(place))


def _role(name: str, roles: Mapping[str, Role]) -> Role:
    if name.split("/")[0] == "observation":
        return Role.OBSERVATION
    if name in ("reward", DISCOUNT):
        return Role.NEXT
    return roles.get(name, Role.NEXT if name.split("/")[0] == "info" else Role.STEP)


def _first(root: Path, files: Sequence[SplitFile]) -> Mapping[str, Values]:
    """Return the values of the first episode; empty if they cannot be read, which reading the shard reports."""
    file = next(one for one in files if one.episodes)
    try:
        return parse_example(next(file.records(root))())
    except (SourceError, MalformedError, StopIteration):
        return {}


def _is_lossy(values: Values | None) -> bool:
    return isinstance(values, list) and bool(values) and is_jpeg(values[0])


def _is_no_text(values: Values | None) -> bool:
    try:
        for value in values if isinstance(values, list) else []:
            str(value, "utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _id(info: Mapping[str, Any]) -> str:
    name = info.get("name")
    return name if isinstance(name, str) and _WORD.fullmatch(name) else "dataset"


class Episode:
    """One example: an episode of T + 1 rows, the last of which only has an observation.

    A row that is marked as the first begins an episode of its own.

    Args:
        values: of the example.
        features: feature of every field but the flags.
        place: number of the episode, if the example has none.
        split: of the episode, for the field of that name; None without such a field.
        is_step: whether the last row is a step, too.

    Raises:
        MalformedError: features are missing, or of different lengths.
        CorruptShardError: a flag is not 0 or 1.
    """

    def __init__(
        self,
        values: Mapping[str, Values],
        features: Mapping[str, Feature],
        schema: Schema,
        place: int,
        split: str | None = None,
        *,
        is_step: bool = False,
    ) -> None:
        self._values = values
        self._features = features
        self._schema = schema
        self._split = split
        is_last = self._flags(LAST)
        if is_last[:-1].any():
            raise MalformedError(f"steps/{LAST}: expected it at the last step only")
        terminal, first = self._flags(TERMINAL), self._flags(FIRST)
        if not len(terminal) == len(first) == len(is_last):
            raise MalformedError(
                f"steps/{TERMINAL}, steps/{FIRST}: expected {len(is_last):,} rows, "
                f"found {len(terminal):,} and {len(first):,}"
            )
        self._terminal, self._first = terminal, first
        starts = np.flatnonzero(first[1:]) + 1
        self._bounds = [0, *starts.tolist(), len(first)] if len(first) else [0]
        self._number = self._number_at(EPISODE_ID, place)
        self._is_cut = not is_last[-1:].all() or bool(flags_of(np.array([self._number_at(CUT, 0)]), CUT))
        self._finals = int(not is_step)
        for name, feature in features.items():
            if not feature.holds(self._feature(name), len(is_last)):
                found = feature.count(self._feature(name))
                raise MalformedError(f"steps/{name}: expected {len(is_last):,} rows, found {found:,}")

    def blocks(self, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps in blocks; counts in ``dropped`` what the last row has besides the observation, and flags."""
        dropped.update(+self._unread())
        for start, stop in pairwise(self._bounds):
            steps, terminated = stop - start - self._finals, bool(self._terminal[stop - 1])
            yield from episode_blocks(
                self._schema,
                partial(self._rows, start, steps, terminated),
                steps=steps,
                number=self._number,
                from_reset=bool(self._first[start]),
                final_recorded=bool(self._finals),
                cut=self._is_cut or stop < self._bounds[-1],
            )

    def _unread(self) -> Counter[str]:
        """Return how many episodes have no step, and how many rows have what RLDS does not have there."""
        ends = np.array(self._bounds[1:], np.int64)
        early = self._terminal.copy()
        early[ends - 1] = False
        counts = Counter({_FIRST_LATE: len(ends[1:]), _TERMINAL_EARLY: int(early.sum())})
        counts[WITHOUT_STEP] = int((np.diff(self._bounds) == self._finals).sum()) if len(ends) else 1
        for name in self._features if self._finals else ():
            group = "action" if is_action(name) else name
            if group in ("action", "reward"):
                lasts = [self._values_of(name, stop - 1, stop).astype(bool).any() for stop in ends.tolist()]
                counts[_LAST_ROW.format(group)] += int(sum(lasts))
        return counts

    def _rows(self, first: int, steps: int, terminated: bool, name: str, start: int, stop: int) -> NDArray[Any]:
        if name in SCHEMA_FLAGS:
            return last_flag(start, stop, steps, is_set=terminated == (name == "terminated"))
        if name not in self._features:
            return np.full(stop - start, self._split, object)
        there = min(stop, steps + self._finals)
        rows = self._values_of(name, first + start, first + there)
        check_field(name, self._schema[name], rows, f"steps/{name}", first + start)
        return rows if there == stop else np.concatenate([rows, self._schema[name].zeros(stop - there)])

    def _values_of(self, name: str, start: int, stop: int) -> NDArray[Any]:
        try:
            return self._features[name].rows(self._feature(name), start, stop)
        except MalformedError as exc:
            raise MalformedError(f"steps/{name}: {exc}") from exc

    def _feature(self, name: str) -> Values:
        values = self._values.get(f"steps/{name}")
        if values is None and 0 in self._features[name].shape:
            return []
        if values is None:
            raise MalformedError(f"steps/{name}: expected {len(self._first):,} rows, found none")
        return values

    def _flags(self, name: str) -> NDArray[np.bool_]:
        values = self._values.get(f"steps/{name}")
        if not isinstance(values, np.ndarray):
            raise MalformedError(f"steps/{name}: expected one flag per step, found none")
        return flags_of(values, f"steps/{name}")

    def _number_at(self, name: str, otherwise: int) -> int:
        values = self._values.get(name)
        if isinstance(values, np.ndarray) and values.dtype == np.int64 and len(values) == 1:
            return int(values[0])
        return otherwise
