"""What rlx once said of the data in a file of another format that it wrote; as little trusted as any other file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The name that it goes by: of an attribute of an HDF5 file, of a key in JSON.
KEY = "rlx"
# Of a file in a directory of a format that has no such place.
FILE_NAME = "provenance.json"
_MAX_BYTES = 2**20


def told_notes(said: Any) -> Mapping[str, Any]:
    """Notes of the data, and under ``lost`` what is not in the file; empty where nothing of the kind was said.

    Args:
        said: what ``rlx.export.provenance`` made, or that as JSON text.

    Example:
        >>> told_notes('{"notes": {"rewards": "clipped"}, "losses": ["truncations"]}')
        {'rewards': 'clipped', 'lost': ['truncations']}
        >>> told_notes(None), told_notes("[1]")
        ({}, {})
    """
    try:
        parsed = json.loads(said) if isinstance(said, str | bytes) else said
        notes, losses = parsed["notes"], parsed["losses"]
        json.dumps([notes, losses], allow_nan=False)
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    if not isinstance(notes, dict) or not isinstance(losses, list):
        return {}
    return {**notes, "lost": losses} if losses else notes


def told_beside(directory: Path) -> Mapping[str, Any]:
    """The same of a directory that rlx wrote, where it did."""
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        return told_notes(json.loads(path.read_bytes())[KEY])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
