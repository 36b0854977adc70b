"""Lance datasets of steps.

``reader.open_lance`` opens one; ``writer.LanceExporter`` writes one.
"""

from typing import Any

from rlx.errors import imported
from rlx.formats.registry import COLUMN_OPTIONS, Format

VERSIONS, DATA = "_versions", "data"
LAYOUT = (
    "expected a Lance dataset of a row a step: columns observation, action, next/reward, next/terminated, "
    "next/truncated, numbers or lists of as many numbers in every row; `from_` lance:observation=NAME,... names others"
)


def lance() -> Any:
    """Return the package ``lance``, an extra."""
    return imported("lance", "lance needs pylance", "lance")


FORMAT = Format("lance", __name__, reads="dataset", options=COLUMN_OPTIONS, writes=("datasets",))
