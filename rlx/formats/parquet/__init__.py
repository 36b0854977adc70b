"""Parquet tables of steps.

``reader.open_parquet`` opens one; ``writer.ParquetDatasetExporter`` writes datasets and ``writer.ParquetExporter``
batches.
"""

from rlx.formats.registry import COLUMN_OPTIONS, Format

FORMAT = Format("parquet", __name__, reads="dataset", options=COLUMN_OPTIONS, writes=("datasets", "batches"))
