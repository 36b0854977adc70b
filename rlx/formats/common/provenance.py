"""Provenance in files of other formats that rlx writes: the source, the losses, the fields.

Readers trust it no more than any other part of a file.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rlx.block import Block
from rlx.distribution import version
from rlx.errors import RlxError, SchemaMismatchError
from rlx.files.disk import opened_file
from rlx.formats.common.exporter import Experience
from rlx.formats.common.fields import NOT_TAKEN
from rlx.formats.common.names import renamed_block, renamed_schema
from rlx.formats.common.rows.episodes import COUNTED, EARLY_FLAGS
from rlx.formats.common.skipping import NOTE as EPISODES_LEFT_OUT
from rlx.formats.common.source import Source
from rlx.manifest_values import check_json
from rlx.schema import Field, Role, Schema

# Name of the provenance: attribute of an HDF5 file, or key in JSON.
KEY = "rlx"
# File beside those of a format that cannot hold it.
FILE_NAME = "provenance.json"
# Keys in the notes of a source, never in those of a dataset: the fields that rlx wrote, and the own name of each that
# has another one in the file.
SCHEMA, NAMES = "schema", "names_in_file"
# Likewise: the fields of shape [0] that the file only notes.
EMPTY = "fields_without_values"
_MAX_BYTES = 2**24
# Notes on how another file was read.
_OF_READING = frozenset(
    {"left_out", "left_out_not_numbers", NOT_TAKEN, *COUNTED, EARLY_FLAGS, EPISODES_LEFT_OUT, SCHEMA, NAMES, EMPTY}
)


def provenance(experience: Experience, losses: Sequence[str]) -> Mapping[str, Any]:
    """Return the dataset's name, notes, schema, names and fingerprint, the losses and rlx's version, for JSON."""
    return {
        "rlx": version(),
        "id": experience.id,
        "notes": dict(experience.notes),
        "losses": list(losses),
        SCHEMA: experience.schema.to_json(),
        NAMES: {written: name for name, written in experience.names.items()},
        **({EMPTY: {name: field.to_json() for name, field in experience.empty.items()}} if experience.empty else {}),
        "fingerprint": experience.fingerprint,
    }


def save_provenance(
    directory: Path, experience: Experience, losses: Sequence[str], more: Mapping[str, Any] | None = None
) -> None:
    """Write the provenance, and ``more``, to ``provenance.json`` in a directory."""
    text = json.dumps({KEY: {**provenance(experience, losses), **(more or {})}}, sort_keys=True, indent=1)
    (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def read_notes(said: Any) -> Mapping[str, Any]:
    """Return the notes of the data, with losses under ``lost``, and what the file has under ``schema``,
    ``names_in_file`` and ``fields_without_values``.

    Empty if the provenance is missing or malformed. Notes on how an earlier file was read are left out.

    Args:
        said: result of ``provenance``, perhaps as JSON text.

    Example:
        >>> read_notes('{"notes": {"rewards": "clipped"}, "losses": ["truncations"]}')
        {'rewards': 'clipped', 'lost': ['truncations']}
        >>> read_notes(None), read_notes("[1]")
        ({}, {})
    """
    try:
        parsed = json.loads(said) if isinstance(said, str | bytes) else said
        notes, losses = parsed["notes"], parsed["losses"]
        noted = {key: parsed[key] for key in (SCHEMA, NAMES, EMPTY) if isinstance(parsed.get(key), dict)}
        check_json([notes, losses, noted], KEY)
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    if not isinstance(notes, dict) or not isinstance(losses, list):
        return {}
    kept = {name: note for name, note in notes.items() if name not in _OF_READING}
    return {**kept, **{key: said for key, said in {"lost": losses, **noted}.items() if said}}


def read_notes_beside(directory: Path) -> Mapping[str, Any]:
    """Return the notes in ``provenance.json`` of a directory; empty if it is missing or malformed."""
    path = directory / FILE_NAME
    try:
        with opened_file(path) as file:
            raw = file.read(_MAX_BYTES + 1)
        return read_notes(json.loads(raw)[KEY]) if len(raw) <= _MAX_BYTES else {}
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def noted_fields(notes: Mapping[str, Any], key: str = SCHEMA) -> dict[str, Field]:
    """Return the fields that rlx wrote into a file, by name; skips malformed descriptions.

    Args:
        notes: result of ``read_notes``.
        key: of the notes.

    Example:
        >>> field = {"dtype": "float32", "shape": [2], "role": "step"}
        >>> list(noted_fields({"schema": {"params/loc": field, "bad": 1}}))
        ['params/loc']
    """
    found = {}
    for name, described in notes.get(key, {}).items():
        with suppress(RlxError, LookupError, TypeError, ValueError, AttributeError):
            found[name] = Field.from_json(described)
    return found


class LocalRun(Source, Protocol):
    """A source with local files."""

    @property
    def root(self) -> Path:
        """The directory to which the names of its files are relative."""


@dataclass(frozen=True, slots=True)
class NotedRun:
    """A run whose fields have the spaces and names that its file notes, with the fields that it only notes.

    Args:
        names: own name of every field that has another in the file.
        empty: the fields of shape [0] that only the notes have.
    """

    run: LocalRun
    schema: Schema
    notes: Mapping[str, Any]
    names: Mapping[str, str]
    empty: Mapping[str, Field]

    @property
    def root(self) -> Path:
        """The directory to which the names of its files are relative."""
        return self.run.root

    @property
    def id(self) -> str:
        """Name of the run."""
        return self.run.id

    def shards(self) -> Sequence[int]:
        """Return the shards of the run."""
        return self.run.shards()

    def files(self, shard: int) -> Sequence[str]:
        """Return the files of the run."""
        return self.run.files(shard)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the blocks of the run."""
        return (self._noted(block) for block in self.run.blocks(shard, dropped))

    def _noted(self, block: Block) -> Block:
        renamed = renamed_block(block, self.names)
        if not self.empty:
            return renamed
        rows = {Role.OBSERVATION: block.steps + block.closed}
        added = {name: field.zeros(rows.get(field.role, block.steps)) for name, field in self.empty.items()}
        return replace(renamed, data={**renamed.data, **added})


def as_noted(run: LocalRun) -> LocalRun:
    """Return the run with the spaces, names and empty fields that its file notes.

    Spaces are for fields unchanged since then.
    """
    keys = (SCHEMA, NAMES, EMPTY)
    if not any(key in run.notes for key in keys):
        return run
    noted = noted_fields(run.notes)
    spaced = Schema({name: _with_space(field, noted.get(name, field)) for name, field in run.schema.fields.items()})
    names = {name: own for name, own in run.notes.get(NAMES, {}).items() if name in spaced and isinstance(own, str)}
    try:
        schema = renamed_schema(spaced, names)
    except SchemaMismatchError:
        schema = spaced
    if len(schema) < len(spaced) or schema is spaced:
        schema, names = spaced, {}
    empty = {name: field for name, field in noted_fields(run.notes, EMPTY).items() if 0 in field.shape}
    empty = {name: field for name, field in empty.items() if name not in schema}
    try:
        schema = Schema({**schema.fields, **empty})
    except SchemaMismatchError:
        empty = {}
    return NotedRun(run, schema, {name: note for name, note in run.notes.items() if name not in keys}, names, empty)


def _with_space(field: Field, noted: Field) -> Field:
    """Return the field with the noted space, if it has none and the note is of a field like it."""
    return noted if replace(noted, space=None) == field else field
