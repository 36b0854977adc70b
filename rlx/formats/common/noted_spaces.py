"""Spaces of fields that rlx noted in a file of a format without a place for them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rlx.block import Block
from rlx.formats.common.source import Source
from rlx.schema import Field, Schema

# Of the notes of a source whose file told it; never among those of a dataset.
SCHEMA = "schema"


class LocalRun(Source, Protocol):
    """A source whose files lie on this machine."""

    @property
    def root(self) -> Path:
        """The directory to which the names of its files are relative."""


@dataclass(frozen=True, slots=True)
class SpacedRun:
    """A run, whose fields have the spaces that were noted.

    Args:
        run: as its format tells of it.
        schema: its fields, with spaces.
        notes: its notes, without them.
    """

    run: LocalRun
    schema: Schema
    notes: Mapping[str, Any]

    @property
    def root(self) -> Path:
        """The directory to which the names of its files are relative."""
        return self.run.root

    @property
    def id(self) -> str:
        """Name of the run."""
        return self.run.id

    def shards(self) -> Sequence[int]:
        """Return those of the run."""
        return self.run.shards()

    def files(self, shard: int) -> Sequence[str]:
        """Return those of the run."""
        return self.run.files(shard)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield those of the run."""
        return self.run.blocks(shard, dropped)


def with_spaces(run: LocalRun) -> LocalRun:
    """Return the run with the spaces that its file notes, for fields unchanged since it was written."""
    if SCHEMA not in run.notes:
        return run
    told = run.notes[SCHEMA]
    fields = {name: _with_space(run.schema[name], told.get(name)) for name in run.schema}
    return SpacedRun(run, Schema(fields), {name: note for name, note in run.notes.items() if name != SCHEMA})


def _with_space(field: Field, told: Any) -> Field:
    """Return the field with the noted space, if it has none and the note is of a field like it."""
    if field.space is not None or not isinstance(told, dict) or not isinstance(told.get("space"), dict):
        return field
    spaced = replace(field, space=told["space"])
    return spaced if told == spaced.to_json() else field
