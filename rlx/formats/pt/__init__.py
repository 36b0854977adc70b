"""torch's files of batches.

``writer.PtExporter`` writes them.
"""

from rlx.formats.registry import Format

FORMAT = Format("pt", __name__, writes=("batches",), suffixes=("pth",))
