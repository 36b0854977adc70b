"""Lance datasets of steps.

``reader.open_lance`` opens one; ``writer.LanceExporter`` writes one.
"""

from pathlib import Path
from typing import Any

from rlx.errors import FileAccessError, imported
from rlx.formats.common.signs import Sign
from rlx.formats.registry import COLUMN_OPTIONS, Format

VERSIONS, DATA = "_versions", "data"
LAYOUT = (
    "expected a Lance dataset of one row per step: columns observation, action, next/reward, next/terminated, "
    "next/truncated, numbers, or lists of one length in every row; `from_` lance:observation=NAME,... names others"
)


def lance() -> Any:
    """Return the package ``lance``; raises MissingExtraError if it is not installed."""
    return imported("lance", "lance needs pylance", "lance")


def checked(path: Path) -> str:
    """Return a path as Lance takes it; raises FileAccessError if it is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError as exc:
        raise FileAccessError(f"{path}: its name is not UTF-8, which Lance needs", hint="rename it") from exc
    return str(path)


FORMAT = Format(
    "lance",
    __name__,
    reads="dataset",
    options=COLUMN_OPTIONS,
    writes=("datasets",),
    signs=(Sign(files=(f"{VERSIONS}/*.manifest",)),),
)
