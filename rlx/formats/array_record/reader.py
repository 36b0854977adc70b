"""Directories of ArrayRecord files, each record a pickled dict of the arrays of consecutive steps.

p(doom)'s records are pieces of at most 160 steps of an episode, without rewards or ends, and without the observation
after their last step. Whether a piece continues the one before is not recorded, so each is a trajectory of its own.
Records that rlx wrote say which piece of which trajectory they are.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.files.disk import listed, read_object
from rlx.formats.array_record import FINAL, FLAGS, KEYS, LAYOUT, LENGTH, METADATA, SUFFIX, TRAJECTORY, VIDEO
from rlx.formats.array_record.record import (
    Array,
    Record,
    RecordSteps,
    length_of,
    parse,
    record_flags,
    shown,
    text_rows,
)
from rlx.formats.common.exporter import PieceInfo
from rlx.formats.common.fields import (
    NOT_A_ROW_PER_STEP,
    ExtraFields,
    RowType,
    expecting,
    missing_field,
    not_taken_note,
    with_flags,
)
from rlx.formats.common.provenance import noted_fields, read_notes_beside
from rlx.formats.common.record_files import RecordFile, opened
from rlx.formats.common.rows.episodes import (
    STEPS_WITHOUT_OUTCOME,
    WITHOUT_STEP,
    RowEpisode,
    ending_notes,
    episode_blocks,
)
from rlx.formats.common.skipping import is_skipping, skippable, skipping, whole
from rlx.formats.common.source import MalformedError, id_of
from rlx.schema import TEXT, Field, Role, Schema
from rlx.wording import missing as is_missing

_COLOURS = 3
_ROLES = {"observation": Role.OBSERVATION, "action": Role.STEP, "reward": Role.NEXT}


@dataclass(frozen=True, slots=True)
class ArrayRecords:
    """One directory.

    Args:
        keys: key in a record of every recorded field but the flags.
        names: names of the files.
        counts: records of each file.
    """

    root: Path
    id: str
    schema: Schema
    notes: Mapping[str, Any]
    keys: Mapping[str, str]
    names: tuple[str, ...]
    counts: tuple[int, ...]

    def shards(self) -> Sequence[int]:
        """Return the numbers of the shards, one per file."""
        return range(len(self.names))

    def files(self, shard: int) -> Sequence[str]:
        """Return the one file of a shard."""
        return [self.names[shard]]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a file."""
        first, expected = sum(self.counts[:shard]), self.counts[shard]
        with expecting(LAYOUT), opened(self.root / self.names[shard]) as file:
            if file.count != expected:
                raise CorruptShardError(f"{file.path}: expected {expected:,} records, found {file.count:,}")
            records = _Records(self, file, first)
            while records.number < file.count:
                name = f"{file.path.name}: record {records.number}"
                if not (yield from whole(name, records.trajectory(dropped), dropped)):
                    records.skip()


