"""The HDF5 that d3rlpy 2 dumps (version 2.1): four datasets per episode, without final observations.

An episode that did not terminate was cut by a limit. d3rlpy's first version wrote D4RL's layout, with flags at the ends
of episodes.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlx.errors import CorruptShardError, SourceError
from rlx.formats import d4rl
from rlx.formats.common.fields import NOT_A_ROW_PER_STEP, NOT_OF_STEPS, ExtraFields, expecting, flags_of, not_taken_note
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.episodes import Hdf5Episodes, field_shape, find_extras, leaves_of, rows_in
from rlx.formats.common.hdf5.file import texts
from rlx.formats.common.rows.episodes import RowEpisode, ending_notes, shard_bounds
from rlx.formats.common.skipping import skippable, typical
from rlx.formats.d3rlpy import COLUMNS, KEYS, LAYOUT, VERSION
from rlx.formats.d4rl.reader import D4RL, open_d4rl
from rlx.schema import FLAGS, Field, Role, Schema
from rlx.wording import missing as is_missing

_NAMED = "episode {}"
_NUMBERED = re.compile(r"(.+)_(\d{1,9})")
# In a tuple of observations, the index in the tuple follows the episode's number.
_OF_EPISODE = re.compile(r"(?:observations|actions|rewards|terminated)_(\d{1,9})(?:_\d{1,9})?")


def open_d3rlpy(path: Path) -> Hdf5Episodes | D4RL:
    """Return the dataset in a file that d3rlpy dumped."""
    return open_d4rl(path) if hdf5_file.holds(path, d4rl.KEYS[:1]) else _opened(path)


@expecting(LAYOUT)
def _opened(path: Path) -> Hdf5Episodes:
    with hdf5_file.opened(path) as file:
        if missing := [key for key in KEYS if not hdf5_file.has(file, key)]:
            raise CorruptShardError(is_missing(f"{path}: {missing[0]}", hdf5_file.names(file)))
        version = texts(file, "version")
        if version != [VERSION]:
            raise SourceError(f"{path} is of d3rlpy's version {'.'.join(version)}, expected {VERSION}")
        episode_count = int(hdf5_file.scalar(file, "num_episodes"))
        if episode_count < 1:
            raise SourceError(f"{path} has no episode")
        said = hdf5_file.notes(file)
        episodes = dict[int, RowEpisode]()
        for number in range(episode_count):
            with skippable(_NAMED.format(number)):
                episodes[number] = _episode(file, number)
        fields, paths = typical(episodes, _NAMED, lambda number: _fields(file, number))
        extras = _extras(file, episodes, episode_count, {**fields, "terminated": None}, said)
        fields |= extras.fields
        paths |= {name: f"{path}_{{}}" for name, path in extras.keys.items()}
        notes: dict[str, Any] = {**said, "format": "d3rlpy 2.1", **ending_notes(episodes.values())}
        notes |= not_taken_note(extras.not_taken)
        schema = Schema(fields)
    kept = tuple(episodes.values())
    bounds = shard_bounds(episode.rows for episode in kept)
    return Hdf5Episodes(path.parent, path.name, schema, notes, paths, {}, kept, tuple(episodes), bounds, LAYOUT, _NAMED)


def _fields(file: h5py.File, first: int) -> tuple[dict[str, Field], dict[str, str]]:
    paths = {"observation": "observations_{}"}
    if not hdf5_file.has(file, f"observations_{first}"):
        parts = next(number for number in count() if not hdf5_file.has(file, f"observations_{first}_{number}"))
        if not parts:
            raise CorruptShardError(is_missing(f"{file.filename}: observations_{first}", hdf5_file.names(file)))
        paths = {f"observation/_index_{number}": f"observations_{{}}_{number}" for number in range(parts)}
    paths |= {"action": "actions_{}", "reward": "rewards_{}"}
    fields = {}
    for name, path in paths.items():
        found = hdf5_file.numbers(file, path.format(first))
        is_number = name == "reward" or (name == "action" and found.dtype.kind in "iub")
        role = Role.OBSERVATION if name.startswith("observation") else Role.STEP if name == "action" else Role.NEXT
        fields[name] = Field(found.dtype.name, field_shape(found, is_number=is_number), role)
    return {**fields, **FLAGS}, paths


def _episode(file: h5py.File, number: int) -> RowEpisode:
    rows = len(hdf5_file.numbers(file, f"actions_{number}"))
    name = f"terminated_{number}"
    terminated = bool(flags_of(np.array([hdf5_file.scalar(file, name)]), f"{file.filename}: {name}"))
    return RowEpisode(number, rows, terminated, truncated=not terminated, final_recorded=False)


def _extras(
    file: h5py.File, episodes: Mapping[int, RowEpisode], count: int, known: Iterable[str], said: Mapping[str, Any]
) -> ExtraFields:
    found: dict[str, int] = {}
    others: dict[str, str] = {}
    for name in hdf5_file.names(file):
        known_one = _OF_EPISODE.fullmatch(name)
        if name in KEYS or (known_one is not None and int(known_one[1]) < count):
            continue
        leaves, left = leaves_of(file, [name])
        others |= left
        for leaf in leaves:
            numbered = _NUMBERED.fullmatch(leaf)
            if known_one is not None or numbered is None or int(numbered[2]) >= count:
                others[leaf] = NOT_OF_STEPS
                continue
            if (episode := episodes.get(int(numbered[2]))) is not None:
                found[numbered[1]] = found.get(numbered[1], 0) + (rows_in(file, leaf) == episode.rows)
    whole = [base for base, count in found.items() if count == len(episodes)]
    first, rows = next((number, episode.rows) for number, episode in episodes.items())
    extras, _ = find_extras(file, whole, rows, known, said, f"{{}}_{first}".format)
    for leaf, reason in others.items():
        extras.leave(leaf, reason)
    missing = set(texts(file, "columns")) - {*COLUMNS, *whole}
    for base in sorted({*(found.keys() - {*whole}), *missing}):
        extras.leave(base, NOT_A_ROW_PER_STEP)
    return extras
