"""Lance datasets of steps.

``reader.open_lance`` opens one; ``writer.LanceExporter`` writes one.
"""

from rlx.formats.registry import COLUMN_OPTIONS, Format

FORMAT = Format("lance", __name__, reads="dataset", options=COLUMN_OPTIONS, writes=("datasets",))