class _Records:
    """The records of a file, read one trajectory after the other.

    Args:
        first: number of the first record of the file in the dataset.

    Attributes:
        number: of the next record.
    """

    def __init__(self, source: ArrayRecords, file: RecordFile, first: int) -> None:
        self.number = 0
        self._source, self._file, self._first = source, file, first

    def trajectory(self, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of the next record, or of all that continue it; of another program, they are independent.

        Raises:
            CorruptShardError: a record is damaged, or does not continue the trajectory.
        """
        schema, step, number = self._source.schema, 0, None
        while True:
            if self.number == self._file.count:
                raise CorruptShardError(f"{self._file.path}: expected the end of the last trajectory, found none")
            record = self._next()
            if (piece := record.piece) is None:
                yield from _pieces(record, self._first + self.number - 1, schema, dropped)
                return
            if not record.count:
                dropped[WITHOUT_STEP] += 1
            number = piece.trajectory if number is None else number
            if (piece.trajectory, piece.start) != (number, step):
                self.number -= not piece.start  # it begins another trajectory
                raise CorruptShardError(
                    f"{record.place}: {TRAJECTORY}: expected step {step} of trajectory {number}, "
                    f"found {piece.start} of {piece.trajectory}"
                )
            yield from _blocks(record, piece)
            step += record.count
            if piece.is_last:
                return

    def skip(self) -> None:
        """Pass the records that continue a trajectory of which one is damaged."""
        while self.number < self._file.count:
            try:
                piece = self._next().piece
            except CorruptShardError:
                piece = None
            if piece is None or not piece.start:
                self.number -= 1
                return

    def _next(self) -> RecordSteps:
        place = f"{self._file.path}: record {self.number}"
        self.number += 1
        return RecordSteps(_parsed(self._file, self.number - 1), self._source.schema, self._source.keys, place)


def _pieces(steps: RecordSteps, number: int, schema: Schema, dropped: Counter[str]) -> Iterator[Block]:
    """Yield the trajectories of a record of another program: they end at flags and at its end."""
    for start, episode in _episodes([steps.flags[name] for name in FLAGS], number):
        yield from episode.blocks(schema, _From(steps, start), dropped)


def _episodes(flags: Sequence[Array], number: int) -> Iterator[tuple[int, RowEpisode]]:
    """Yield the first row of each trajectory in a record of another program, and the trajectory.

    Args:
        flags: [n] whether each step is terminated, and whether it is truncated.
        number: of the record.
    """
    terminated, truncated = flags
    ends = np.flatnonzero(terminated | truncated) + 1
    if not len(terminated):
        yield 0, RowEpisode(number, 0, terminated=False, truncated=False, final_recorded=False)
    for start, stop in zip([0, *ends.tolist()], [*ends.tolist(), len(terminated)], strict=True):
        if start < stop:
            last = stop - 1
            yield start, RowEpisode(
                number, stop - start, bool(terminated[last]), bool(truncated[last]), final_recorded=False,
                from_reset=start > 0,
            )  # fmt: skip


class _From:
    def __init__(self, steps: RecordSteps, first: int) -> None:
        self._steps = steps
        self._first = first

    def rows(self, name: str, start: int, stop: int) -> Array:
        return self._steps.rows(name, self._first + start, self._first + stop)

    def after(self, name: str, row: int) -> Array:
        raise NotImplementedError


def _blocks(steps: RecordSteps, piece: PieceInfo) -> Iterator[Block]:
    """Yield the steps of a record that rlx wrote: a piece of a trajectory."""
    for name, flags in steps.flags.items():
        if flags[: steps.count - piece.is_last].any():
            raise CorruptShardError(f"{steps.place}: {name}: expected it at the last step of a trajectory only")

    def read(name: str, start: int, stop: int) -> Array:
        if name in FLAGS:
            return steps.flags[name][start:stop].copy()
        if stop <= steps.count:
            return steps.rows(name, start, stop)
        final = steps.after(name, stop - 2) if piece.final_recorded else steps.schema[name].zeros(1)
        return np.concatenate([steps.rows(name, start, stop - 1), final])

    return episode_blocks(
        steps.schema,
        read,
        steps=steps.count,
        number=piece.episode,
        from_reset=piece.from_reset,
        final_recorded=piece.final_recorded,
        cut=piece.cut,
        is_open=not piece.is_last,
    )


@expecting(LAYOUT)
def open_array_record(
    path: Path, *, height: int | None = None, width: int | None = None, channels: int | None = None
) -> ArrayRecords:
    """Return the dataset in a directory of ArrayRecord files, or in one file.

    Args:
        height: of frames of ``raw_video``; by default, frames are squares.
        width: the same.
        channels: of frames of ``raw_video``; by default 1 or 3, whichever gives a square.
    """
    path = path.absolute()
    root, names = (path, _names(path)) if path.is_dir() else (path.parent, [path.name])
    if not names:
        raise SourceNotFoundError(f"{path} has no file named *{SUFFIX}")
    counts, first = [], dict[str, Any]()
    for name in names:
        with opened(root / name) as file, _passing():
            counts.append(file.count)
            for number in range(0 if first else file.count):
                with skippable(place := f"{file.path}: record {number}"):
                    record = _parsed(file, number)
                    if length_of(record, place):
                        first = dict(record)
                        break
    if not first:
        raise SourceError(f"{path} has no step")
    notes = dict(read_notes_beside(root))
    frame = _frame(first, (height, width, channels), notes, place)
    fields, extras = _fields(first, frame, notes, place)
    notes |= {"format": "ArrayRecord", **_environment(root, fields)}
    if "reward" not in fields:
        fields["reward"] = Field("float32", (), Role.NEXT)
        notes["rewards"] = "unrecorded: zeros"
    if (missing := missing_field(fields)) is not None:
        raise CorruptShardError(is_missing(f"{place}: {missing}", first))
    if not isinstance(first.get(TRAJECTORY), dict):
        notes |= {
            note: "unrecorded"
            for flag, note in zip(FLAGS, ("terminated", "truncation"), strict=True)
            if flag not in first
        }
        notes |= _ending_notes(root, names, sum(counts), has_ends=any(flag in first for flag in FLAGS))
    notes |= not_taken_note(extras.not_taken)
    schema = with_flags(fields, place)
    return ArrayRecords(root, id_of(path), schema, notes, extras.keys, tuple(names), tuple(counts))


def _passing() -> AbstractContextManager[Mapping[str, str]]:
    """Leave out records that cannot be read, if that is asked for, without naming them: reading the shard does."""
    return skipping(is_skipping())


def _names(path: Path) -> list[str]:
    return [entry.name for entry in listed(path, f"*{SUFFIX}")] if path.is_dir() else []


def _parsed(file: RecordFile, number: int) -> Record:
    try:
        return parse(file.read(number))
    except MalformedError as exc:
        raise CorruptShardError(f"{file.path}: record {number}: {exc}") from exc


def _frame(
    record: Record, given: tuple[int | None, int | None, int | None], notes: Mapping[str, Any], place: str
) -> tuple[int, ...] | None:
    """Return the shape of a frame of ``raw_video``, which records do not state; None without ``raw_video``."""
    video = record.get(VIDEO)
    if video is None:
        return None
    count = length_of(record, place)
    size, rest = divmod(len(video) if isinstance(video, bytes) else 0, count)
    if rest or not size:
        raise CorruptShardError(f"{place}: {VIDEO}: expected bytes of {count:,} frames, found {shown(video)}")
    noted = noted_fields(notes).get("observation")
    if noted is not None and noted.shape and math.prod(noted.shape) == size:
        return noted.shape
    height, width, channels = given
    for depth in (channels,) if channels else (1, _COLOURS):
        pixels = size // depth
        high = height or (pixels // width if width else math.isqrt(pixels))
        wide = width or pixels // max(1, high)
        if high * wide * depth == size and (height or width or high == wide):
            return (high, wide) if depth == 1 else (high, wide, depth)
    raise SourceError(
        f"{place}: {VIDEO}: expected square frames of 1 or 3 channels, found {size:,} bytes a frame",
        hint="`from_` array_record:height=H,width=W,channels=C",
    )


def _fields(
    record: Record, frame: tuple[int, ...] | None, notes: Mapping[str, Any], place: str
) -> tuple[dict[str, Field], ExtraFields]:
    count, noted = length_of(record, place), noted_fields(notes)
    extras = ExtraFields(FLAGS)
    for key, value in record.items():
        if key in (LENGTH, TRAJECTORY, *FLAGS) or (key.startswith(FINAL) and _name(key.removeprefix(FINAL)) in noted):
            continue
        name = _name(key)
        kind = ("uint8", frame) if key == VIDEO and frame is not None else _kind(value, count, name, noted)
        if kind is None and not (isinstance(value, np.ndarray) and value.shape[:1] != (count,)):
            extras.add(key, name, None, Role.STEP)
        elif kind is None:
            extras.leave(key, NOT_A_ROW_PER_STEP)
        else:
            role = noted[name].role if name in noted else _ROLES.get(name.split("/")[0], Role.STEP)
            extras.add(key, name, kind, role)
    return dict(extras.fields), extras


def _name(key: str) -> str:
    return KEYS.get(key, key)


def _kind(value: Any, count: int, name: str, noted: Mapping[str, Field]) -> RowType | None:
    """Return dtype and shape of the rows of a value; None unless it has one row per step, of numbers or text."""
    if isinstance(value, np.ndarray) and value.shape[:1] == (count,):
        shape = value.shape[1:]
        return value.dtype.name, () if name == "reward" and shape == (1,) else shape
    if isinstance(value, list):
        shape = noted[name].shape if name in noted and noted[name].is_text else ()
        if text_rows(value, count, shape) is not None:
            return TEXT, shape
    return None


def _ending_notes(root: Path, names: Sequence[str], records: int, *, has_ends: bool) -> dict[str, int]:
    """Return the notes of what the trajectories of records of another program lack.

    Without flags, that is the outcome of the last step of every record.
    """
    if not has_ends:
        return {STEPS_WITHOUT_OUTCOME: records}

    def episodes() -> Iterator[RowEpisode]:
        for name in names:
            with opened(root / name) as file:
                for number in range(file.count):
                    with skippable(place := f"{file.path}: record {number}"):
                        record = _parsed(file, number)
                        length = length_of(record, place)
                        flags = [record_flags(record.get(flag), length, f"{place}: {flag}") for flag in FLAGS]
                        yield from (episode for _, episode in _episodes(flags, number))

    with _passing():
        return ending_notes(episodes())


def _environment(root: Path, fields: dict[str, Field]) -> dict[str, Any]:
    """Return the note of the environment in p(doom)'s metadata; adds the number of actions to their field."""
    path = next((place / METADATA for place in (root, root.parent) if (place / METADATA).is_file()), None)
    if path is None:
        return {}
    found = read_object(path)
    actions, environment = found.get("num_actions"), found.get("env")
    action = fields.get("action")
    if type(actions) is int and actions > 0 and action is not None and action.shape == () and action.dtype[0] in "iu":
        space = {"type": "Discrete", "n": actions}
        fields["action"] = Field(action.dtype, action.shape, action.role, space)
    return {"environment": environment} if isinstance(environment, str) and len(environment) < 200 else {}
