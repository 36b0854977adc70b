"""numpy's ``.npz``: one array per field, one row per step, named by TED paths; and perhaps a table of the trajectories.

Nothing is unpickled, and the arrays are read in parallel, so that memory does not depend on their size.
"""

import math
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.files.disk import check_readable
from rlx.formats.common.fields import (
    NOT_A_ROW_PER_STEP,
    NOT_OF_STEPS,
    NOT_UTF_8,
    RowType,
    expecting,
    not_taken_note,
)
from rlx.formats.common.npy import NpyStream
from rlx.formats.common.provenance import read_notes
from rlx.formats.common.rows.episodes import PADDING, Batch, EpisodeTable, ending_notes
from rlx.formats.common.rows.scan import EpisodeScan, FoundEpisodes, RowRuns
from rlx.formats.common.rows.table import row_stream
from rlx.formats.common.rows.ted_fields import (
    DONE,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    StreamColumns,
    TedFields,
    scanned_columns,
    ted_fields,
)
from rlx.formats.common.skipping import whole
from rlx.formats.common.source import MalformedError, OneFile, batch_rows, damage
from rlx.formats.npz import FINAL, GROUP, LAYOUT, SUFFIX, TABLE
from rlx.schema import TEXT, Schema, is_action, is_observation
from rlx.wording import missing

_SCANNED_ROWS = 2**16
_MAX_MEMBERS = 1000
_MAX_BATCH_BYTES = 2**24
_FAILURES = (zipfile.BadZipFile, OSError, EOFError, RuntimeError, ValueError, KeyError, zlib.error, struct.error)


class Archive:
    """An open archive. Damage raises CorruptShardError.

    Attributes:
        others: names of the members that are not arrays.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        infos = archive.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise CorruptShardError(f"{path}: expected at most {_MAX_MEMBERS:,} arrays, found {len(infos):,}")
        names = Counter(info.filename for info in infos)
        if several := [name for name, count in names.items() if count > 1]:
            raise CorruptShardError(
                f"{path}: {several[0]}: expected one member of this name, found {names[several[0]]}"
            )
        self._infos = {info.filename.removesuffix(SUFFIX): info for info in infos if info.filename.endswith(SUFFIX)}
        self._bytes = path.stat().st_size
        self.others = [info.filename for info in infos if not info.filename.endswith(SUFFIX)]

    @property
    def names(self) -> Sequence[str]:
        """Names of its arrays."""
        return list(self._infos)

    def type_of(self, name: str) -> tuple[RowType | None, tuple[int, ...]]:
        """Return the row type (dtype and shape of a row) and the shape of an array; None and () for other values."""
        try:
            with self.member(name) as member:
                return member.kind, member.shape
        except CorruptShardError as exc:
            if isinstance(exc.__cause__, MalformedError):
                return None, ()
            raise

    def member(self, name: str) -> NpyStream:
        """Return the stream of an array."""
        info = self._infos[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.wrong(name, "an array that is stored or deflated", f"compression {info.compress_type}")
        with damage(f"{self.path}: {name}", *_FAILURES):
            file = self._archive.open(info)
        return NpyStream(f"{self.path}: {name}", file, self._bytes, text=True)

    def whole(self, name: str) -> NDArray[Any]:
        """Return a small array."""
        with self.member(name) as member:
            rows = member.read(member.count)
            member.finish()
            return rows

    def is_text(self, name: str) -> bool:
        """Return whether all values of an array of text are Unicode."""
        try:
            with self.member(name) as member:
                for start in range(0, member.count, _SCANNED_ROWS):
                    member.read(min(_SCANNED_ROWS, member.count - start))
        except CorruptShardError as exc:
            if isinstance(exc.__cause__, UnicodeError):
                return False
            raise
        return True

    def group_start(self, row: int) -> int:  # noqa: ARG002  (an archive can only be read from its start)
        """Return 0."""
        return 0

    def batches(self, names: Sequence[str], size: int, row: int = 0) -> Generator[Batch, None, None]:  # noqa: ARG002
        """Yield rows of several arrays, at most ``size`` of each at a time, from the first on."""
        with ExitStack() as stack:
            members = {name: stack.enter_context(self.member(name)) for name in dict.fromkeys(names)}
            rows = next(iter(members.values())).count
            # Texts may be long, which the schema does not show.
            widest = max(member.dtype.itemsize * math.prod(member.shape[1:]) for member in members.values())
            size = max(1, min(size, _MAX_BATCH_BYTES // max(1, widest)))
            for start in range(0, rows, size):
                yield {name: member.read(min(size, rows - start)) for name, member in members.items()}
            for member in members.values():
                member.finish()

    def notes(self) -> Mapping[str, Any]:
        """Return the notes that rlx wrote."""
        return read_notes(self._archive.comment)

    def wrong(self, name: str, expected: str, found: str) -> CorruptShardError:
        """Return the error of an array that is not as expected."""
        return CorruptShardError(f"{self.path}: {name}: expected {expected}, found {found}")


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Yield the open archive."""
    check_readable(path)
    with damage(str(path), *_FAILURES):
        archive = zipfile.ZipFile(path)
    with archive:
        yield Archive(path, archive)


