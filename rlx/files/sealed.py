"""Documents and directories whose damage is always detected: JSON that ends in its own crc32c and has those of files.

Manifests of datasets, saved buffers and checkpoints are such documents.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from rlx.errors import CorruptDatasetError, FormatVersionError
from rlx.files.checksum import digests_of
from rlx.files.disk import opened_file, reading

_TAIL = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n\}\n')
_TAIL_BYTES = len(b',\n "crc32c": "00000000"\n}\n')
UNCHECKED = 1  # the format version of saved buffers and checkpoints without checksums
CHECKED = 2


class SealError(ValueError):
    """The last line is not the crc32c of the others."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


def sealed(text: str) -> bytes:
    r"""Return a JSON object of one key per line, with its crc32c as the last key.

    Example:
        >>> sealed('{\n "a": 1\n}')
        b'{\n "a": 1,\n "crc32c": "c0f6942f"\n}\n'
    """
    # Surrogates, for bytes of a name that is not UTF-8, become JSON's own escapes.
    body = text.removesuffix("\n}").encode("utf-8", "backslashreplace")
    return body + b',\n "crc32c": "%08x"\n}\n' % google_crc32c.value(body)


def check_seal(raw: bytes) -> None:
    """Raise SealError unless a document is what ``sealed`` returned."""
    tail = _TAIL.fullmatch(raw[-_TAIL_BYTES:])
    if tail is None:
        raise SealError("a crc32c on its last line", f"{raw[-_TAIL_BYTES:]!r}")
    found = b"%08x" % google_crc32c.value(raw[:-_TAIL_BYTES])
    if found != tail[1]:
        raise SealError(f"crc32c {tail[1].decode()}", found.decode())


def read_sealed(path: Path, format: str) -> tuple[dict[str, Any], bool]:
    """Return the description of a saved buffer or checkpoint, and whether it has checksums.

    Args:
        format: the name of the format, which the description has.

    Raises:
        CorruptDatasetError: it is missing or damaged.
        FormatVersionError: a newer rlx wrote it.
        FileAccessError: it cannot be read.
    """
    with reading(path), opened_file(path) as file:
        raw = file.read()
    try:
        found: dict[str, Any] = json.loads(raw)
        version = found["version"] if found.keys() >= {"format", "version"} else None
        if version != UNCHECKED:
            check_seal(raw)
        if found["format"] != format:
            raise ValueError(f"expected format {format!r}, found {found['format']!r:.40}")  # noqa: TRY301
    except (ValueError, KeyError, AttributeError, RecursionError) as exc:
        raise CorruptDatasetError(f"{path} is damaged: {exc}") from exc
    if version not in (UNCHECKED, CHECKED):
        raise FormatVersionError(
            f"{path} is of format version {version!r:.40}, expected {CHECKED}",
            hint="load it with the rlx that wrote it",
        )
    return found, version == CHECKED


def checksums(directory: Path) -> dict[str, dict[str, Any]]:
    """Return length and crc32c of every file below a directory, by its path there."""
    made = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        digests = digests_of(path)
        made[path.relative_to(directory).as_posix()] = {"bytes": digests.bytes, "crc32c": digests.crc32c}
    return made


def check_files(directory: Path, listed: Any) -> None:
    """Raise CorruptDatasetError unless the files of ``checksums`` below a directory are what they were."""
    if not isinstance(listed, Mapping):
        raise CorruptDatasetError(f"the checksums of {directory} are damaged: {listed!r:.80}")
    for name, expected in listed.items():
        path = directory / name
        with reading(path):
            digests = digests_of(path)
        found = {"bytes": digests.bytes, "crc32c": digests.crc32c}
        if found != expected:
            raise CorruptDatasetError(f"{path} is damaged: found {found}, expected {expected}")
