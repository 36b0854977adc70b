"""robomimic's HDF5: a group a demonstration, what was seen and what was seen next in groups of their own."""

import json
import re
from pathlib import Path
from typing import Any

import h5py

from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError
from rlx.schema import Field, Role, Schema
from rlx.source import hdf5_file
from rlx.source.expected_layout import expecting
from rlx.source.extra_fields import NOT_OF_STEPS, not_taken_note
from rlx.source.hdf5_columns import field_shape
from rlx.source.hdf5_episodes import Hdf5Episodes
from rlx.source.row_episodes import RowEpisode, shard_bounds, without_outcome

_DEMO = re.compile(r"demo_(\d{1,9})")
_OBS, _NEXT, _DONES, _STATES = "obs", "next_obs", "dones", "states"
LAYOUT = "expected robomimic's layout: data/demo_<i> with actions [N, A], rewards [N], dones [N] and obs/<key> [N, ...]"


def recognises(path: Path) -> bool:
    """Whether a file has a group of demonstrations."""
    if not hdf5_file.holds(path, ("data",)):
        return False
    with hdf5_file.opened(path) as file:
        return bool(_demos(file)[0])


@expecting(LAYOUT)
def open_robomimic(path: Path) -> Hdf5Episodes:
    """The dataset in a file of robomimic; the numbers of its demonstrations are those of the episodes.

    Raises:
        SourceNotFoundError: there is no such file.
        CorruptShardError: a dataset is missing, holds no numbers, or has more or fewer rows than it should.
        SourceError: it has no demonstration.
    """
    with hdf5_file.opened(path) as file:
        if not hdf5_file.has(file, "data"):
            raise CorruptShardError(f"{path}: data is missing")
        demos, left_out = _demos(file)
        if not demos:
            raise SourceError(f"{path} has no demonstration")
        fields, paths, after, more = _fields(file, demos[0])
        episodes, has_early = [], False
        for number in demos:
            episode, is_early = _episode(file, number, final_recorded=bool(after))
            episodes.append(episode)
            has_early |= is_early
        if has_early:
            # Demonstrations may go on after a success; where they do, the flags themselves are of worth.
            paths["dones"] = f"data/demo_{{}}/{_DONES}"
            fields["dones"] = Field(hdf5_file.numbers(file, paths["dones"].format(demos[0])).dtype.name, (), Role.NEXT)
        notes = {**_notes(file, [*left_out, *more]), **without_outcome(episodes)}
    try:
        schema = Schema(fields)
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{path}: {exc}") from exc
    bounds = shard_bounds(episode.rows for episode in episodes)
    return Hdf5Episodes(path.parent, path.name, schema, notes, paths, after, tuple(episodes), bounds, LAYOUT)


def _demos(file: h5py.File) -> tuple[list[int], list[str]]:
    """Numbers of the demonstrations, ascending, and what lies beside them."""
    names = hdf5_file.names(hdf5_file.group(file, "data"))
    found = {name: matched for name in names if (matched := _DEMO.fullmatch(name))}
    others = [f"data/{name}" for name in names if name not in found]
    return sorted(int(matched[1]) for matched in found.values()), [
        *others,
        *(name for name in hdf5_file.names(file) if name != "data"),
    ]


def _fields(file: h5py.File, number: int) -> tuple[dict[str, Field], dict[str, str], dict[str, str], list[str]]:
    """The fields of a demonstration, where each is kept, where what was seen next is, and what is there besides."""
    demo = hdf5_file.group(file, f"data/demo_{number}")
    keys = [leaf.partition("/")[2] for leaf in hdf5_file.leaves(demo, _OBS)]
    names = {key: "observation" if keys == ["observation"] else f"observation/{key}" for key in keys}
    below = {name: f"{_OBS}/{key}" for key, name in names.items()} | {"action": "actions", "reward": "rewards"}
    if hdf5_file.has(demo, _STATES) and hdf5_file.is_numbers(hdf5_file.dataset(demo, _STATES)):
        below[_STATES] = _STATES
    has_next = hdf5_file.has(demo, _NEXT)
    known = {_OBS, _NEXT, _DONES, *below.values()}
    fields: dict[str, Field] = {}
    for name, path in below.items():
        found = hdf5_file.numbers(demo, path)
        role = {"action": Role.STEP, "reward": Role.NEXT, _STATES: Role.STEP}.get(name, Role.OBSERVATION)
        fields[name] = Field(found.dtype.name, field_shape(found, is_number=name == "reward"), role)
    fields |= {name: Field("bool", (), Role.NEXT) for name in ("terminated", "truncated")}
    return (
        fields,
        {name: f"data/demo_{{}}/{path}" for name, path in below.items()},
        {name: f"data/demo_{{}}/{_NEXT}/{key}" for key, name in names.items()} if has_next else {},
        [f"data/demo_*/{name}" for name in hdf5_file.names(demo) if name not in known],
    )


def _episode(file: h5py.File, number: int, *, final_recorded: bool) -> tuple[RowEpisode, bool]:
    """One demonstration, and whether a flag stands before its end."""
    demo = hdf5_file.group(file, f"data/demo_{number}")
    rows = len(hdf5_file.numbers(demo, "actions"))
    if hdf5_file.mark(demo, "num_samples") is not None and (said := hdf5_file.attribute(demo, "num_samples")) != rows:
        raise CorruptShardError(f"{file.filename}: {demo.name}: expected {said:,} samples, found {rows:,} actions")
    dones = hdf5_file.read_finite(hdf5_file.numbers(demo, _DONES, rows=rows), 0, rows).reshape(rows, -1) != 0
    terminated = bool(rows and dones[-1].any())
    return RowEpisode(number, rows, terminated, truncated=False, final_recorded=final_recorded), bool(dones[:-1].any())


def _notes(file: h5py.File, left_out: list[str]) -> dict[str, Any]:
    notes: dict[str, Any] = {**hdf5_file.told(file), "format": "robomimic"}
    try:
        environment = json.loads(hdf5_file.mark(hdf5_file.group(file, "data"), "env_args"))["env_name"]
    except (KeyError, ValueError, TypeError, RecursionError):
        environment = None
    if isinstance(environment, str):
        notes["environment"] = environment
    notes.setdefault("truncation", "unrecorded: a demonstration that did not terminate just ends")
    return notes | not_taken_note(dict.fromkeys(left_out, NOT_OF_STEPS))
