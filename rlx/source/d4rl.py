"""D4RL's HDF5: all steps of all episodes in a row, with flags where an episode ends."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.schema import Field, Role, Schema
from rlx.source import hdf5_file
from rlx.source.episode_table import EpisodeTable
from rlx.source.expected_layout import expecting
from rlx.source.extra_fields import NOT_A_ROW_PER_STEP, not_taken_note
from rlx.source.hdf5_columns import Hdf5Columns, field_shape
from rlx.source.one_file import OneFile
from rlx.source.row_episodes import shard_bounds, without_outcome

KEYS = ("observations", "actions", "rewards", "terminals")
# What the first version of d3rlpy adds to the same layout; its episodes end where these flags stand.
EPISODE_ENDS = "episode_terminals"
_NEXT = "next_observations"
LAYOUT = "expected D4RL's layout: observations [N, ...], actions [N, ...], rewards [N], terminals [N], timeouts [N]"
_PIECE_ROWS = 2**16


@dataclass(frozen=True, slots=True)
class D4RL(OneFile):
    """One file.

    Args:
        root: its directory.
        file_name: its name there.
        schema: what one step holds.
        notes: what the file does not record, and what was left out.
        paths: name in the file of every field but the flags.
        episodes: all of them.
        first_episodes: first episode of every shard, and the number of episodes.
    """

    schema: Schema
    notes: Mapping[str, Any]
    paths: Mapping[str, str]
    episodes: EpisodeTable
    first_episodes: tuple[int, ...]

    def shards(self) -> Sequence[int]:
        """Groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The steps of a shard.

        Raises:
            SourceNotFoundError: the file is missing.
            CorruptShardError: it is damaged, or has NaN in it.
        """
        with expecting(LAYOUT), hdf5_file.opened(self.path) as file:
            count = int(self.episodes.rows.sum())
            columns = {name: hdf5_file.numbers(file, path, rows=count) for name, path in self.paths.items()}
            after = {"observation": hdf5_file.numbers(file, _NEXT)} if hdf5_file.has(file, _NEXT) else {}
            first, stop = self.first_episodes[shard : shard + 2]
            row = int(self.episodes.rows[:first].sum())
            for episode in self.episodes[first:stop]:
                rows = Hdf5Columns(columns, after, self.schema, first=row)
                yield from episode.blocks(self.schema, rows, dropped)
                row += episode.rows


def recognises(path: Path) -> bool:
    """Whether a file has the datasets that D4RL's have."""
    return hdf5_file.holds(path, KEYS) and not hdf5_file.holds(path, (EPISODE_ENDS,))


@expecting(LAYOUT)
def open_d4rl(path: Path) -> D4RL:
    """The dataset in a file of D4RL, or of the first version of d3rlpy.

    Raises:
        SourceNotFoundError: there is no such file.
        CorruptShardError: a dataset is missing, holds no numbers, or has more or fewer rows than another.
        SourceError: it has no step.
    """
    with hdf5_file.opened(path) as file:
        if missing := [key for key in KEYS if not hdf5_file.has(file, key)]:
            raise CorruptShardError(f"{path}: {missing[0]} is missing")
        count = len(hdf5_file.numbers(file, "observations"))
        if not count:
            raise SourceError(f"{path} has no step")
        fields, paths, left_out = _fields(file, count)
        terminals, timeouts, ends = _episodes(file, count)
        has_next = hdf5_file.has(file, _NEXT)
        episodes = EpisodeTable(
            np.diff(ends, prepend=0),
            number=np.arange(len(ends)),
            terminated=terminals[ends - 1],
            truncated=timeouts[ends - 1],
            final_recorded=has_next,
        )
        notes: dict[str, Any] = {**hdf5_file.told(file), "format": "D4RL", **without_outcome(episodes)}
        if not any(hdf5_file.has(file, key) for key in ("timeouts", EPISODE_ENDS)):
            notes["truncation"] = "unrecorded: where a limit cut an episode, the next goes on as if it were the same"
            if has_next:
                notes["truncation"] = "unrecorded: a trajectory ends where its next observations do not go on"
        notes |= not_taken_note(dict.fromkeys(left_out, NOT_A_ROW_PER_STEP))
    try:
        schema = Schema(fields)
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{path}: {exc}") from exc
    bounds = shard_bounds(episodes.rows)
    return D4RL(path.parent, path.name, schema, notes, paths, episodes, bounds)


