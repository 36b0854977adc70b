"""numpy's archives of steps.

``reader.open_npz`` opens one; ``writer.NpzDatasetExporter`` writes datasets and ``writer.NpzExporter`` batches.
"""

from rlx.formats.registry import Format

FORMAT = Format("npz", __name__, reads="dataset", writes=("datasets", "batches"))