@dataclass(frozen=True, slots=True)
class Npz(OneFile):
    """One archive.

    Args:
        finals: array of final observations, one row per episode, by observation.
        runs: the rows, episode by episode; None if that is their order.
        padding: masked rows, which are left out.
    """

    fields: TedFields
    notes: Mapping[str, Any]
    episodes: EpisodeTable
    finals: Mapping[str, str]
    runs: RowRuns | None = None
    padding: int = 0

    @property
    def schema(self) -> Schema:
        """Schema of a step."""
        return self.fields.schema

    def shards(self) -> Sequence[int]:
        """Return the only shard: an archive can only be read from its start."""
        return (0,)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:  # noqa: ARG002
        """Yield all steps."""
        if self.padding:
            dropped[PADDING] += self.padding
        paths = [*self.fields.paths.values(), *self.fields.after.values()]
        with expecting(LAYOUT), opened(self.path) as archive, ExitStack() as stack:
            stream = stack.enter_context(closing(row_stream(archive.path, archive, paths, self.schema, self.runs)))
            finals = {name: stack.enter_context(archive.member(path)) for name, path in self.finals.items()}
            row = 0
            for place, episode in enumerate(self.episodes):
                columns = _Columns(stream, self.fields, row, finals, place)
                yield from whole(episode.name, episode.blocks(self.schema, columns, dropped), dropped)
                row += episode.rows
            for member in finals.values():
                member.finish()
            stream.finish()


@dataclass(frozen=True)
class _Columns(StreamColumns):
    """``StreamColumns`` with final observations in arrays of one row per episode."""

    finals: Mapping[str, NpyStream]
    place: int

    def after(self, name: str, row: int) -> NDArray[np.generic]:
        """Return [1, ...] the observation after a row."""
        if name not in self.finals:
            return super().after(name, row)
        final = self.finals[name]
        final.skip_to(self.place)
        rows = final.read(1)
        self.fields.check(name, rows, final.place, self.place)
        return rows


