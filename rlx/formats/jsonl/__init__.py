"""JSON lines of batches.

``writer.JsonlExporter`` writes them.
"""

from rlx.formats.registry import Format

FORMAT = Format("jsonl", __name__, writes=("batches",), suffixes=("ndjson",))
