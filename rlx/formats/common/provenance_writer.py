"""The provenance that rlx writes into files of other formats: whose data they hold, and which parts are lost."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlx.formats.common.exporter import Experience

# The name that it goes by wherever a format has a place for what its readers do not know.
KEY = "rlx"
# And in the directory of a format that has no such place.
FILE_NAME = "provenance.json"


def provenance(experience: Experience, losses: Sequence[str]) -> Mapping[str, Any]:
    """Return the dataset's name, notes, schema and fingerprint, the losses and rlx's version, as JSON;
    ``rlx.formats.common.provenance`` reads it.

    Example:
        >>> from types import SimpleNamespace
        >>> from rlx.schema import Schema
        >>> schema = Schema.of(observation=("uint8", (84, 84)), action=("int64", ()))
        >>> sorted(provenance(SimpleNamespace(id="Pong/5", notes={}, schema=schema, fingerprint="1f"), []))
        ['fingerprint', 'id', 'losses', 'notes', 'rlx', 'schema']
    """
    return {
        "rlx": version("rlx"),
        "id": experience.id,
        "notes": dict(experience.notes),
        "losses": list(losses),
        "schema": experience.schema.to_json(),
        "fingerprint": experience.fingerprint,
    }


def save_provenance(
    directory: Path, experience: Experience, losses: Sequence[str], more: Mapping[str, Any] | None = None
) -> None:
    """Write it beside the files of a format, with what else rlx wants to know when it reads them again."""
    text = json.dumps({KEY: {**provenance(experience, losses), **(more or {})}}, sort_keys=True, indent=1)
    (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")