@expecting(LAYOUT)
def open_npz(path: Path) -> Npz:
    """Return the dataset in an archive."""
    with opened(path) as archive:
        if "next/reward" not in archive.names:
            raise CorruptShardError(missing(f"{path}: next/reward", archive.names))
        types = {name: archive.type_of(name) for name in archive.names}
        is_tabled = GROUP + "length" in types
        seen = [name.removeprefix(FINAL) for name in types if name.startswith(FINAL) and is_tabled]
        table = {*(GROUP + name for name in TABLE), *(FINAL + name for name in seen)} if is_tabled else set()
        steps = types["next/reward"][1][0] if types["next/reward"][1] else 0
        not_taken = dict.fromkeys(archive.others, NOT_OF_STEPS)
        kinds: dict[str, RowType | None] = {}
        for name, (kind, shape) in types.items():
            if name in table:
                continue
            if kind is not None and kind[0] == TEXT and not _is_needed(name) and not archive.is_text(name):
                not_taken[name] = NOT_UTF_8
            elif shape[:1] == (steps,) or kind is None or _is_needed(name):
                kinds[name] = kind
            else:
                not_taken[name] = NOT_A_ROW_PER_STEP
        fields = ted_fields(kinds, str(path), seen)
        not_taken |= {FINAL + name: f"not every step has {name}" for name in seen if name not in fields.schema}
        counts = {path: _rows(types[path][1]) for path in (*fields.paths.values(), *fields.after.values())}
        flags = [flag for flag in (TERMINATED, TRUNCATED, DONE) if flag in types]
        counts |= {name: math.prod(types[name][1]) for name in (*flags, TRAJECTORY) if name in types}
        if bad := [name for name, count in counts.items() if count != steps]:
            raise archive.wrong(bad[0], f"{steps:,} rows as next/reward", f"{counts[bad[0]]:,}")
        if not steps:
            raise SourceError(f"{path} has no step")
        finals = {name: FINAL + name for name in fields.schema if FINAL + name in types}
        if is_tabled:
            found = _tabled(archive, flags, steps, fields, finals)
            episodes = found.table
        else:
            finals = {}
            found = _scanned(archive, fields, kinds)
            episodes, fields = found.table, fields.torn(found.torn)
        notes = {**archive.notes(), "format": "npz", **ending_notes(episodes), **found.notes}
        notes |= not_taken_note({**fields.not_taken, **not_taken})
    return Npz(path.parent, path.name, fields, notes, episodes, finals, found.runs, found.padding)


def _is_needed(name: str) -> bool:
    return is_action(name) or is_observation(name) or name in ("next/reward", TERMINATED, TRUNCATED, DONE, TRAJECTORY)


def _rows(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 0


def _scanned(archive: Archive, fields: TedFields, kinds: Mapping[str, RowType | None]) -> FoundEpisodes:
    names, locator = scanned_columns(fields, kinds)
    scan = EpisodeScan(str(archive.path), fields.after, fields.decides, locator)
    for batch in archive.batches([*names, *fields.after, *fields.after.values()], batch_rows(fields.schema)):
        scan.add(batch, np.full(len(batch[names[0]]), bool(fields.after)))
    return scan.found()


def _tabled(
    archive: Archive, flags: Sequence[str], steps: int, fields: TedFields, finals: Mapping[str, str]
) -> FoundEpisodes:
    table = {name: archive.whole(GROUP + name) for name in TABLE if GROUP + name in archive.names}
    lengths = table["length"]
    for name, column in table.items():
        if column.shape != (len(lengths),) or column.dtype.kind not in TABLE[name]:
            raise archive.wrong(
                GROUP + name, f"[{len(lengths)}] of the kind {TABLE[name]}", f"{column.dtype}{list(column.shape)}"
            )
    # Checked one by one first: a sum of damaged lengths could overflow to the right total.
    if ((lengths < 1) | (lengths > steps)).any() or lengths.sum() != steps:
        raise archive.wrong(GROUP + "length", f"lengths that add up to {steps:,} steps", f"{int(lengths.sum()):,}")
    for name, final in finals.items():
        expected = (len(lengths), *fields.schema[name].shape)
        kind, shape = archive.type_of(final)
        if kind is None or (kind[0], shape) != (fields.schema[name].dtype, expected):
            there = "objects" if kind is None else f"{kind[0]}{list(shape)}"
            raise archive.wrong(final, f"{fields.schema[name].dtype}{list(expected)}", there)
    ends = np.cumsum(lengths)
    scan = EpisodeScan(str(archive.path))
    for batch in archive.batches(flags, _SCANNED_ROWS):
        numbers = np.arange(scan.rows, scan.rows + len(batch[flags[0]]))
        trajectory = np.searchsorted(ends, numbers, side="right")
        scan.add({**batch, TRAJECTORY: trajectory}, np.ones(len(numbers), bool))
    found = scan.found()
    if len(found.table) != len(lengths):
        raise archive.wrong(flags[0], "flags at the last step of a trajectory only", "some elsewhere")
    never = np.zeros(len(lengths), bool)
    known = table.get("final_recorded", ~never) if finals else never
    numbers, resets = table.get("episode", np.arange(len(lengths))), table.get("from_reset", ~never)
    episodes = found.table.but(number=numbers, final_recorded=known, from_reset=resets, cut=table.get("cut", never))
    return replace(found, table=episodes)
