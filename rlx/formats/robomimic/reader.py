"""robomimic's HDF5: one group per demonstration, with observations and next observations in groups of their own."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.common.fields import NOT_A_ROW_PER_STEP, NOT_OF_STEPS, ExtraFields, expecting, flags_of, not_taken_note
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.episodes import Hdf5Episodes, field_shape, find_extras, leaves_of, rows_in
from rlx.formats.common.hdf5.file import is_text
from rlx.formats.common.rows.episodes import RowEpisode, ending_notes, shard_bounds
from rlx.formats.common.skipping import skippable, typical
from rlx.formats.robomimic import ACTIONS, ATTRIBUTES, DONES, KNOWN, LAYOUT, NEXT, OBS, RECORDED, REWARDS, STEPS
from rlx.schema import FLAGS, TEXT, Field, Role, Schema
from rlx.wording import missing as is_missing

_DEMO = re.compile(r"demo_(\d{1,9})")
_NAMED = "demo_{}"


@expecting(LAYOUT)
def open_robomimic(path: Path) -> Hdf5Episodes:
    """Return the dataset in a file of robomimic; episodes are numbered as rlx noted, or as demonstrations."""
    with hdf5_file.opened(path) as file:
        if not hdf5_file.has(file, "data"):
            raise CorruptShardError(is_missing(f"{path}: data", hdf5_file.names(file)))
        demos, others = _demos(file)
        if not demos:
            raise SourceError(f"{path} has no demonstration")
        said = hdf5_file.notes(file)
        members = _members(file, demos)
        recorded = {name for name in (REWARDS, DONES) if any(name in found for found in members.values())}
        has_next = any(NEXT in found for found in members.values())
        episodes, has_early = dict[int, RowEpisode](), False
        for number in members:
            with skippable(_NAMED.format(number)):
                episodes[number], is_early = _episode(
                    file, number, final_recorded=has_next, has_dones=DONES in recorded
                )
                has_early |= is_early
        described = typical(episodes, _NAMED, lambda number: _recorded(file, number, has_rewards=REWARDS in recorded))
        demos = list(episodes)
        fields, paths, after, extras = _fields(file, demos, said, described, has_next=has_next)
        if has_early:
            # Demonstrations may continue after a success; then the flags are data.
            paths["dones"] = f"data/demo_{{}}/{DONES}"
            fields["dones"] = Field(hdf5_file.numbers(file, paths["dones"].format(demos[0])).dtype.name, (), Role.NEXT)
        for other in others:
            extras.leave(other, NOT_OF_STEPS)
        notes = {
            **_notes(file, said),
            **_unrecorded(recorded),
            **ending_notes(episodes[number] for number in demos),
            **not_taken_note(extras.not_taken),
        }
        schema = Schema(fields)
    kept = tuple(episodes[number] for number in demos)
    bounds = shard_bounds(episode.rows for episode in kept)
    return Hdf5Episodes(path.parent, path.name, schema, notes, paths, after, kept, tuple(demos), bounds, LAYOUT, _NAMED)


def _demos(file: h5py.File) -> tuple[list[int], list[str]]:
    """Return the numbers of the demonstrations, ascending, and the names of the other members."""
    names = hdf5_file.names(hdf5_file.group(file, "data"))
    found = {name: matched for name in names if (matched := _DEMO.fullmatch(name))}
    others = [f"data/{name}" for name in names if name not in found]
    return sorted(int(matched[1]) for matched in found.values()), [
        *others,
        *(name for name in hdf5_file.names(file) if name != "data"),
    ]


def _members(file: h5py.File, demos: Sequence[int]) -> dict[int, list[str]]:
    """Return the names of the members of every demonstration."""
    found = {}
    for number in demos:
        with skippable(_NAMED.format(number)):
            found[number] = hdf5_file.names(hdf5_file.group(file, f"data/demo_{number}"))
    return found


def _recorded(file: h5py.File, number: int, *, has_rewards: bool) -> tuple[dict[str, Field], dict[str, str]]:
    """Return the fields that the format names, but the flags, and the path of each in a demonstration."""
    demo = hdf5_file.group(file, f"data/demo_{number}")
    keys = [leaf.partition("/")[2] for leaf in hdf5_file.leaves(demo, OBS)]
    names = {key: "observation" if keys == ["observation"] else f"observation/{key}" for key in keys}
    paths = {name: f"{OBS}/{key}" for key, name in names.items()} | {"action": ACTIONS}
    paths |= {"reward": REWARDS} if has_rewards else {}
    fields: dict[str, Field] = {}
    for name, path in paths.items():
        found = hdf5_file.dataset(demo, path)
        if not (name in names.values() and is_text(found)):
            found = hdf5_file.numbers(demo, path)
        role = {"action": Role.STEP, "reward": Role.NEXT}.get(name, Role.OBSERVATION)
        dtype = TEXT if is_text(found) else found.dtype.name
        fields[name] = Field(dtype, field_shape(found, is_number=name == "reward"), role)
    return fields, paths


def _fields(
    file: h5py.File,
    demos: list[int],
    said: Mapping[str, Any],
    recorded: tuple[dict[str, Field], dict[str, str]],
    *,
    has_next: bool,
) -> tuple[dict[str, Field], dict[str, str], dict[str, str], ExtraFields]:
    fields, paths = recorded
    fields = {**fields, "reward": fields.get("reward", Field("float32", (), Role.NEXT)), **FLAGS}
    extras, after = _extras(file, demos, [*fields, "dones"], said)
    if has_next:
        seen = [name for name in paths if name not in ("action", "reward")]
        after |= {name: f"{NEXT}/{paths[name].removeprefix(f'{OBS}/')}" for name in seen}
    return (
        fields | extras.fields,
        {name: f"data/demo_{{}}/{path}" for name, path in (paths | extras.keys).items()},
        {name: f"data/demo_{{}}/{path}" for name, path in after.items()},
        extras,
    )


def _extras(
    file: h5py.File, demos: list[int], known: list[str], said: Mapping[str, Any]
) -> tuple[ExtraFields, dict[str, str]]:
    found: dict[str, int] = {}
    attributes: set[str] = set()
    links: dict[str, str] = {}
    for number in demos:
        demo = hdf5_file.group(file, f"data/demo_{number}")
        more = [name for name in hdf5_file.names(demo) if name not in KNOWN]
        leaves, left = leaves_of(demo, more)
        links |= left
        rows = len(hdf5_file.numbers(demo, ACTIONS))
        for leaf in leaves:
            found[leaf] = found.get(leaf, 0) + (rows_in(demo, leaf) == rows)
        attributes |= {name for name in hdf5_file.attributes(demo) if name not in ATTRIBUTES}
    first = hdf5_file.group(file, f"data/demo_{demos[0]}")
    rows = len(hdf5_file.numbers(first, ACTIONS))
    whole = [leaf for leaf, count in found.items() if count == len(demos)]
    extras, after = find_extras(first, whole, rows, known, said)
    unlike = dict.fromkeys(sorted(found.keys() - {*whole}), NOT_A_ROW_PER_STEP)
    for leaf, reason in {**extras.not_taken, **unlike, **links}.items():
        extras.not_taken.pop(leaf, None)
        extras.leave(f"data/demo_*/{leaf}", reason)
    for name in sorted(attributes):
        extras.leave(f"data/demo_*: attribute {name}", NOT_OF_STEPS)
    return extras, after


def _unrecorded(recorded: Collection[str]) -> dict[str, str]:
    """Return the notes of what no demonstration has, as those of Isaac Lab and MimicGen."""
    notes = {} if REWARDS in recorded else {"rewards": "unrecorded: zeros"}
    return notes if DONES in recorded else {**notes, "terminated": "unrecorded"}


def _episode(file: h5py.File, number: int, *, final_recorded: bool, has_dones: bool) -> tuple[RowEpisode, bool]:
    """Return one demonstration, and whether a step before its end is flagged."""
    demo = hdf5_file.group(file, f"data/demo_{number}")
    rows = len(hdf5_file.numbers(demo, ACTIONS))
    there = hdf5_file.attributes(demo)
    if STEPS in there and (said := hdf5_file.integer(demo, STEPS)) != rows:
        raise CorruptShardError(f"{file.filename}: {demo.name}: expected {said:,} samples, found {rows:,} actions")
    dones: NDArray[np.bool_] = np.zeros(rows, bool)
    if has_dones:
        dones = hdf5_file.read_flags(hdf5_file.numbers(demo, DONES, rows=rows), 0, rows).reshape(
            rows, -1 if rows else 1
        )
    terminated = bool(rows and dones[-1].any())
    values = {name: hdf5_file.integer(demo, name) for name in RECORDED if name in there}
    for name in values.keys() - {"episode"}:
        flags_of(np.array([values[name]]), f"{file.filename}: {demo.name}: {name} (an attribute)")
    episode = RowEpisode(
        values.get("episode", number),
        rows,
        terminated,
        truncated=bool(values.get("truncated", False)),
        final_recorded=final_recorded and bool(values.get("final_recorded", True)),
        from_reset=bool(values.get("from_reset", True)),
        cut=bool(values.get("cut", False)),
    )
    return episode, bool(dones[:-1].any())


def _notes(file: h5py.File, said: Mapping[str, Any]) -> dict[str, Any]:
    notes: dict[str, Any] = {**said, "format": "robomimic"}
    try:
        environment = json.loads(hdf5_file.attribute(hdf5_file.group(file, "data"), "env_args"))["env_name"]
    except (KeyError, ValueError, TypeError, RecursionError):
        environment = None
    if isinstance(environment, str):
        notes["environment"] = environment
    if not said:
        notes["truncation"] = "unrecorded: a demonstration that did not terminate just ends"
    return notes
