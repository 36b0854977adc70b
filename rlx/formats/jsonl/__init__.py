"""JSON lines of batches."""

from rlx.formats.registry import Format

FORMAT = Format("jsonl", __name__, writes=("batches",), suffixes=("ndjson",))
