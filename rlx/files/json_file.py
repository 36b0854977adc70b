"""Objects in files of JSON, as little trusted as any other file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlx.errors import CorruptShardError
from rlx.files.disk import check_readable

_MAX_BYTES = 2**24


def read_object(path: Path, max_bytes: int = _MAX_BYTES) -> Mapping[str, Any]:
    """Return the object that a file of limited size holds.

    Raises:
        SourceNotFoundError: the file does not exist.
        FileAccessError: it cannot be read.
        CorruptShardError: it is larger than any such file, no JSON, or no object.
    """
    check_readable(path)
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise CorruptShardError(f"{path}: expected at most {max_bytes:,} bytes, found {size:,}")
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as exc:
        raise CorruptShardError(f"{path}: expected JSON, found: {exc}") from exc
    if not isinstance(found, dict):
        raise CorruptShardError(f"{path}: expected an object, found {found!r:.80}")
    return found
