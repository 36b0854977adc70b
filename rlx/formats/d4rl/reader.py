"""D4RL's HDF5: the steps of all episodes in one array per field, with flags where an episode ends."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.fields import NOT_OF_STEPS, ExtraFields, expecting, flags_of, not_taken_note
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.episodes import Hdf5Columns, field_shape, find_extras, leaves_of, rows_of
from rlx.formats.common.rows.episodes import EpisodeTable, ending_notes, shard_bounds
from rlx.formats.common.rows.scan import different
from rlx.formats.common.skipping import whole
from rlx.formats.common.source import EpisodeGroups, OneFile
from rlx.formats.d4rl import EPISODE_ENDS, KEYS, KNOWN, LAYOUT, METADATA, NEXT, TABLE, TABLE_COLUMNS, TIMEOUTS
from rlx.schema import FLAGS, Field, Role, Schema
from rlx.wording import missing as is_missing

_PIECE_ROWS = 2**16


@dataclass(frozen=True, slots=True)
class D4RL(EpisodeGroups, OneFile):
    """One file.

    Args:
        paths: path of every field but the flags.
        after: path of the observation after each step, for observations that have it.
    """

    schema: Schema
    notes: Mapping[str, Any]
    paths: Mapping[str, str]
    after: Mapping[str, str]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard."""
        with expecting(LAYOUT), hdf5_file.opened(self.path) as file:
            count = int(self.episodes.rows.sum())
            columns, after = (
                {name: rows_of(file, path, self.schema[name], count) for name, path in paths.items()}
                for paths in (self.paths, self.after)
            )
            first, stop = self.first_episodes[shard : shard + 2]
            row = int(self.episodes.rows[:first].sum())
            for episode in self.episodes[first:stop]:
                with Hdf5Columns(columns, after, self.schema, first=row) as rows:
                    yield from whole(episode.name, episode.blocks(self.schema, rows, dropped), dropped)
                row += episode.rows


@expecting(LAYOUT)
def open_d4rl(path: Path) -> D4RL:
    """Return the dataset in a file of D4RL, or of the first version of d3rlpy."""
    with hdf5_file.opened(path) as file:
        if missing := [key for key in KEYS if not hdf5_file.has(file, key)]:
            raise CorruptShardError(is_missing(f"{path}: {missing[0]}", hdf5_file.names(file)))
        count = len(hdf5_file.numbers(file, "observations"))
        if not count:
            raise SourceError(f"{path} has no step")
        said = hdf5_file.notes(file)
        fields, paths, after, extras = _fields(file, count, said)
        episodes = _tabled(file, count) or _scanned(file, count)
        notes: dict[str, Any] = {**said, "format": "D4RL", **ending_notes(episodes)}
        if not any(hdf5_file.has(file, key) for key in (TIMEOUTS, EPISODE_ENDS)):
            notes["truncation"] = "unrecorded: where a limit cut an episode, the next one continues it"
            if hdf5_file.has(file, NEXT):
                notes["truncation"] = "unrecorded: a trajectory ends where its next observations do not continue"
        notes |= not_taken_note(extras.not_taken)
        schema = Schema(fields)
    bounds = shard_bounds(episodes.rows)
    return D4RL(path.parent, path.name, schema, notes, paths, after, episodes, bounds)


def _fields(
    file: h5py.File, count: int, said: Mapping[str, Any]
) -> tuple[dict[str, Field], dict[str, str], dict[str, str], ExtraFields]:
    fields: dict[str, Field] = {}
    paths: dict[str, str] = {}
    columns = (("observation", "observations", Role.OBSERVATION), ("action", "actions", Role.STEP))
    for name, path, role in (*columns, ("reward", "rewards", Role.NEXT)):
        found = hdf5_file.numbers(file, path, rows=count)
        shape = field_shape(found, is_number=name == "reward")
        fields[name], paths[name] = Field(found.dtype.name, shape, role), path
    fields |= FLAGS
    after = {}
    if hdf5_file.has(file, NEXT):
        seen, then = (hdf5_file.numbers(file, name, rows=count) for name in ("observations", NEXT))
        if (seen.dtype, seen.shape) != (then.dtype, then.shape):
            raise CorruptShardError(
                f"{file.filename}: {NEXT}: expected {seen.dtype}{list(seen.shape)} as observations, "
                f"found {then.dtype}{list(then.shape)}"
            )
        after["observation"] = NEXT
    names = [name for name in hdf5_file.names(file) if name not in KNOWN]
    leaves, left = leaves_of(file, names)
    leaves = [leaf for leaf in leaves if not leaf.startswith(TABLE)]
    steps = [leaf for leaf in leaves if not leaf.startswith(METADATA)]
    extras, after_extras = find_extras(file, steps, count, fields, said)
    for leaf, reason in {**dict.fromkeys([*leaves], NOT_OF_STEPS), **left}.items():
        if leaf not in steps:
            extras.leave(leaf, reason)
    return fields | extras.fields, paths | extras.keys, after | after_extras, extras