def _fields(file: h5py.File, count: int) -> tuple[dict[str, Field], dict[str, str], list[str]]:
    """The fields of a file, the name of each in it, and what is in it besides."""
    fields: dict[str, Field] = {}
    paths: dict[str, str] = {}
    known = {*KEYS, EPISODE_ENDS, _NEXT, "timeouts", "infos", "metadata", "discrete_action", "version"}
    left_out = [name for name in hdf5_file.names(file) if name not in known]
    columns = [("observation", "observations", Role.OBSERVATION), ("action", "actions", Role.STEP)]
    columns.append(("reward", "rewards", Role.NEXT))
    for path in hdf5_file.leaves(file, "infos") if hdf5_file.has(file, "infos") else []:
        if hdf5_file.is_numbers(hdf5_file.dataset(file, path), count):
            columns.append((path.replace("infos", "info", 1), path, Role.STEP))
        else:
            left_out.append(path)
    for name, path, role in columns:
        found = hdf5_file.numbers(file, path, rows=count)
        shape = field_shape(found, is_number=name == "reward")
        fields[name], paths[name] = Field(found.dtype.name, shape, role), path
    fields |= {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
    if hdf5_file.has(file, _NEXT):
        seen, after = (hdf5_file.numbers(file, name, rows=count) for name in ("observations", _NEXT))
        if (seen.dtype, seen.shape) != (after.dtype, after.shape):
            raise CorruptShardError(
                f"{file.filename}: {_NEXT}: expected {seen.dtype}{list(seen.shape)} as observations, "
                f"found {after.dtype}{list(after.shape)}"
            )
    return fields, paths, left_out


def _episodes(file: h5py.File, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """[N] which steps are terminal, [N] which were cut by a limit, and the row behind the last of every episode."""
    terminals = _flags(file, "terminals", count)
    ends = terminals.copy()
    if hdf5_file.has(file, "timeouts"):
        ends |= _flags(file, "timeouts", count)
    elif hdf5_file.has(file, EPISODE_ENDS):
        ends |= _flags(file, EPISODE_ENDS, count)
    timeouts = ends & ~terminals
    if not timeouts.any() and hdf5_file.has(file, _NEXT):
        ends |= _seams(file, count)
    ends[-1] = True
    return terminals, timeouts, np.flatnonzero(ends) + 1


def _flags(file: h5py.File, name: str, count: int) -> NDArray[np.bool_]:
    found = hdf5_file.numbers(file, name, rows=count)
    if found.size != count:
        raise CorruptShardError(f"{file.filename}: {name}: expected a flag a step, found {list(found.shape)}")
    starts = range(0, count, _PIECE_ROWS)
    return np.concatenate(
        [hdf5_file.read_finite(found, start, min(start + _PIECE_ROWS, count)).reshape(-1) != 0 for start in starts]
    )


def _seams(file: h5py.File, count: int) -> NDArray[np.bool_]:
    """[N] behind which rows the file goes on with something else than what was seen next."""
    seams = np.zeros(count, bool)
    seen, after = hdf5_file.numbers(file, "observations"), hdf5_file.numbers(file, _NEXT)
    rows = max(1, min(_PIECE_ROWS, 2**22 * count // max(1, seen.nbytes)))
    for start in range(0, count - 1, rows):
        stop = min(start + rows, count - 1)
        differ = hdf5_file.read(after, start, stop) != hdf5_file.read(seen, start + 1, stop + 1)
        seams[start:stop] = differ.reshape(stop - start, -1).any(1)
    return seams
