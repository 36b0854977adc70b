"""Notes of rlx in a file of another format that it wrote; no more trusted than any other file."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlx.errors import RlxError
from rlx.formats.common.extra_fields import NOT_TAKEN
from rlx.formats.common.noted_spaces import SCHEMA
from rlx.formats.common.rows.episodes import STEPS_WITHOUT_OUTCOME
from rlx.manifest_values import check_json
from rlx.schema import Field, Role

# The name that it goes by: of an attribute of an HDF5 file, of a key in JSON.
KEY = "rlx"
# Of a file in a directory of a format that has no such place.
FILE_NAME = "provenance.json"
_MAX_BYTES = 2**20
# Notes of how another file was read, which reading this one recreates.
_OF_READING = frozenset({"left_out", "left_out_not_numbers", NOT_TAKEN, STEPS_WITHOUT_OUTCOME, SCHEMA})


def told_notes(said: Any) -> Mapping[str, Any]:
    """Return notes of the data, with lost fields under ``lost``, and the original fields under ``schema``.

    Empty where nothing of the kind was said.

    Fields that were lost before, in another file, are not among them.

    Args:
        said: what ``rlx.formats.common.provenance_writer`` made, or that as JSON text.

    Example:
        >>> told_notes('{"notes": {"rewards": "clipped"}, "losses": ["truncations"]}')
        {'rewards': 'clipped', 'lost': ['truncations']}
        >>> told_notes(None), told_notes("[1]")
        ({}, {})
    """
    try:
        parsed = json.loads(said) if isinstance(said, str | bytes) else said
        notes, losses, schema = parsed["notes"], parsed["losses"], parsed.get(SCHEMA)
        check_json([notes, losses, schema], KEY)
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    if not isinstance(notes, dict) or not isinstance(losses, list):
        return {}
    kept = {name: note for name, note in notes.items() if name not in _OF_READING}
    told = {"lost": losses, SCHEMA: schema if isinstance(schema, dict) else None}
    return {**kept, **{name: said for name, said in told.items() if said}}


def told_beside(directory: Path) -> Mapping[str, Any]:
    """Return the same of a directory that rlx wrote, where it did."""
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        return told_notes(json.loads(path.read_bytes())[KEY])
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def told_names(
    notes: Mapping[str, Any], place: Callable[[str], str]
) -> Mapping[tuple[str, str, tuple[int, ...]], tuple[str, Role]]:
    """Return name and role of the fields that rlx put into a file, by place, dtype and shape there.

    The notes of a file may be wrong: only fields that are stored as the schema says are found.
    Most formats have no place for the last row of a trajectory that observations have: a field that is not an
    observation in such a format comes back with a row per step.

    Args:
        notes: what ``told_notes`` gives.
        place: where a field of this name would have been written.

    Example:
        >>> field = {"dtype": "float32", "shape": [2], "role": "step"}
        >>> told_names({"schema": {"params/loc": field, "bad": 1}}, lambda name: name.replace("/", "."))
        {('params.loc', 'float32', (2,)): ('params/loc', <Role.STEP: 'step'>)}
    """
    found = {}
    for name, described in notes.get(SCHEMA, {}).items():
        try:
            field = Field.from_json(described)
        except (RlxError, KeyError, TypeError, ValueError):
            continue
        role = Role.STEP if field.role == Role.OBSERVATION else field.role
        found[place(name), field.dtype, field.shape] = (name, role)
    return found