def _tabled(file: h5py.File, count: int) -> EpisodeTable | None:
    """Return the episodes by the table that rlx wrote; None without a table, or with one of other steps."""
    if not all(hdf5_file.has(file, TABLE + name) for name in TABLE_COLUMNS):
        return None
    table = {name: hdf5_file.read_all(hdf5_file.numbers(file, TABLE + name)) for name in TABLE_COLUMNS}
    for name in ("final_recorded", "from_reset", "cut"):
        table[name] = flags_of(table[name], f"{file.filename}: {TABLE}{name}")
    lengths = table.pop("length")
    kinds = all(column.shape == lengths.shape and column.dtype.kind in "iub" for column in table.values())
    # Checked one by one first: a sum of damaged lengths could overflow to the right total.
    if not kinds or lengths.ndim != 1 or not ((lengths > 0) & (lengths <= count)).all() or lengths.sum() != count:
        return None
    last = np.cumsum(lengths) - 1
    terminals, timeouts = (_flags(file, name, count) for name in ("terminals", TIMEOUTS))
    ends = terminals | timeouts
    ends[last] = False
    if ends.any():
        return None
    return EpisodeTable(
        lengths,
        number=table["episode"],
        terminated=terminals[last],
        truncated=timeouts[last],
        final_recorded=table["final_recorded"] if hdf5_file.has(file, NEXT) else False,
        from_reset=table["from_reset"],
        cut=table["cut"],
    )


def _scanned(file: h5py.File, count: int) -> EpisodeTable:
    """Return the episodes by flags; where next observations do not continue, a trajectory ends without a flag too."""
    terminals = _flags(file, "terminals", count)
    ends = terminals.copy()
    recorded = next((name for name in (TIMEOUTS, EPISODE_ENDS) if hdf5_file.has(file, name)), None)
    if recorded is not None:
        ends |= _flags(file, recorded, count)
    timeouts = ends & ~terminals
    if hdf5_file.has(file, NEXT):
        ends |= _seams(file, count)
    ends[-1] = True
    last = np.flatnonzero(ends)
    # If timeouts are recorded, no reset follows an end without a flag.
    from_reset = np.append(True, (terminals | timeouts)[last[:-1]] | (recorded is None))
    return EpisodeTable(
        np.diff(last, prepend=-1),
        number=np.arange(len(last)),
        terminated=terminals[last],
        truncated=timeouts[last],
        final_recorded=hdf5_file.has(file, NEXT),
        from_reset=from_reset,
    )


def _flags(file: h5py.File, name: str, count: int) -> NDArray[np.bool_]:
    found = hdf5_file.numbers(file, name, rows=count)
    if found.size != count:
        raise CorruptShardError(f"{file.filename}: {name}: expected one flag per step, found {list(found.shape)}")
    starts = range(0, count, _PIECE_ROWS)
    return np.concatenate(
        [hdf5_file.read_flags(found, start, min(start + _PIECE_ROWS, count)).reshape(-1) for start in starts]
    )


def _seams(file: h5py.File, count: int) -> NDArray[np.bool_]:
    """Return [N] whether each row's next observation differs from the row after it."""
    seams = np.zeros(count, bool)
    seen, after = hdf5_file.numbers(file, "observations"), hdf5_file.numbers(file, NEXT)
    rows = max(1, min(_PIECE_ROWS, 2**22 * count // max(1, seen.nbytes)))
    for start in range(0, count - 1, rows):
        stop = min(start + rows, count - 1)
        seams[start:stop] = different(hdf5_file.read(after, start, stop), hdf5_file.read(seen, start + 1, stop + 1))
    return seams
